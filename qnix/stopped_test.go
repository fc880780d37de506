//go:build linux && !(386 || arm || mips || mipsle)

package qnix_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix"
)

// A NIC in user space that is stopped may be in the middle of a copy. When the context is closed meanwhile, what is
// posted stays posted, and is given back when the NIC goes on, or dies.
func TestStoppedNICHoldsWhatIsPosted(t *testing.T) {
	for _, tt := range []struct {
		name string
		sig  unix.Signal
	}{{"goes on", unix.SIGCONT}, {"dies", unix.SIGKILL}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			path, pid := qnix.OwnNIC(t)
			h := driver.Hints{Track: driver.Large, Options: map[string]string{"dead-time": "100ms"}}
			a, b := open(t, path, h, driver.Attributes{}), open(t, path, h, driver.Attributes{})
			t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) }) // before they are closed
			x, y := connect(t, a, b)
			const size = 8 << 20
			in, out := make([]byte, size), make([]byte, size)
			r, s := &driver.Packet{IOV: [][]byte{in}}, &driver.Packet{IOV: [][]byte{out}}
			if err := y.RecvPost(r); err != nil {
				t.Fatal(err)
			}
			s.RdvData = bytes.Clone(r.RdvData)
			lone := &driver.Packet{IOV: [][]byte{make([]byte, size)}} // nothing is sent to it
			if err := y.RecvPost(lone); err != nil {
				t.Fatal(err)
			}
			if err := x.SendPost(s); err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil { // mostly in the middle of the message
				t.Fatal(err)
			}
			await(t, "the NIC stops", func() bool { return qnix.Halted(pid) })
			closed := make(chan error, 2)
			for _, c := range []driver.Context{a, b} {
				go func() { closed <- c.Close() }()
			}
			for range 2 {
				select {
				case err := <-closed:
					if err != nil {
						t.Errorf("close: %v", err)
					}
				case <-time.After(limit):
					t.Fatal("close waits for a NIC that is stopped")
				}
			}
			for range 20 {
				if done, err := y.RecvPoll(lone); done {
					t.Fatalf("receive is done (%v) while the NIC is stopped", err)
				}
			}
			if err := unix.Kill(pid, tt.sig); err != nil {
				t.Fatal(err)
			}
			for what, poll := range map[string]func() (bool, error){
				"receive": func() (bool, error) { return y.RecvPoll(r) }, "lone receive": func() (bool, error) { return y.RecvPoll(lone) }, "send": func() (bool, error) { return x.SendPoll(s) },
			} {
				await(t, what, func() bool {
					done, err := poll()
					if done && err != nil && !errors.Is(err, driver.ErrClosed) && !errors.Is(err, driver.ErrBroken) {
						t.Errorf("%s: %v", what, err)
					}
					return done
				})
			}
			for k := range in {
				in[k] = 0xc5
			}
			await(t, "the NIC", func() bool { return bytes.Count(in, []byte{0xc5}) == size })
		})
	}
}
