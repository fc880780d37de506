//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// nic is a network device that this process has opened. All contexts of the device share it: the XDP program, a socket
// on each queue, and one try-lock. The lock's holder moves frames and messages for all instances; on a data path no
// goroutine waits for it.
type nic struct {
	key    nicKey
	opts   options
	refs   int // guarded by nics
	dev    *xsk.Device
	res    *carrier.Resolver
	filter carrier.Filter

	lock   atomic.Uint32
	wanted atomic.Int32 // goroutines in mustLock
	_      [56]byte
	dirty  atomic.Pointer[conn] // a stack of marked instances

	// The fields below belong to the holder of the lock.
	memory
	queues                []queue
	sole                  bool // no other process has a queue of the device
	rxChunks              int
	pool                  *link.Pool
	origin                time.Time
	now                   link.Time
	idle, stride          int             // polls without work since the clock was read, and until it is read
	next                  link.Time       // when the first context must be ticked
	from                  carrier.Arrived // the frame that is being handled
	fromPath              peerPath
	fromKey               [27]byte
	contexts              [maxContexts]*share
	used                  int // contexts from this index on are nil
	batch                 []xsk.Desc
	backlog, backlogSpare []*conn
	copies                []*large // connections to oneself with messages that are partly copied
	sending               []*conn  // connections whose pending is not 0
	gone                  []*conn  // connections closed at both ends, of which goneLen are left with their routes
	routes                sync.Map // *route by *carrier.Peer
	stats                 nicStats
	tap                   kit.Tap
	joined                []byte // memory for a long frame in one piece

	polls      kit.Tally    // rounds, with or without work
	due        atomic.Int64 // when the next round is due
	minded     atomic.Int64 // the due time until which the goroutine of a queue sleeps; 0: none does
	late       atomic.Bool  // the next round reads the clock
	polledSoon atomic.Bool  // a queue goroutine makes a round within a millisecond
	waits      kit.Watch
	goneLen    atomic.Int32
	wakeup     chan struct{} // wakes the queue goroutines
	opened     atomic.Bool   // linkChanged keeps filter up to date
	closing    atomic.Bool
	tasks      sync.WaitGroup
}

// maxContexts is how many contexts can share a NIC.
const maxContexts = 256

// queue is one queue of the device.
type queue struct {
	sock    *xsk.Socket
	batch   [64]xsk.Desc
	out     int // used entries of batch
	under   int // chunks that are being sent
	posted  int // chunks in the fill ring
	rxLimit int
	stuck   bool // kick must be repeated
	dead    bool // kick has failed for a reason that lasts: the link is down, or the device is gone
	long    assembly
}

type nicStats struct {
	codes   [carrier.Codes]uint64
	foreign uint64 // frames of this protocol, for no context here
	pieces  uint64 // frames in too many chunks
}

// bad returns how many frames were damaged or forged, as far as their headers show.
func (s *nicStats) bad() (sum uint64) {
	for k, c := range s.codes {
		if !carrier.Code(k).Foreign() {
			sum += c
		}
	}
	return sum + s.foreign + s.pieces
}

type nicKey struct {
	netns uint64
	index int // of the device, whose name may become another one's
}

var nics = struct {
	sync.Mutex
	open map[nicKey]*nic
}{open: make(map[nicKey]*nic)}

