package shm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// maxArenas is how many arenas a connection maps of its peer, and shows it. In
// further ones memory is treated as private.
const maxArenas = 64

// imported is an arena of the peer; base is nil if it could not be mapped.
type imported struct {
	id   uint64
	base unsafe.Pointer
	size uint64
}

// imports are the arenas of the peer. The monitor writes, the owner reads.
type imports struct {
	list atomic.Pointer[[]imported]
}

func (im *imports) all() []imported {
	if l := im.list.Load(); l != nil {
		return *l
	}
	return nil
}

// add maps an arena that the peer has shown. It owns fd. What cannot be mapped
// is listed too, so that nobody waits for it.
func (im *imports) add(id, size uint64, fd int) {
	defer unix.Close(fd)
	list := im.all()
	e := imported{id: id}
	if len(list) < maxArenas && size < 1<<46 && checkSealed(fd, int64(size)) == nil {
		if p, err := mapShared(fd, int(size), unix.PROT_READ|unix.PROT_WRITE); err == nil {
			_ = unix.Madvise(unsafe.Slice((*byte)(p), size), unix.MADV_HUGEPAGE) // costs only speed
			e.base, e.size = p, size
		}
	}
	next := append(list[:len(list):len(list)], e)
	im.list.Store(&next)
}

// find looks an arena up. known is false while the peer's message about it is
// still on its way.
func (im *imports) find(id, off, n uint64) (p unsafe.Pointer, known, ok bool) {
	for i := range im.all() {
		e := &im.all()[i]
		if e.id != id {
			continue
		}
		if e.base == nil || off > e.size || n > e.size-off {
			return nil, true, false
		}
		return unsafe.Add(e.base, off), true, true
	}
	return nil, false, false
}

// take removes an arena from the list; the caller unmaps it.
func (im *imports) take(id uint64) (e imported) {
	var next []imported
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

func (e *imported) unmap() {
	if e.base != nil {
		_ = unix.MunmapPtr(e.base, uintptr(e.size))
	}
}

func (im *imports) close() {
	list := im.all()
	im.list.Store(nil)
	for i := range list {
		list[i].unmap()
	}
}

// dropArena unmaps an arena that the peer has closed, once the owner is not in
// a call that may have looked it up.
func (n *conn) dropArena(id uint64) {
	e := n.imports.take(id)
	n.quiesceCall()
	e.unmap()
}

// exports are the arenas that the peer was shown.
type exports struct {
	ids    atomic.Pointer[[]uint64]
	mu     sync.Mutex
	cancel []func()
}

func (x *exports) has(id uint64) bool {
	if l := x.ids.Load(); l != nil {
		for _, v := range *l {
			if v == id {
				return true
			}
		}
	}
	return false
}

// show makes sure that the peer has been told of an arena, which the caller
// holds. False if it cannot be.
func (n *conn) show(a *driver.Arena) bool {
	x := &n.exports
	id := a.ID()
	if x.has(id) {
		return true
	}
	if n.toSelf || n.ctx.opts.noArena {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.has(id) {
		return true
	}
	var ids []uint64
	if l := x.ids.Load(); l != nil {
		ids = *l
	}
	if len(ids) >= maxArenas {
		return false
	}
	sock := n.sock
	m := message{kind: msgArena, arena: id, size: uint64(len(a.Bytes()))}
	if err := send(sock, &m, a.FD()); err != nil {
		return false
	}
	x.cancel = append(x.cancel, a.AtClose(func() { _ = send(sock, &message{kind: msgForget, arena: id}) }))
	ids = append(ids[:len(ids):len(ids)], id)
	x.ids.Store(&ids)
	return true
}

func (x *exports) close() {
	x.mu.Lock()
	list := x.cancel
	x.cancel = nil
	x.mu.Unlock()
	for _, f := range list {
		f()
	}
}

// copyIn and copyOut move bytes between this process's memory and the peer's
// private memory at addr (Linux 3.2; needs the permission that ptrace does).
func (p *process) copyIn(local []unix.Iovec, addr uint64, n int) error {
	return p.transfer(local, addr, n, unix.ProcessVMReadv)
}

func (p *process) copyOut(local []unix.Iovec, addr uint64, n int) error {
	return p.transfer(local, addr, n, unix.ProcessVMWritev)
}

func (p *process) transfer(local []unix.Iovec, addr uint64, n int, f func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error)) error {
	for {
		// A pid that was given away again would be somebody else's memory.
		if p.dead() {
			return driver.ErrBroken
		}
		remote := [1]unix.RemoteIovec{{Base: uintptr(addr), Len: n}}
		k, err := f(p.pid, local, remote[:], 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("cross-memory attach: %w", err)
		case k == n:
			return nil
		case k == 0:
			return fmt.Errorf("cross-memory attach: %w", unix.EFAULT)
		}
		local = advance(local, k)
		addr += uint64(k)
		n -= k
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
