//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"bytes"
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
