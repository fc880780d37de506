//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/bywash/bywash/verbs/ibv"
)

func TestRegistrationErrorsNameTheCause(t *testing.T) {
	c := open(t)
	pd := closing[*ibv.PD](t)(c.AllocPD())
	reg := func(_ *ibv.MR, err error) error { return err }
	wantErrno(t, reg(pd.RegMR(nil, 0)), syscall.EINVAL, "no memory")
	wantErrno(t, reg(pd.RegMR(make([]byte, 8), ibv.AccessRemoteWrite)), syscall.EINVAL, "local write")
	hole := ok[[]byte](t)(syscall.Mmap(-1, 0, 4096, syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON))
	gone := uint64(uintptr(unsafe.Pointer(&hole[0])))
	must(t, syscall.Munmap(hole))
	wantErrno(t, reg(pd.RegMRAt(gone, 4096, gone, 0)), syscall.EFAULT, "not (completely) mapped")
	wantErrno(t, reg(pd.RegMRAt(1<<40, 1<<63, 1<<63+1, 0)), syscall.EINVAL)

	ro, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	must(t, err)
	defer syscall.Munmap(ro)
	if err := reg(pd.RegMR(ro, ibv.AccessLocalWrite)); err == nil {
		t.Error("read-only memory registered for writing")
	}
}

func TestIOVAIsWhatPeersAddress(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	mem := make([]byte, 8192)
	addr := uint64(uintptr(unsafe.Pointer(&mem[0])))
	var pin runtime.Pinner
	pin.Pin(&mem[0])
	defer pin.Unpin()
	mr, err := b.pd.RegMRAt(addr, 8192, addr&0xfff+0x7000000, allAccess)
	closing[*ibv.MR](t)(mr, err)
	a.mem[0] = 77
	a.next(1, 0, 1).Write(mr.Addr()+5000, mr.RKey())
	a.post()
	a.done(1, ibv.WCWrite)
	if mem[5000] != 77 {
		t.Errorf("byte %d, want 77", mem[5000])
	}
}

func TestRegisteredHeapMemorySurvivesCollections(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	mr := ok[*ibv.MR](t)(b.pd.RegMR(make([]byte, 1<<16), allAccess)) // nothing else refers to the slice
	for i := range 10 {
		runtime.GC()
		garbage := make([][]byte, 20)
		for j := range garbage {
			garbage[j] = make([]byte, 1<<16)
		}
		fill(a.mem[:64], byte(i))
		a.next(1, 0, 64).Write(mr.Addr(), mr.RKey())
		a.next(2, 64, 64).Read(mr.Addr(), mr.RKey())
		a.post()
		a.done(1, ibv.WCWrite)
		a.done(2, ibv.WCRead)
		if string(a.mem[:64]) != string(a.mem[64:128]) {
			t.Fatalf("round %d: read back other bytes", i)
		}
		for j := range garbage {
			for _, v := range garbage[j] {
				if v != 0 {
					t.Fatalf("round %d: a write ran into other memory", i)
				}
			}
		}
	}
	must(t, mr.Close())
	a.next(3, 0, 64).Write(mr.Addr(), mr.RKey())
	a.post()
	a.failed(3, ibv.WCRemoteAccess)
}

// windowPair is a pair whose target region allows windows.
func windowPair(t *testing.T) (a, b *end, mw *ibv.MW) {
	t.Helper()
	a, b = newPair(t, pairOptions{mrAccess: ibv.AccessLocalWrite | ibv.AccessMWBind, size: 1 << 13})
	if !a.c.Query().MemoryWindow2 {
		t.Skip("the device has no windows of type 2")
	}
	return a, b, closing[*ibv.MW](t)(b.pd.AllocMW())
}

// try writes through a key and returns how that ended; a failure is answered by connecting anew.
func try(a, b *end, addr uint64, rkey uint32) ibv.WCStatus {
	a.t.Helper()
	a.next(9, 0, 8).Write(addr, rkey)
	a.post()
	wc := a.completion()
	if wc.ID != 9 {
		a.t.Fatalf("completion %d", wc.ID)
	}
	if wc.Status != ibv.WCSuccess {
		o := withDefaults(pairOptions{})
		for _, e := range []*end{a, b} {
			must(a.t, e.qp.ToReset())
		}
		connect(a.t, a, b, o)
		connect(a.t, b, a, o)
	}
	return wc.Status
}

// After its owner or its peer has invalidated a memory window, writes through it fail.
func TestWindowIsRevokedByEitherSide(t *testing.T) {
	a, b, mw := windowPair(t)
	if s := try(a, b, b.mr.Addr(), b.mr.RKey()); s != ibv.WCRemoteAccess {
		t.Fatalf("the region's own key allows writes: %v", s)
	}
	bind := func() uint32 {
		key := ibv.IncRKey(mw.RKey())
		w := b.s.BindMW(mw, b.mr, b.mr.Addr(), 128, key, ibv.AccessRemoteWrite)
		w.ID, w.Flags = 5, ibv.SendSignaled
		b.post()
		b.done(5, ibv.WCBindMW)
		return key
	}
	key := bind()
	a.mem[0] = 44
	if s := try(a, b, b.mr.Addr(), key); s != ibv.WCSuccess || b.mem[0] != 44 {
		t.Fatalf("through the window: %v, byte %d", s, b.mem[0])
	}
	w := b.s.Next()
	w.ID, w.Flags = 6, ibv.SendSignaled
	w.LocalInv(key)
	b.post()
	b.done(6, ibv.WCLocalInv)
	a.mem[0] = 45
	if s := try(a, b, b.mr.Addr(), key); s != ibv.WCRemoteAccess || b.mem[0] != 44 {
		t.Errorf("a late write after LocalInv: %v, byte %d", s, b.mem[0])
	}

	key = bind()
	b.recv(1, 4096, 8)
	s := a.s.Next()
	s.ID, s.Flags = 7, ibv.SendSignaled
	s.SendInv(key)
	a.post()
	a.done(7, ibv.WCSend)
	wc := b.done(1, ibv.WCRecv)
	if wc.Flags&ibv.WCWithInv == 0 || wc.InvalidatedRKey() != key {
		t.Errorf("flags %#x, key %#x; want WCWithInv, %#x", wc.Flags, wc.InvalidatedRKey(), key)
	}
	if s := try(a, b, b.mr.Addr(), key); s != ibv.WCRemoteAccess || b.mem[0] != 44 {
		t.Errorf("a late write after SendInv: %v, byte %d", s, b.mem[0])
	}
}

func TestWindowMisuseIsRefused(t *testing.T) {
	a, b, mw := windowPair(t)
	b.s.BindMW(mw, a.mr, a.mr.Addr(), 8, 1, 0) // of another protection domain
	_, err := b.qp.PostSend(b.s)
	wantErrno(t, err, syscall.EINVAL, "protection domain")
	b.s.Reset()
	b.s.BindMW(mw, b.mr, b.mr.Addr(), 8, 1, 0)
	must(t, mw.Close())
	_, err = b.qp.PostSend(b.s)
	wantErrno(t, err, syscall.EBADF, "memory window is closed")
}
