//go:build linux

package nic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/internal/abi"
)

// Defaults of Config.
const (
	defaultCommands = 256
	defaultContexts = 64
	defaultRegion   = 1024
)

// Process is a registration with a NIC: a Virtual Network Interface, which the
// process writes, and the host page, which the NIC writes.
type Process struct {
	nic   *NIC
	host  host
	coord uint16

	queue    queue
	sends    contexts
	receives contexts
	pool     []abi.Descriptor
	status   *abi.Status
	ring     []uint32

	closed    atomic.Bool
	wakes     atomic.Uint32 // grows with each Wake; a futex word
	waiters   atomic.Int32  // goroutines in Wait
	pollAfter atomic.Int64  // until when polling does not pay, relative to clock
	mem       *mappings
	outside   chan struct{}
	ended     chan struct{} // closed when Deregister has returned
}

// mappings outlive the registration, so that late calls do not fault.
type mappings struct{ vni, hps []byte }

// Register registers this process: other processes find it by its name. It blocks until the other NICs of the cluster
// know the process and its group, if any, is complete, for at most 30 s or until the context ends; the module knows the
// context's deadline only, and not that it is cancelled. It fails with EISCONN if this handle has a registration, and
// with EADDRINUSE if the name is taken.
func (n *NIC) Register(ctx context.Context, c Config) (*Process, error) {
	p, err := n.register(ctx, c)
	if err != nil {
		return nil, hostError("register "+c.Name, err)
	}
	return p, nil
}

func (n *NIC) register(ctx context.Context, c Config) (*Process, error) {
	r, err := c.request(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := n.begin(cancel); err != nil {
		return nil, err
	}
	p, err := n.make(ctx, r)
	defer close(n.registered)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.registering = nil
	switch {
	case n.closed && err == nil:
		_ = p.Deregister()
		return nil, ErrClosed
	case n.closed:
		return nil, ErrClosed
	case err != nil:
		return nil, err
	}
	n.process = p
	n.host.watch(p.Wake)
	return p, nil
}

// begin makes sure that there is one registration at a time.
func (n *NIC) begin(cancel context.CancelFunc) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return ErrClosed
	case n.registering != nil, n.process != nil && !n.process.hasEnded():
		return unix.EISCONN
	}
	n.registering, n.registered = cancel, make(chan struct{})
	return nil
}

func (n *NIC) make(ctx context.Context, r abi.Register) (*Process, error) {
	asked := r
	vni, hps, err := n.host.register(ctx, &r)
	if err != nil {
		return nil, err
	}
	p, err := newProcess(n, &asked, &r, vni, hps)
	if err != nil {
		_ = n.host.deregister()
		_, _ = unix.Munmap(vni), unix.Munmap(hps)
		return nil, err
	}
	return p, nil
}

// request checks the configuration and fills in its defaults.
func (c *Config) request(ctx context.Context) (r abi.Register, err error) {
	c.Commands = cmp.Or(c.Commands, defaultCommands)
	c.Sends = cmp.Or(c.Sends, defaultContexts)
	c.Receives = cmp.Or(c.Receives, defaultContexts)
	c.RegionSize = cmp.Or(c.RegionSize, defaultRegion)
	name, err := MakeName(c.Name)
	if err != nil {
		return r, err
	}
	var group Name
	if c.Group != "" {
		if group, err = MakeName(c.Group); err != nil {
			return r, err
		}
	}
	for _, x := range []struct {
		what           string
		v, least, most int
		step           int
	}{
		{"Commands", c.Commands, 1, abi.MaxCommands, 1},
		{"Sends", c.Sends, 1, abi.MaxContexts, 1},
		{"Receives", c.Receives, 1, abi.MaxContexts, 1},
		{"RegionSize", c.RegionSize, 64, abi.MaxRegion, 64},
		{"PoolEntries", c.PoolEntries, 0, abi.MaxPool, 1},
		{"GroupSize", c.GroupSize, 0, math.MaxInt32, 1},
	} {
		if x.v < x.least || x.v > x.most || x.v%x.step != 0 {
			return r, fmt.Errorf("%w: %s %d: it is from %d to %d, in steps of %d", ErrInvalid, x.what, x.v, x.least, x.most, x.step)
		}
	}
	if bits.OnesCount(uint(c.Commands)) != 1 {
		return r, fmt.Errorf("%w: Commands %d: it is a power of two", ErrInvalid, c.Commands)
	}
	if (c.Group != "") != (c.GroupSize > 0) {
		return r, fmt.Errorf("%w: Group %q with GroupSize %d", ErrInvalid, c.Group, c.GroupSize)
	}
	return abi.Register{
		Name: name, Group: group, GroupSize: uint32(c.GroupSize), TimeoutMs: timeoutMs(ctx),
		Commands: uint32(c.Commands), Sends: uint32(c.Sends), Receives: uint32(c.Receives),
		RegionSize: uint32(c.RegionSize), PoolEntries: uint32(c.PoolEntries),
	}, ctx.Err()
}

