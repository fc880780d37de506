//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/rights"
)

// maxArenas is how many arenas a connection maps of its peer, and shows it. In
// further ones memory is treated as private.
const maxArenas = 64

// maxImported limits what all connections of this process map of their peers, so
// that a hostile one cannot take the address space that Go's heap grows into.
const maxImported = 1 << 45

var importedBytes atomic.Int64

// imported is an arena of the peer; base is nil if it could not be mapped.
type imported struct {
	id   uint64
	base unsafe.Pointer
	size uint64
	// users are the list and each transfer that copies to or from it: the
	// peer may take it back in the middle.
	users atomic.Int32
}

// imports are the arenas of the peer. The monitor writes, the owner reads.
type imports struct {
	list   atomic.Pointer[[]*imported]
	mu     sync.Mutex // of writers
	closed bool
}

func (im *imports) all() []*imported {
	if l := im.list.Load(); l != nil {
		return *l
	}
	return nil
}

// add maps an arena that the peer has shown. It owns fd. An arena that cannot be mapped is listed too, so that nothing
// waits for it. add returns false if the peer may not show the arena: one too many, one twice, or a file whose close may
// block.
func (im *imports) add(id, size uint64, user uint32, fd int) bool {
	defer rights.Discard(user, fd)
	im.mu.Lock()
	defer im.mu.Unlock()
	list := im.all()
	if len(list) >= maxArenas || slices.ContainsFunc(list, func(e *imported) bool { return e.id == id }) ||
		checkSealed(fd, int64(size)) != nil {
		return false
	}
	if im.closed {
		return true
	}
	e := &imported{id: id}
	e.users.Store(1)
	if size <= maxImported {
		e.place(fd, size)
	}
	next := append(list[:len(list):len(list)], e)
	im.list.Store(&next)
	return true
}

func (e *imported) place(fd int, size uint64) {
	if importedBytes.Add(int64(size)) <= maxImported {
		if p, err := mapShared(fd, int(size), unix.PROT_READ|unix.PROT_WRITE); err == nil {
			_ = unix.Madvise(unsafe.Slice((*byte)(p), size), unix.MADV_HUGEPAGE) // costs only speed
			e.base, e.size = p, size
			return
		}
	}
	importedBytes.Add(-int64(size))
}

// find looks an arena up. known is false while the peer's message about it is
// still on its way.
//
// The memory stays mapped for the call that the owner is in, and longer if it
// takes a share in it.
func (im *imports) find(id, off, n uint64) (p unsafe.Pointer, from *imported, known bool) {
	for _, e := range im.all() {
		if e.id != id {
			continue
		}
		if e.base == nil || off > e.size || n > e.size-off {
			return nil, nil, true
		}
		return unsafe.Add(e.base, off), e, true
	}
	return nil, nil, len(im.all()) >= maxArenas // the peer has shown no more: its memory counts as private
}

// take removes an arena from the list; the caller drops the list's share.
func (im *imports) take(id uint64) (e *imported) {
	im.mu.Lock()
	defer im.mu.Unlock()
	var next []*imported
	for _, x := range im.all() {
		if x.id == id {
			e = x
		} else {
			next = append(next, x)
		}
	}
	im.list.Store(&next)
	return e
}

// share keeps the memory mapped until drop. Only the owner calls it, inside a
// call and on what find has returned there.
func (e *imported) share() { e.users.Add(1) }

func (e *imported) drop() {
	if e != nil && e.users.Add(-1) == 0 && e.base != nil {
		_ = unix.MunmapPtr(e.base, uintptr(e.size))
		importedBytes.Add(-int64(e.size))
	}
}

func (im *imports) close() {
	im.mu.Lock()
	list := im.all()
	im.closed = true
	im.list.Store(nil)
	im.mu.Unlock()
	for _, e := range list {
		e.drop()
	}
}

// dropArena unmaps an arena that the peer has closed, once the owner is not in
// a call that may have looked it up.
func (n *conn) dropArena(id uint64) {
	e := n.imports.take(id)
	n.quiesceCall()
	e.drop()
}

// exports are the arenas that the peer was shown.
type exports struct {
	ids    atomic.Pointer[[]uint64]
	mu     sync.Mutex
	cancel map[uint64]func()
	unsent []arenaMessage // at most one a shown arena, and one more for each that was taken back
}

// arenaMessage shows an arena or, without one, takes it back.
type arenaMessage struct {
	message
	shows *driver.Arena // open: closing it removes the message
}

func (m *arenaMessage) send(sock *net.UnixConn) error {
	if m.shows == nil {
		return send(sock, &m.message)
	}
	return send(sock, &m.message, m.shows.FD())
}

