//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
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