// timeoutMs returns the time that is left to a context in ms, or 0 without a deadline.
func timeoutMs(ctx context.Context) uint32 {
	end, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return uint32(max(1, min(time.Until(end).Milliseconds()+1, math.MaxInt32)))
}

func newProcess(n *NIC, asked, r *abi.Register, vni, hps []byte) (*Process, error) {
	m, err := readLayout(asked, vni, hps)
	if err != nil {
		return nil, err
	}
	p := &Process{nic: n, host: n.host, coord: r.NIC, mem: &mappings{vni, hps},
		outside: make(chan struct{}), ended: make(chan struct{})}
	p.queue.init(view[abi.Command](vni, m.CommandQueue, m.Commands))
	p.sends = contexts{
		list:      view[abi.Context](vni, m.SendContexts, m.Sends),
		regions:   view[byte](vni, m.SendRegions, m.Sends*m.RegionSize),
		size:      int(m.RegionSize),
		doorbells: view[uint64](hps, m.SendDoorbells, m.Sends),
		room:      make([]uint32, m.Sends),
	}
	p.receives = contexts{
		list:      view[abi.Context](vni, m.ReceiveContexts, m.Receives),
		regions:   view[byte](vni, m.ReceiveRegions, m.Receives*m.RegionSize),
		size:      int(m.RegionSize),
		doorbells: view[uint64](hps, m.ReceiveDoorbells, m.Receives),
		room:      make([]uint32, m.Receives),
	}
	p.pool = view[abi.Descriptor](vni, m.BufferPool, m.PoolEntries)
	p.ring = view[uint32](hps, m.DoorbellRing, m.RingEntries)
	p.status = &view[abi.Status](hps, m.Status, 1)[0]
	runtime.AddCleanup(p, func(m *mappings) {
		_, _ = unix.Munmap(m.vni), unix.Munmap(m.hps)
	}, p.mem)
	return p, nil
}

// view is a part of a mapping. readLayout has checked that it lies inside.
func view[T any](b []byte, at, n uint32) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[at])), n)
}

// readLayout reads the NIC Memory Info, once, and checks that every component lies in its mapping, is aligned, and has
// the requested number of entries.
func readLayout(asked *abi.Register, vni, hps []byte) (m abi.MemoryInfo, err error) {
	if len(hps) < int(unsafe.Sizeof(m)) {
		return m, fmt.Errorf("%w: a host page of %d bytes", ErrUntrusted, len(hps))
	}
	m = *(*abi.MemoryInfo)(unsafe.Pointer(unsafe.SliceData(hps)))
	if m.ABIVersion != abi.Version {
		return m, fmt.Errorf("%w: the host page has %d, this program %d", ErrVersion, m.ABIVersion, abi.Version)
	}
	if m.Commands != asked.Commands || m.Sends != asked.Sends || m.Receives != asked.Receives ||
		m.RegionSize != asked.RegionSize || m.PoolEntries != asked.PoolEntries {
		return m, fmt.Errorf("%w: other numbers of components than were asked for", ErrUntrusted)
	}
	if bits.OnesCount32(m.RingEntries) != 1 || m.RingEntries < m.Sends+m.Receives || m.RingEntries > 4*abi.MaxContexts {
		return m, fmt.Errorf("%w: a Doorbell Ring of %d entries", ErrUntrusted, m.RingEntries)
	}
	for _, x := range []struct {
		what  string
		in    []byte
		at    uint32
		n     uint32
		each  uint32
		align uint32
	}{
		{"Command Queue", vni, m.CommandQueue, m.Commands, 64, 64},
		{"Send Context List", vni, m.SendContexts, m.Sends, 64, 64},
		{"Receive Context List", vni, m.ReceiveContexts, m.Receives, 64, 64},
		{"Send Context Regions", vni, m.SendRegions, m.Sends, m.RegionSize, 64},
		{"Receive Context Regions", vni, m.ReceiveRegions, m.Receives, m.RegionSize, 64},
		{"Buffer Pool", vni, m.BufferPool, m.PoolEntries, 16, 16},
		{"Status", hps, m.Status, 1, uint32(unsafe.Sizeof(abi.Status{})), 64},
		{"Send Doorbells", hps, m.SendDoorbells, m.Sends, 8, 8},
		{"Receive Doorbells", hps, m.ReceiveDoorbells, m.Receives, 8, 8},
		{"Doorbell Ring", hps, m.DoorbellRing, m.RingEntries, 4, 4},
	} {
		if end := uint64(x.at) + uint64(x.n)*uint64(x.each); x.at%x.align != 0 || end > uint64(len(x.in)) {
			return m, fmt.Errorf("%w: the %s lies from %d to %d in %d bytes", ErrUntrusted, x.what, x.at, end, len(x.in))
		}
	}
	return m, nil
}