func (x *exports) all() []uint64 {
	if l := x.ids.Load(); l != nil {
		return *l
	}
	return nil
}

// show makes sure that the peer receives an arena, which the caller
// holds. False if it cannot be.
func (n *conn) show(a *driver.Arena) bool {
	x := &n.exports
	id := a.ID()
	if slices.Contains(x.all(), id) {
		return true
	}
	if n.toSelf {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	ids := x.all()
	if slices.Contains(ids, id) {
		return true
	}
	if len(ids) >= maxArenas {
		return false
	}
	sock := n.sock
	m := message{kind: msgArena, arena: id, size: uint64(len(a.Bytes()))}
	if x.tell(sock, arenaMessage{m, a}) != nil {
		return false
	}
	if x.cancel == nil {
		x.cancel = make(map[uint64]func())
	}
	x.cancel[id] = a.AtClose(func() { x.takeBack(sock, id) })
	ids = append(ids[:len(ids):len(ids)], id)
	x.ids.Store(&ids)
	return true
}

// tell sends a message, after those that could not be sent before. One that does not fit into the socket is sent later:
// a peer that is stopped reads nothing, and nothing repeats the message. The caller holds mu.
func (x *exports) tell(sock *net.UnixConn, m arenaMessage) error {
	if len(x.unsent) == 0 {
		err := m.send(sock)
		if !isFull(err) {
			return err
		}
		polled.add(func() bool { return x.sendRest(sock) })
	}
	x.unsent = append(x.unsent, m)
	return nil
}

// isFull reports whether a message can be sent when the other end has read some.
func isFull(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ETOOMANYREFS)
}

// sendRest sends what is left to send. False if it did not fit, again.
func (x *exports) sendRest(sock *net.UnixConn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.unsent) > 0 {
		if isFull(x.unsent[0].send(sock)) { // after any other error the connection ends
			return false
		}
		x.unsent = slices.Delete(x.unsent, 0, 1)
	}
	return true
}

// takeBack makes room for another arena: the peer reads that this one is gone
// before it reads of that.
func (x *exports) takeBack(sock *net.UnixConn, id uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	shown := len(x.unsent)
	x.unsent = slices.DeleteFunc(x.unsent, func(m arenaMessage) bool { return m.arena == id })
	if len(x.unsent) == shown && x.tell(sock, arenaMessage{message: message{kind: msgForget, arena: id}}) != nil {
		return
	}
	ids := slices.DeleteFunc(slices.Clone(x.all()), func(v uint64) bool { return v == id })
	x.ids.Store(&ids)
	delete(x.cancel, id)
}

func (x *exports) close() {
	x.mu.Lock()
	list := x.cancel
	x.cancel, x.unsent = nil, nil
	x.mu.Unlock()
	for _, f := range list {
		f()
	}
}

// crossCopy copies between memory of this process and the peer's private memory at addr (Linux 3.2; needs the permission
// that ptrace does). errGone: what was read may be another process's memory.
func (n *conn) crossCopy(out bool, local []unix.Iovec, addr uint64, size int) error {
	if out && n.presence.replaced() {
		return errGone
	}
	err := crossMove(out, n.proc.pid, local, addr, size)
	if err != nil && n.presence.gone() || err == nil && !out && n.presence.replaced() {
		return errGone
	}
	return err
}

// crossMove calls the kernel by name: vectors that are passed to a function value would be allocated.
func crossMove(out bool, pid int, local []unix.Iovec, addr uint64, size int) error {
	for {
		remote := [1]unix.RemoteIovec{{Base: uintptr(addr), Len: size}}
		var k int
		var err error
		if out {
			k, err = unix.ProcessVMWritev(pid, local, remote[:], 0)
		} else {
			k, err = unix.ProcessVMReadv(pid, local, remote[:], 0)
		}
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ESRCH:
			return errGone
		case err != nil:
			return fmt.Errorf("cross-memory attach: %w", err)
		case k == size:
			return nil
		case k == 0:
			return fmt.Errorf("cross-memory attach: %w", unix.EFAULT)
		}
		local = advance(local, k)
		addr += uint64(k)
		size -= k
	}
}

// advance drops the first k bytes of a vector, in place.
func advance(v []unix.Iovec, k int) []unix.Iovec {
	for k > 0 && uint64(k) >= v[0].Len {
		k -= int(v[0].Len)
		v = v[1:]
	}
	if k > 0 {
		v[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(v[0].Base), k))
		v[0].Len -= uint64(k)
	}
	return v
}
