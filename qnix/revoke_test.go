//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"bytes"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/nic"
)

// A receive that is cancelled while its sender is posting ends the send: the command to cancel it, which was posted
// before the send, has no effect, and the message, longer than what the NIC keeps, would wait for ever.
func TestCancelWhileTheSendIsPosted(t *testing.T) {
	const n = 8 << 20
	a, b := openProcess(t, driver.Large, testSecret), openProcess(t, driver.Large, testSecret)
	x, err := a.Connect(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.Connect(a.URL())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []driver.Instance{x, y} {
		if err := connected(i); err != nil {
			t.Fatal(err)
		}
	}
	in := driver.Packet{IOV: [][]byte{make([]byte, n)}}
	if err := y.RecvPost(&in); err != nil {
		t.Fatal(err)
	}
	// What StartSend does, with the peer's message in the middle.
	l := x.(*large)
	out := driver.Packet{IOV: [][]byte{make([]byte, n)}, RdvData: bytes.Clone(in.RdvData)}
	k := l.Sends.Free()
	s := &l.out[k]
	if err := s.rdv.parse(out.RdvData, &l.theirs); err != nil {
		t.Fatal(err)
	}
	if err := l.acquire(&s.memory, &out, n, transferDepth+k, nic.Read); err != nil {
		t.Fatal(err)
	}
	s.asked = false
	s.doorbell.reset()
	if _, err := l.claim(k); err != nil {
		t.Fatal(err)
	}
	if err := y.RecvCancel(&in); err != nil {
		t.Fatal(err)
	}
	until := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(maxWait); !f(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not within %v", what, maxWait)
			}
			_, _ = y.RecvPoll(&in)
			a.Drain()
		}
	}
	until("the peer's message", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return s.asked
	})
	m := nic.Message{Peer: l.name, Tag: s.rdv.tag, Len: n, Flags: nic.Doorbell, Descriptors: s.memory.descriptors()}
	if !l.posted(a.proc.Post(nic.Send, l.sends.at+k, &m)) {
		t.Fatal("the send is not posted")
	}
	l.launched(k)
	l.ctx.kick()
	until("the send ends", func() bool {
		state, _ := s.doorbell.read()
		return state == nic.Canceled
	})
	l.release(&s.memory)
	l.unlaunch(k, nic.Canceled)
}
