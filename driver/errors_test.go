package driver_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
)

func TestErrorsNameWhatFailed(t *testing.T) {
	for _, c := range []struct {
		err  error
		is   []error
		want string
	}{
		{&driver.Error{Driver: "shm", Op: "open", Err: driver.ErrInvalid}, []error{driver.ErrInvalid}, "shm: open: invalid argument"},
		{&driver.Error{Driver: "shm", Peer: "shm:1:00", Op: "send", Err: driver.ErrTooLong},
			[]error{driver.ErrTooLong, driver.ErrInvalid}, "shm: send shm:1:00: invalid argument: message too long"},
		{&driver.Error{Driver: "shm", Peer: "from\nelsewhere", Op: "connect", Err: driver.ErrClosed},
			[]error{driver.ErrClosed}, `shm: connect "from\nelsewhere": connection closed`},
		{&driver.TruncatedError{Message: 100, Buffer: 64}, []error{driver.ErrTruncated}, "message truncated: 100 bytes sent, receive buffer holds 64"},
		{&driver.Error{Driver: "x", Op: "receive", Err: &driver.TruncatedError{}}, []error{driver.ErrTruncated}, ""},
		{&driver.UnavailableError{Driver: "verbs", Reason: "no device", Remedy: "load rdma_rxe"},
			[]error{driver.ErrUnsupported, errors.ErrUnsupported}, "verbs unavailable: no device (load rdma_rxe)"},
		{&driver.UnavailableError{Driver: "verbs", Device: "mlx5_0", Reason: "cannot open", Err: io.EOF},
			[]error{driver.ErrUnsupported, io.EOF}, "verbs mlx5_0 unavailable: cannot open: EOF"},
	} {
		for _, is := range c.is {
			if !errors.Is(c.err, is) {
				t.Errorf("%v: is not %v", c.err, is)
			}
		}
		if got := c.err.Error(); c.want != "" && got != c.want || strings.Contains(got, "\n") {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if errors.Is(&driver.Error{Err: driver.ErrClosed}, driver.ErrBroken) {
		t.Error("closed is broken")
	}
}

func TestNames(t *testing.T) {
	if got := driver.Small.String() + " " + driver.Large.String(); got != "small large" {
		t.Errorf("tracks are %q", got)
	}
	if got := driver.CompareSwap.String() + " " + (driver.CompareSwap + 1).String(); got != "compare-and-swap unknown" {
		t.Errorf("atomics are %q", got)
	}
	s := driver.AtomicsOf(driver.Add, driver.CompareSwap)
	if !s.Has(driver.Add) || s.Has(driver.Xor) || !s.Has(driver.CompareSwap) || driver.AllAtomics.Has(driver.CompareSwap+1) {
		t.Errorf("set %b", s)
	}
}
