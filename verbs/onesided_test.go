//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/integrity"
)

// TestShortOperationsRegisterNothing: short puts and gets of memory that is not registered are copied, longer ones are
// registered, and every byte arrives in either case.
func TestShortOperationsRegisterNothing(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	mem := make([]byte, 1<<16)
	region, err := b.ctx.Register(mem, driver.RemoteRead|driver.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	one := a.api.(driver.OneSided)
	remote, err := one.Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	finish := func(op *driver.Op, err error) {
		t.Helper()
		for done := false; err == nil && !done; {
			done, err = one.OpPoll(op)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		n         int
		registers bool
	}{{inlineSize + 1, false}, {1000, false}, {opBounce, false}, {opBounce + 1, true}} {
		var before, after driver.Counters
		a.ctx.Counters(&before)
		for round := range 3 {
			src, dst := bytes.Repeat([]byte{byte(x.n + round)}, x.n), make([]byte, x.n)
			put := driver.Op{Local: src, Remote: remote, Offset: 7}
			finish(&put, one.PutPost(&put))
			if !bytes.Equal(mem[7:7+x.n], src) {
				t.Fatalf("put %d: other bytes have arrived", x.n)
			}
			get := driver.Op{Local: dst, Remote: remote, Offset: 7}
			finish(&get, one.GetPost(&get))
			if !bytes.Equal(dst, src) {
				t.Fatalf("get %d: other bytes have arrived", x.n)
			}
		}
		a.ctx.Counters(&after)
		if n := after.RegistrationMisses - before.RegistrationMisses; (n > 0) != x.registers {
			t.Errorf("%d bytes: %d registrations, want some: %v", x.n, n, x.registers)
		}
	}
	if err := region.Deregister(); err != nil {
		t.Fatal(err)
	}
}

// TestArenaIsHeldByOperations: an arena whose memory a device reads or writes for an operation cannot be closed.
func TestArenaIsHeldByOperations(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	const n = 4 << 20
	region, err := b.ctx.Register(make([]byte, n), driver.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	one := a.api.(driver.OneSided)
	remote, err := one.Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	arena, err := driver.NewArena(n)
	if err != nil {
		t.Fatal(err)
	}
	op := driver.Op{Local: arena.Bytes(), Remote: remote}
	if !a.Enter() { // the keep-alive does not end the operation meanwhile
		t.Fatal("the instance has ended")
	}
	if r, err := a.checkOp(&op, kit.OpGet); err != nil {
		t.Fatal(err)
	} else if err := a.startOp(&op, kit.OpGet, r); err != nil {
		t.Fatal(err)
	}
	a.pushOps()
	if err := arena.Close(); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("closing the arena meanwhile: %v, want %v", err, driver.ErrBusy)
	}
	a.Leave()
	within(t, "the operation", func() bool {
		done, err := one.OpPoll(&op)
		if err != nil {
			t.Fatal(err)
		}
		return done
	})
	if err := arena.Close(); err != nil {
		t.Error(err)
	}
}

// TestReadOnlyMemoryCanBeRead: peers can read memory that this process can only read, too.
func TestReadOnlyMemoryCanBeRead(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	copy(mem, "not to be changed")
	if err := unix.Mprotect(mem, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	region, err := b.ctx.Register(mem, driver.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	one := a.api.(driver.OneSided)
	remote, err := one.Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	op := driver.Op{Local: make([]byte, len(mem)), Remote: remote}
	if err := one.GetPost(&op); err != nil {
		t.Fatal(err)
	}
	within(t, "the operation", func() bool {
		done, err := one.OpPoll(&op)
		if err != nil {
			t.Fatal(err)
		}
		return done
	})
	if !bytes.Equal(op.Local, mem) {
		t.Error(integrity.Errorf("other bytes have arrived"))
	}
	theirs, err := a.ctx.Register(make([]byte, len(mem)), driver.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	two := b.api.(driver.OneSided)
	source, err := two.Import(theirs.Key())
	if err != nil {
		t.Fatal(err)
	}
	err = two.GetPost(&driver.Op{Local: mem, LocalRegion: region, Remote: source})
	if !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("reading into it: %v, want %v", err, driver.ErrInvalid)
	}
	if _, err := b.ctx.Register(mem, driver.RemoteWrite); err == nil {
		t.Error("peers may write to it")
	}
	if err := region.Deregister(); err != nil {
		t.Fatal(err)
	}
}

// TestOperationsAtDisconnect: an operation that is under way when its side disconnects comes back once the device is
// outside of its memory, which it then stays, and its registration is released, also if nobody polls it.
func TestOperationsAtDisconnect(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		for _, n := range []int{opBounce, 1 << 20} {
			for _, polls := range []bool{true, false} {
				a, b := pair(t, track, nil)
				region, err := b.ctx.Register(make([]byte, n), driver.RemoteRead)
				if err != nil {
					t.Fatal(err)
				}
				one := a.api.(driver.OneSided)
				remote, err := one.Import(region.Key())
				if err != nil {
					t.Fatal(err)
				}
				const depth = 8 // not all of them are done at once
				mem := make([]byte, depth*n)
				var ops [depth]driver.Op
				for k := range ops {
					ops[k] = driver.Op{Local: mem[k*n : (k+1)*n], Remote: remote}
					if err := one.GetPost(&ops[k]); err != nil {
						t.Fatal(err)
					}
				}
				if err := a.api.Disconnect(); err != nil {
					t.Fatal(err)
				}
				for k := range ops {
					for done := !polls; !done; {
						var err error
						if done, err = one.OpPoll(&ops[k]); err != nil && !errors.Is(err, driver.ErrClosed) {
							t.Errorf("%v, %d bytes: %v", track, n, err)
						}
					}
				}
				if polls {
					copy(mem, bytes.Repeat([]byte{2}, len(mem)))
				}
				if err := a.ctx.Self().Close(); err != nil {
					t.Errorf("%v, %d bytes, polled %v: %v", track, n, polls, err)
				}
				if polls && bytes.Count(mem, []byte{2}) != len(mem) {
					t.Errorf("%v, %d bytes: the memory was written after it had come back", track, n)
				}
			}
		}
	}
}
