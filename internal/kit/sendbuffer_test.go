package kit_test

import (
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func TestWhatCanBeSent(t *testing.T) {
	for name, x := range map[string]struct {
		end   string
		phase driver.Phase
		out   bool
		bytes int
		want  error
	}{
		"nothing":                    {"up", driver.Idle, false, 0, nil},
		"the most":                   {"up", driver.Idle, false, 100, nil},
		"more":                       {"up", driver.Idle, false, 101, driver.ErrTooLong},
		"posted already":             {"up", driver.Posted, false, 1, driver.ErrInvalid},
		"not polled":                 {"up", driver.Done, false, 1, driver.ErrInvalid},
		"prefetched":                 {"up", driver.Prefetched, false, 1, driver.ErrInvalid},
		"buffer is out":              {"up", driver.Idle, true, 1, driver.ErrInvalid},
		"peer closed":                {"peer closed", driver.Idle, false, 1, driver.ErrClosed},
		"peer closed, buffer is out": {"peer closed", driver.Idle, true, 1, driver.ErrClosed},
		"broken":                     {"broken", driver.Idle, false, 1, driver.ErrBroken},
	} {
		l := established(t)
		var b kit.SendBuffer
		var other driver.Packet
		if x.out {
			b.Lend(&other, make([]byte, 8))
		}
		ends[x.end](l)
		p := driver.Packet{IOV: [][]byte{make([]byte, x.bytes)}}
		p.Driver.Phase = x.phase
		n, err := b.Admit(l, &p, 100)
		if !errors.Is(err, x.want) || (err == nil) != (x.want == nil) || err == nil && n != x.bytes {
			t.Errorf("%s: %d, %v; want %v", name, n, err, x.want)
		}
		// For a buffer the length does not matter yet, and on the large track prefetching is fine.
		err = b.Enter(l, &p)
		if want := x.want; want == driver.ErrTooLong && err != nil || want != driver.ErrTooLong && !errors.Is(err, want) {
			t.Errorf("%s: a buffer: %v; want %v", name, err, want)
		}
		if err == nil {
			l.Leave()
		}
		if x.phase == driver.Prefetched {
			if n, err := l.Admit("send", &p, 100); n != 1 || err != nil {
				t.Errorf("%s: %d, %v", name, n, err)
			}
		}
		if !l.Enter() { // no call is left inside
			t.Errorf("%s: Enter", name)
		}
	}
}

func TestSendBufferComesBack(t *testing.T) {
	for name, x := range map[string]struct {
		end   string
		n     int
		back  bool // and the owner is inside
		send  bool
		want  error
		stays bool // the buffer is out as before
	}{
		"is sent":              {"up", 8, true, true, nil, false},
		"is sent empty":        {"up", 0, true, true, nil, false},
		"is given up":          {"up", -1, true, false, nil, false},
		"beyond what fits":     {"up", 9, false, false, driver.ErrTooLong, true},
		"beyond the buffer":    {"up", 17, false, false, driver.ErrTooLong, true},
		"broken":               {"broken", 8, true, false, driver.ErrBroken, false},
		"broken, is given up":  {"broken", -1, true, false, nil, false},
		"closed meanwhile":     {"closed", 8, false, false, driver.ErrClosed, true},
		"closed, is given up":  {"closed", -1, false, false, driver.ErrClosed, true},
		"peer closed meantime": {"peer closed", 8, true, false, driver.ErrClosed, false},
	} {
		l := established(t)
		var b kit.SendBuffer
		var p, other driver.Packet
		if err := b.Enter(l, &p); err != nil {
			t.Fatal(err)
		}
		b.Lend(&p, make([]byte, 16, 32))
		l.Leave()
		if !b.Out() || cap(p.Buf) != 16 || p.Driver.Phase != driver.BufferOut {
			t.Fatalf("%s: out: %v, %d bytes, phase %v", name, b.Out(), cap(p.Buf), p.Driver.Phase)
		}
		for _, q := range []*driver.Packet{nil, &other} {
			if buf, _, err := b.Return(l, q, 1, 8); buf != nil || !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%s: another packet's: %v", name, err)
			}
		}
		ends[x.end](l)
		buf, send, err := b.Return(l, &p, x.n, 8)
		if (buf != nil) != x.back || send != x.send || !errors.Is(err, x.want) || (err == nil) != (x.want == nil) || b.Out() != x.stays {
			t.Errorf("%s: %d bytes, sent %v, %v, out %v; want %+v", name, len(buf), send, err, b.Out(), x)
		}
		if x.want != driver.ErrTooLong && (p.Buf != nil || p.Driver.Phase != driver.Idle) {
			t.Errorf("%s: the packet is not the caller's: phase %v", name, p.Driver.Phase)
		}
		if inside := !l.TryEnter(); x.end == "up" && inside != x.back {
			t.Errorf("%s: inside %v", name, inside)
		}
	}
}

func TestPollsOfPostedPackets(t *testing.T) {
	for phase, want := range map[driver.Phase]struct {
		done bool
		err  error
	}{
		driver.Done: {true, errLost}, driver.Posted: {false, nil}, driver.Canceling: {false, nil},
		driver.Idle: {true, driver.ErrInvalid}, driver.BufferOut: {true, driver.ErrInvalid},
	} {
		l := established(t)
		var p driver.Packet
		p.Driver.Finish(errLost)
		p.Driver.Phase = phase
		if done, err := l.Polled("send", &p); done != want.done || !errors.Is(err, want.err) {
			t.Errorf("phase %v: %v, %v; want %+v", phase, done, err, want)
		}
	}
}
