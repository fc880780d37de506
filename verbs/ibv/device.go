package ibv

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

// handle is a C object, or nil.
type handle = unsafe.Pointer

var available = sync.OnceValue(func() error {
	if err := rawLoad(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
})

// Available returns nil if this binary can use verbs on this machine, else an [ErrUnavailable] with the reason and the
// remedy. It opens the libraries once; later calls return the same. It does not look for devices: see [Devices].
func Available() error { return available() }

// DeviceInfo names an RDMA device.
type DeviceInfo struct {
	Name  string // as Open takes it, such as "mlx5_0"
	IWARP bool   // iWARP: no GIDs, connections only through the connection manager
}

// Devices lists the RDMA devices of this machine that user space can use. It is no error if there are none. Devices
// fails with [ErrUnavailable], or with ENOSYS without the kernel's ib_uverbs module.
func Devices() ([]DeviceInfo, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	devs, r := rawDevices()
	if r < 0 {
		return nil, fail("get_device_list", "", r, noDevices)
	}
	return devs, nil
}

const noDevices = "the kernel offers no RDMA devices; load its modules (modprobe ib_uverbs, and the device's own, " +
	"or for Soft-RoCE: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0)"

// Context is an open device.
type Context struct {
	object
	attr  DeviceAttr
	iwarp bool

	fd    poller // asynchronous events
	event AsyncEvent

	ids sync.Mutex
	of  map[handle]any // *QP, *CQ and *SRQ by what the library calls them in events
}

// Open opens a device by name. It fails with [ErrUnavailable], with ENODEV and the existing names if there is no device
// of that name, or with EACCES.
func Open(name string) (*Context, error) {
	devs, err := Devices()
	if err != nil {
		return nil, err
	}
	c := &Context{of: map[handle]any{}}
	c.kind, c.device, c.unblock = "device", name, c.fd.close
	c.iwarp = slices.ContainsFunc(devs, func(d DeviceInfo) bool { return d.Name == name && d.IWARP })
	var fd int
	err = c.make("open_device", func() (h handle, r int) {
		h, fd, r = rawOpen(name)
		return h, r
	})
	if errors.Is(err, syscall.ENODEV) {
		return nil, fail("open_device", name, -int(syscall.ENODEV), unknownDevice(devs))
	} else if err != nil {
		return nil, err
	}
	r := rawQueryDevice(c.h, &c.attr)
	if r < 0 {
		_ = c.Close()
		return nil, fail("query_device", name, r, "")
	}
	if err := c.fd.init(&c.object, fd, "get_async_event", c.tryEvent); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func unknownDevice(devs []DeviceInfo) string {
	if len(devs) == 0 {
		return "no such device, and no other one; " + noDevices
	}
	var names []string
	for _, d := range devs {
		names = append(names, d.Name)
	}
	return "no such device; there are: " + strings.Join(names, ", ")
}

// Close closes the device. While it has PDs, CQs or completion channels, Close fails with EBUSY and names them. Pending
// GetAsyncEvent calls return os.ErrClosed.
func (c *Context) Close() error {
	return c.close("close_device", func() int { return rawClose(c.h) })
}

// Name returns the device's name.
func (c *Context) Name() string { return c.device }

// IWARP reports whether the device speaks iWARP: see [DeviceInfo].
func (c *Context) IWARP() bool { return c.iwarp }

// DeviceAttr are a device's identity and limits.
type DeviceAttr struct {
	Firmware      string
	VendorID      uint32
	Ports         int    // numbered from 1
	MaxMRSize     uint64 // bytes
	MaxMR         int
	MaxMW         int
	MaxQP, MaxCQ  int
	MaxCQE        int // entries of a completion queue
	MaxQPWR       int // outstanding requests of a send or receive queue
	MaxSGE        int // entries of a request
	MaxSRQ        int
	MaxSRQWR      int
	MaxSRQSGE     int
	MaxQPRdAtom   int // reads and atomics a queue pair can be the target of at a time
	MaxQPInitAtom int // reads and atomics a queue pair can have under way
	CompVectors   int // interrupt vectors of completion queues, from 0
	Atomic        AtomicCap
	MemoryWindow2 bool // windows of type 2: see MW
}

// SoftRoCE reports whether the device is one of the kernel's rdma_rxe, by its vendor: its name is the user's choice.
func (a DeviceAttr) SoftRoCE() bool { return a.VendorID == 0xffffff }

// Query returns the device's attributes as they were at Open.
func (c *Context) Query() DeviceAttr { return c.attr }

// PortAttr is the state of a port.
type PortAttr struct {
	State       PortState
	LinkLayer   LinkLayer
	MaxMTU      MTU
	ActiveMTU   MTU
	MaxMessage  uint32 // bytes
	GIDs, PKeys int    // lengths of the tables
	LID         uint16 // InfiniBand: the port's local identifier
	Width       int    // lanes; 0 if unknown
	Speed       int    // Mb/s per lane; 0 if unknown
	GRHRequired bool   // InfiniBand: a path needs the peer's GID also within a subnet
}

// QueryPort asks for the state of a port; ports count from 1.
func (c *Context) QueryPort(port int) (PortAttr, error) {
	var attr PortAttr
	if port < 1 || port > max(c.attr.Ports, 1) {
		return attr, invalid("query_port", c.device, "port %d; the device has ports 1 to %d", port, c.attr.Ports)
	}
	err := c.call("query_port", func() int { return rawQueryPort(c.h, port, &attr) })
	return attr, err
}

// PKey returns entry index of a port's partition key table.
func (c *Context) PKey(port, index int) (uint16, error) {
	var pkey uint16
	err := c.call("query_pkey", func() int {
		var r int
		pkey, r = rawQueryPKey(c.h, port, index)
		return r
	})
	return pkey, err
}

// GID is a global identifier: an IPv6 address, on RoCE often IPv4-mapped.
type GID [16]byte

// String returns the GID as an IPv6 address, an IPv4-mapped one as ::ffff:a.b.c.d.
func (g GID) String() string {
	if ip := net.IP(g[:]); ip.To4() != nil {
		return "::ffff:" + ip.String()
	}
	return net.IP(g[:]).String()
}

// GIDEntry is an entry of a port's GID table.
type GIDEntry struct {
	GID    GID
	Port   int
	Index  int // the index for a queue pair's address vector; it can change when addresses do
	Type   GIDType
	NetDev string // the network interface of a RoCE GID; may be empty
}

// GIDs lists the entries of a port's GID table that are in use.
func (c *Context) GIDs(port int) ([]GIDEntry, error) {
	if port < 1 || port > max(c.attr.Ports, 1) {
		return nil, invalid("query_gid_table", c.device, "port %d; the device has ports 1 to %d", port, c.attr.Ports)
	}
	if err := c.use("query_gid_table"); err != nil {
		return nil, err
	}
	defer c.mu.RUnlock()
	all, r := rawQueryGIDs(c.h)
	if r < 0 {
		return nil, fail("query_gid_table", c.device, r, "")
	}
	var gids []GIDEntry
	for _, g := range all {
		if g.Port == port {
			gids = append(gids, g)
		}
	}
	return gids, nil
}

func (c *Context) remember(key handle, o any) {
	c.ids.Lock()
	c.of[key] = o
	c.ids.Unlock()
}

// forget removes o, unless the library has given its key to a newer object.
func (c *Context) forget(key handle, o any) {
	c.ids.Lock()
	if c.of[key] == o {
		delete(c.of, key)
	}
	c.ids.Unlock()
}

func (c *Context) find(key handle) any {
	c.ids.Lock()
	defer c.ids.Unlock()
	return c.of[key]
}

// dropSRQ makes the CQs, which may refer to a closing SRQ, forget it.
func (c *Context) dropSRQ(srq handle) {
	c.ids.Lock()
	defer c.ids.Unlock()
	for _, o := range c.of {
		if cq, ok := o.(*CQ); ok {
			rawDropSRQ(cq.q, srq)
		}
	}
}

// zone returns the number of a network interface, given by name or number.
func zone(name string) uint32 {
	if i, err := net.InterfaceByName(name); err == nil {
		return uint32(i.Index)
	}
	n, _ := strconv.ParseUint(name, 10, 32)
	return uint32(n)
}