// NIC returns the number of the NIC with which the process is registered.
func (p *Process) NIC() uint16 { return p.coord }

// Sends returns the number of Send Contexts.
func (p *Process) Sends() int { return len(p.sends.list) }

// Receives returns the number of Receive Contexts.
func (p *Process) Receives() int { return len(p.receives.list) }

// SendRegion returns the Context Region of a Send Context. It holds the data of messages with Inline and of SendShort;
// for others Post fills it with descriptors. It belongs to the NIC while an operation of the context is under way, and
// is not valid after Deregister. SendRegion panics if there is no context i.
func (p *Process) SendRegion(i int) []byte { return p.sends.region(i) }

// ReceiveRegion returns the Context Region of a Receive Context, which receives with Inline fill.
func (p *Process) ReceiveRegion(i int) []byte { return p.receives.region(i) }

// Gone reports whether the registration has ended, by Deregister or because the NIC has ended. No doorbell rings
// afterwards.
func (p *Process) Gone() bool {
	return p.closed.Load() || p.host.gone() || atomic.LoadUint32(&p.status.Gone) != 0
}

// leave closes outside: at once if the NIC has answered or ended, otherwise when a NIC that was given up continues.
func (p *Process) leave(answered bool) {
	done := p.host.outside()
	if answered || done == nil {
		close(p.outside)
		return
	}
	select {
	case <-done:
		close(p.outside)
	case <-time.After(time.Millisecond): // if the NIC has just ended, the channel closes very soon
		go func() {
			<-done
			close(p.outside)
		}()
	}
}

// Abandon gives up a NIC in user space that does not answer, for example because it is stopped: calls under way, and
// later ones, fail with ErrGone. The NIC may still access translated memory until Outside is closed. On the kernel
// module, which always answers, Abandon does nothing.
func (p *Process) Abandon() { p.host.abandon() }

// Abandoned reports whether the NIC was given up, by Abandon or by a call that took too long.
func (p *Process) Abandoned() bool { return p.host.abandoned() }

// Outside returns a channel that is closed once the NIC does not access translated memory any more: when Deregister has
// succeeded or the NIC has ended. Deregister gives up a NIC in user space that is stopped; the NIC may then be in the
// middle of a copy, and translated memory must stay mapped and pinned until Outside is closed, when that NIC continues
// or dies.
func (p *Process) Outside() <-chan struct{} { return p.outside }

// hasEnded reports whether Deregister has returned.
func (p *Process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Deregister ends the registration: other processes see it gone, and waits end with ErrGone. Translated memory belongs
// to the program again when Deregister returns nil. Other calls may be under way at the same time. A second call fails
// with ErrClosed. If a NIC in user space does not answer within 3 s, Deregister gives it up and fails with
// context.DeadlineExceeded: see Outside.
func (p *Process) Deregister() error {
	if p.closed.Swap(true) {
		return ErrClosed
	}
	defer close(p.ended)
	for p.waiters.Load() != 0 {
		p.Wake()
		time.Sleep(100 * time.Microsecond)
	}
	var err error
	answered := false
	if !p.host.gone() {
		err = p.host.deregister()
		if answered = err == nil; errors.Is(err, ErrGone) {
			err = nil
		}
	}
	p.leave(answered)
	for _, b := range [][]byte{p.mem.vni, p.mem.hps} {
		// Free the memory, and leave zeros for late calls.
		_, e := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
		if e != nil {
			err = cmp.Or(err, e)
		}
	}
	if err != nil {
		return hostError("deregister", err)
	}
	return nil
}