// openNIC opens a device, or shares it with the contexts that have opened it.
func openNIC(device string, o options) (*nic, error) {
	var key nicKey
	err := kit.InNamespace(o.netns, func() error {
		key.netns = kit.Namespace("net")
		if i, err := net.InterfaceByName(device); err == nil { // else open fails
			key.index = i.Index
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	nics.Lock()
	defer nics.Unlock()
	if n := nics.open[key]; n != nil && n.queues[0].sock.Link() != xsk.LinkGone {
		if !n.opts.shares(o) {
			return nil, fmt.Errorf("%w: %s is open in this process with other options (carrier, port, queues, mode, copy, checksum, frames, busy-poll, huge-pages and multi-buffer must be the same)",
				driver.ErrInvalid, device)
		}
		n.refs++
		return n, nil
	}
	n := &nic{key: key, opts: o, refs: 1, origin: time.Now(), batch: make([]xsk.Desc, 64), next: never}
	if err := kit.InNamespace(o.netns, func() error { return n.open(device) }); err != nil {
		return nil, err
	}
	nics.open[key] = n
	return n, nil
}

const never = link.Time(1<<63 - 1)

// shares reports whether a context with the options p can use a NIC that was opened with o: those that the NIC takes
// from its first context must be the same.
func (o options) shares(p options) bool {
	return o.kind == p.kind && o.port == p.port && fmt.Sprint(o.queues) == fmt.Sprint(p.queues) && o.attach == p.attach &&
		o.copying == p.copying && o.verify == p.verify && o.sum4 == p.sum4 && o.frames == p.frames &&
		o.busyPoll == p.busyPoll && o.huge == p.huge && o.single == p.single
}

// slack returns how many chunks receive packets without credit: acknowledgements, greetings and forgeries.
func (o options) slack() int { return o.frames / 3 }

// longChunks is the number of chunks in runs for long frames.
const longChunks = 2048

// mostParts is the most chunks of a frame that is sent: the kernel accepts MAX_SKB_FRAGS, by default 17. The longest
// frame takes as many.
const mostParts = 17

// runLength returns how many chunks a run needs on a device of that MTU. It returns 0 if frames fit into a chunk, or if
// the kernel does not accept longer ones.
func (o *options) runLength(mtu, chunk int) int {
	if o.single || mtu+carrier.MaxHeader <= chunk-xsk.RxReserve || xsk.Probe(xsk.FeatureMultiBuffer) != nil {
		return 0
	}
	return min((dataAt+mtu+chunk-1)/chunk, mostParts)
}

func ringSize(n int) int {
	r := 64
	for r < n {
		r *= 2
	}
	return r
}

func (n *nic) open(device string) (err error) {
	o := &n.opts
	if err := checkBond(device, o); err != nil {
		n.close()
		return err
	}
	l, err := func() (carrier.Link, error) {
		if n.res, err = carrier.Open(device, carrier.Options{Changed: n.routeChanged}); err != nil {
			return carrier.Link{}, err
		}
		return n.res.Link()
	}()
	if err != nil {
		n.close()
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	all, err := xsk.DeviceQueues(device)
	if err != nil && o.queues == nil {
		n.close()
		return err
	}
	queues := o.queues
	if queues == nil {
		for k := range max(all.Rx, 1) {
			queues = append(queues, k)
		}
	}
	n.sole = err == nil && len(queues) >= all.Rx
	perQueue := o.frames + o.slack()
	n.rxChunks = perQueue * len(queues)
	attach := o.attachTo(device)
	chunkSize := o.chunkSize(l.MTU, attach)
	run := o.runLength(l.MTU, chunkSize)
	packet := max(min(l.MTU-o.kind.Overhead(), chunkSize-dataAt), link.MinMTU)
	n.memory.quotas.init(o.peers, packet-prefixSize-link.HeaderSize-16)
	n.pool = o.pool(run)
	if n.dev, err = xsk.Open(n.xskConfig(device, attach, queues, chunkSize, run)); err != nil {
		n.close()
		switch {
		case !errors.Is(err, xsk.ErrQueueBusy):
		case n.sole && len(queues) == 1:
			err = fmt.Errorf("%w; a process takes a queue for itself, and the device has one: name another device", err)
		default:
			err = fmt.Errorf("%w; a process takes all queues of a device: for several processes give each some of its own (option queues=0-1)", err)
		}
		return err
	}
	n.memory.init(n.dev.UMEM, n.rxChunks, n.fitRun(device, run))
	n.queues = make([]queue, len(n.dev.Sockets))
	n.wakeup = make(chan struct{}, len(n.queues))
	n.waits = kit.Watch{Device: frameWaits{n}, Spins: spins, Never: len(n.queues) > 1}
	for k, s := range n.dev.Sockets {
		n.queues[k].sock, n.queues[k].rxLimit = s, perQueue
	}
	n.filter = carrier.Filter{Port: o.port, Verify: o.verify, MAC: l.MAC}
	n.filter.Kinds[o.kind] = true
	n.fill()
	n.due.Store(int64(never))
	n.tap.Driver, n.tap.Device, n.tap.LinkType = Name, device, kit.LinkEthernet
	kit.AddTap(&n.tap)
	for k := range n.queues {
		n.tasks.Go(func() { n.runQueue(&n.queues[k]) })
	}
	n.opened.Store(true)
	n.linkChanged() // the MAC address may have changed since the look-up
	return nil
}

// attachTo returns how the program is attached to a device.
func (o *options) attachTo(device string) xsk.Attachment {
	if o.attach != xsk.AttachAuto {
		return o.attach
	}
	switch kernelDriver(device) {
	case "veth": // a seventh faster so: its driver copies once more for a native program
		return xsk.AttachGeneric
	case "hv_netvsc": // gives a native program to its virtual function, whose frames reach no socket of this device
		return xsk.AttachGeneric
	}
	if f, err := xsk.DeviceFeatures(device); err == nil && !f.Native {
		return xsk.AttachGeneric // some drivers run programs, and drop what these redirect
	}
	return xsk.AttachAuto
}

// chunkSize returns the bytes of a chunk. Where the device itself may write to chunks they have 4096: of 2048 the kernel
// leaves it 1792, of which igb, igc and ixgbe (82599) use whole KiB only, and they cut or drop longer frames, also those
// of the host's other traffic.
func (o *options) chunkSize(mtu int, attach xsk.Attachment) int {
	copies := attach == xsk.AttachGeneric || o.copying == xsk.CopyAlways
	if copies && mtu+carrier.MaxHeader <= 2048-xsk.RxReserve {
		return 2048
	}
	return 4096
}

// xskConfig returns the configuration for opening the device.
func (n *nic) xskConfig(device string, attach xsk.Attachment, queues []int, chunkSize, run int) xsk.Config {
	o, perQueue := &n.opts, n.opts.frames+n.opts.slack()
	match := xsk.Match{UDPPort: o.port}
	if o.kind == carrier.Ether {
		match = xsk.Match{EtherType: carrier.EtherType}
	}
	long := 0
	if run > 0 {
		long = longChunks / run * run
	}
	cfg := xsk.Config{
		Device: device, Match: match, Attach: attach, Queues: queues,
		Memory: xsk.UMEMConfig{
			Chunks: n.rxChunks + n.memory.quotas.chunks() + long, ChunkSize: chunkSize, HugePages: o.huge,
		},
		Socket: xsk.SocketConfig{Rx: ringSize(perQueue), Fill: ringSize(perQueue), Tx: 1024, Completion: 2048, Copying: o.copying, MultiBuffer: run > 0},
	}
	if o.busyPoll > 0 {
		cfg.Socket.BusyPoll = xsk.BusyPoll{Time: o.busyPoll, Budget: 64}
	}
	return cfg
}

// fitRun returns how many chunks of a run are used: with zero-copy the device's driver has a limit of its own.
func (n *nic) fitRun(device string, run int) int {
	if run == 0 || !n.dev.Sockets[0].ZeroCopy() {
		return run
	}
	f, err := xsk.DeviceFeatures(device)
	if err != nil || f.ZeroCopySegments < 2 {
		return 0
	}
	return min(run, f.ZeroCopySegments)
}

// kernelDriver returns the name of a device's driver in the kernel, or "".
func kernelDriver(device string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, device)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// checkBond returns an error for a bond or team, unless the program runs in the stack: elsewhere it sees the frames with
// the members' queues, for which the kernel gives them to no socket of the bond (xsk_rcv_check).
func checkBond(device string, o *options) error {
	if k := kernelDriver(device); o.attach != xsk.AttachGeneric && (k == "bonding" || k == "team") {
		return fmt.Errorf("%w: %s is a bond: AF_XDP gets its frames with option mode=skb only",
			errUnusable, device)
	}
	return nil
}

var errUnusable = errors.New("the device cannot be used")

// release gives up one context's share of a NIC. The last one closes the NIC.
func (n *nic) release() error {
	nics.Lock()
	defer nics.Unlock()
	if n.refs--; n.refs > 0 {
		return nil
	}
	if nics.open[n.key] == n {
		delete(nics.open, n.key)
	}
	return n.close()
}

func (n *nic) close() error {
	n.closing.Store(true)
	n.wakeQueues()
	n.tasks.Wait()
	for n.waits.Sleepers() > 0 { // a waiter looks at the rings before and after it sleeps
		n.wakeQueues()
		time.Sleep(50 * time.Microsecond)
	}
	if n.res != nil {
		n.res.Close()
	}
	if n.dev == nil {
		return nil
	}
	n.mustLock() // never unlocked
	kit.RemoveTap(&n.tap)
	return n.dev.Close()
}

func (n *nic) wakeQueues() {
	frameWaits{n}.Call()
	for k := range n.queues {
		n.queues[k].sock.Wake()
	}
}

// mustLock waits for the lock. It must not be called on the data path. The lock's holder releases it soon.
func (n *nic) mustLock() {
	n.wanted.Add(1)
	defer n.wanted.Add(-1)
	for k := 0; !n.lock.CompareAndSwap(0, 1); k++ {
		if k < 20 {
			runtime.Gosched()
		} else {
			time.Sleep(5 * time.Microsecond) // the holder may need this processor
		}
	}
}

// unlock releases the lock, and serves the instances that were marked meanwhile.
func (n *nic) unlock() {
	n.lock.Store(0)
	if n.dirty.Load() != nil {
		n.run()
	}
}
