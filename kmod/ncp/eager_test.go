//go:build linux && cgo

package ncp

import (
	"bytes"
	"fmt"
	"testing"
)

const (
	frameHeader = 20
	requestSize = frameHeader + 28
	replySize   = frameHeader + 16
)

// hand carries the frames from one NIC to another, takes some steps there, and returns the frames' sizes.
func (c *cluster) hand(from, to int) (sizes []int) {
	for _, f := range c.frames(from, to) {
		sizes = append(sizes, len(f)/2)
	}
	c.nodes[to].nic.step(50)
	return sizes
}

func wantSizes(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s: got frames of %v bytes, want %v", what, got, want)
	}
}

// far is a on NIC 1 and b on NIC 2, which has local memory or not.
func far(t *testing.T, packet, local uint32) (c *cluster, a, b *process) {
	l := limits
	l.packetSize, l.localMemory = packet, local
	return pair(t, 2, l)
}

// A message of up to 1 KiB, whose frame is not longer than a packet's, is received after one frame, and its send is done
// after another one.
func TestShortMessageCrossesOnce(t *testing.T) {
	for _, tc := range []struct {
		packet uint32
		n      int
		once   bool
	}{
		{1024, 0, true}, {1024, 1, true}, {1024, 996, true}, {1024, 997, false},
		{4096, 1024, true}, {4096, 1025, false},
	} {
		for _, first := range []string{"receive", "send"} {
			t.Run(fmt.Sprintf("packet=%d/%d/%s first", tc.packet, tc.n, first), func(t *testing.T) {
				c, a, b := far(t, tc.packet, 1<<20)
				from, h := a.memory(t, tc.n, readAccess)
				to, th := b.memory(t, tc.n, writeAccess)
				fill(from, 5)
				receive := func() {
					b.recv(0, message{peer: "a", tag: 1, len: tc.n, flags: flagDoorbell, descriptors: pieces(th, tc.n, 400)})
					c.nodes[1].nic.step(50)
				}
				if first == "receive" {
					receive()
				}
				a.send(0, message{peer: "b", tag: 1, len: tc.n, flags: flagDoorbell, descriptors: pieces(h, tc.n, 300)})
				c.nodes[0].nic.step(50)
				if !tc.once {
					wantSizes(t, "request", c.hand(0, 1), requestSize)
					c.run()
					if first == "send" {
						receive()
					}
					a.wantSend(t, 0, done, tc.n)
					b.wantRecv(t, 0, done, tc.n)
					return
				}
				wantSizes(t, "request", c.hand(0, 1), requestSize+tc.n)
				a.wantSend(t, 0, free, 0)
				if first == "send" {
					receive()
				}
				b.wantRecv(t, 0, done, tc.n)
				if !bytes.Equal(from, to) {
					t.Fatal("other bytes arrived")
				}
				wantSizes(t, "reply", c.hand(1, 0), replySize)
				a.wantSend(t, 0, done, tc.n)
				wantSizes(t, "more", c.hand(0, 1))
				s, r := a.node.nic.statistics(), b.node.nic.statistics()
				if s.packetsSent != 1 || s.bytesSent != uint64(tc.n) || r.packetsReceived != 1 || r.bytesReceived != uint64(tc.n) {
					t.Errorf("sent %d packets, %d bytes, received %d, %d, want 1, %d",
						s.packetsSent, s.bytesSent, r.packetsReceived, r.bytesReceived, tc.n)
				}
			})
		}
	}
}

// crumble spreads n bytes over n descriptors of the pool.
func crumble(_ *process, h uint32, n int) message {
	return message{len: n, flags: flagDoorbell | flagPool, descriptors: crumbs(h, n)}
}

// A short message that cannot be delivered with its request arrives whole as others do, when that is possible.
func TestShortMessageThatIsNotTaken(t *testing.T) {
	const n = 600
	for _, tc := range []struct {
		name     string
		local    uint32
		from, to func(p *process, h uint32, n int) message
		late     bool // the receive comes when the request has been remembered
		request  int
	}{
		{"no receive, no local memory", 0, nil, nil, true, requestSize + n},
		{"sender's descriptors are more than a step's", 0, crumble, nil, false, requestSize},
		{"receiver's descriptors are more than a step's", 0, nil, crumble, false, requestSize + n},
		{"receiver's, from local memory", 1 << 20, nil, crumble, true, requestSize + n},
		{"both", 0, crumble, crumble, false, requestSize},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := limits
			l.localMemory = tc.local
			c := newCluster(t, 2, l)
			r := registrationSizes{commands: 16, sends: 2, receives: 2, regionSize: 1024, poolEntries: n}
			a, _ := c.nodes[0].begin("a", "", 0, r)
			b, _ := c.nodes[1].begin("b", "", 0, r)
			c.run()
			from, h := a.memory(t, n, readAccess)
			to, th := b.memory(t, n, writeAccess)
			fill(from, 7)
			whole := func(_ *process, h uint32, n int) message {
				return message{len: n, flags: flagDoorbell, descriptors: []descriptor{{h, uint32(n), 0}}}
			}
			form := func(f func(*process, uint32, int) message, p *process, h uint32, peer string) message {
				if f == nil {
					f = whole
				}
				m := f(p, h, n)
				m.peer, m.tag = peer, 1
				return m
			}
			if !tc.late {
				b.recv(0, form(tc.to, b, th, "a"))
				c.run()
			}
			a.send(0, form(tc.from, a, h, "b"))
			c.nodes[0].nic.step(50)
			wantSizes(t, "request", c.hand(0, 1), tc.request)
			c.run()
			if tc.late {
				b.recv(0, form(tc.to, b, th, "a"))
				c.run()
			}
			a.wantSend(t, 0, done, n)
			b.wantRecv(t, 0, done, n)
			if !bytes.Equal(from, to) {
				t.Fatal("other bytes arrived")
			}
			if s := b.node.nic.statistics(); s.packetsReceived != 1 || s.bytesReceived != n {
				t.Errorf("received %d packets, %d bytes, want 1, %d", s.packetsReceived, s.bytesReceived, n)
			}
		})
	}
}

func TestShortMessageFails(t *testing.T) {
	const n = 100
	inline := func(peer string, n int) message {
		return message{peer: peer, tag: 1, len: n, flags: flagDoorbell | flagInline}
	}
	for _, tc := range []struct {
		name               string
		send, receive      message // without a handle: in memory without the access
		room               bool    // the receiver's NIC has memory
		request            int
		sent, received     state
		sentLen, recvedLen int
	}{
		{"sender's memory faults", message{peer: "b", tag: 1, len: n, flags: flagDoorbell}, inline("a", n), true, requestSize, fault, fault, 0, 0},
		{"receiver's memory faults", inline("b", n), message{peer: "a", tag: 1, len: n, flags: flagDoorbell}, true, requestSize + n, done, fault, n, 0},
		{"room too small", inline("b", n), inline("a", n-1), true, requestSize + n, done, truncated, n, n},
		{"refused", inline("b", n), message{}, false, requestSize + n, noMemory, free, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, a, b := far(t, 1024, 1<<20)
			fill(a.region(false, 0), 1)
			if tc.receive.peer != "" {
				b.recv(0, tc.receive)
				c.run()
			}
			if !tc.room {
				b.node.nic.failAfter(0)
			}
			a.send(0, tc.send)
			c.nodes[0].nic.step(50)
			wantSizes(t, "request", c.hand(0, 1), tc.request)
			c.run()
			b.node.nic.failAfter(-1)
			a.wantSend(t, 0, tc.sent, tc.sentLen)
			b.wantRecv(t, 0, tc.received, tc.recvedLen)
			if to, from := b.region(true, 0), a.region(false, 0); tc.received == truncated &&
				(!bytes.Equal(to[:n-1], from[:n-1]) || to[n-1] != 0) {
				t.Error("not the first bytes, or more than them")
			}
			stillWorks(t, c, a, b)
		})
	}
}

// A request overtakes no message that waits for room, and goes without its message into a FIFO that is too full for both.
func TestShortMessageFindsAFullFIFO(t *testing.T) {
	const n = 900
	c, a, b := newPair(t, 1200) // room for one packet
	for i := range uint16(3) {
		fill(a.region(false, i)[:n], byte(i))
		b.recv(i, message{peer: "a", tag: i, len: n, flags: flagDoorbell | flagInline})
	}
	c.run()
	for i := range uint16(3) {
		a.send(i, message{peer: "b", tag: i, len: n, flags: flagDoorbell | flagInline})
	}
	c.nodes[0].nic.step(1) // reads one command
	c.nodes[0].nic.step(1)
	wantSizes(t, "first frames", c.hand(0, 1), requestSize+n)
	c.nodes[0].nic.step(1)
	c.nodes[0].nic.step(1)
	if got := c.hand(0, 1); len(got) == 0 || got[0] != requestSize {
		t.Errorf("got frames of %v bytes, want %d first", got, requestSize)
	}
	c.run()
	for i := range uint16(3) {
		a.wantSend(t, i, done, n)
		b.wantRecv(t, i, done, n)
		if !bytes.Equal(b.region(true, i)[:n], a.region(false, i)[:n]) {
			t.Errorf("message %d: other bytes arrived", i)
		}
	}
}

// CANCELED says that the receiver does not have the message, DONE that it has, wherever cancel and answer meet.
func TestCancelOfAShortMessage(t *testing.T) {
	for n := range 2 {
		for _, tc := range []struct {
			name string
			meet func(c *cluster, a, b *process, receive, cancel func())
			want state
		}{
			{"remembered", func(c *cluster, a, b *process, receive, cancel func()) { c.run(); cancel() }, canceled},
			{"with its request", func(c *cluster, a, b *process, receive, cancel func()) { cancel() }, canceled},
			{"twice", func(c *cluster, a, b *process, receive, cancel func()) { c.run(); cancel(); cancel() }, canceled},
			{"crosses the reply of a receive that took it", func(c *cluster, a, b *process, receive, cancel func()) {
				receive()
				c.hand(0, 1)
				cancel()
			}, done},
			{"crosses the permission", func(c *cluster, a, b *process, receive, cancel func()) {
				c.run()
				receive()
				cancel()
			}, canceled},
			{"crosses the refusal", func(c *cluster, a, b *process, receive, cancel func()) {
				b.node.nic.failAfter(0)
				c.hand(0, 1)
				cancel()
			}, noMemory},
			{"crosses the receiver's end", func(c *cluster, a, b *process, receive, cancel func()) {
				c.run()
				b.end()
				b.node.nic.step(50)
				cancel()
			}, gone},
			{"the NIC dies", func(c *cluster, a, b *process, receive, cancel func()) {
				c.run()
				cancel()
				c.nodes[0].nic.drop(2)
				c.nodes[0].driver(driverCommand{command: removeNIC, nic: 2})
			}, gone},
		} {
			t.Run(fmt.Sprintf("%d/%s", n, tc.name), func(t *testing.T) {
				c, a, b := far(t, 1024, 0)
				if n == 0 {
					// An empty message fits even into no local memory: a longer one is in the way.
					a.send(7, message{peer: "b", tag: 9, len: 10, flags: flagInline})
					c.run()
				}
				receive := func() {
					b.recv(0, message{peer: "a", tag: 1, len: 10, flags: flagDoorbell | flagInline})
					b.node.nic.step(50)
				}
				cancel := func() {
					a.post(cmdCancelSend, 0, 0, "")
					a.node.nic.step(50)
					a.wantSend(t, 0, free, 0)
				}
				a.send(0, message{peer: "b", tag: 1, len: n, flags: flagDoorbell | flagInline})
				a.node.nic.step(50)
				tc.meet(c, a, b, receive, cancel)
				c.run()
				b.node.nic.failAfter(-1)
				if tc.want == done {
					a.wantSend(t, 0, done, n)
					b.wantRecv(t, 0, done, n)
				} else {
					a.wantSend(t, 0, tc.want, 0)
					b.wantRecv(t, 0, free, 0)
				}
				for _, node := range c.nodes {
					if s := node.nic.statistics(); s.badFrames != 0 {
						t.Errorf("NIC %d: %d bad frames", node.nic.id, s.badFrames)
					}
				}
				if tc.want == gone {
					return
				}
				// A receive that was there, or is posted now, gets the next message.
				if tc.name != "crosses the permission" {
					receive()
				}
				b.clear(true, 0)
				a.send(1, message{peer: "b", tag: 1, len: 9, flags: flagDoorbell | flagInline})
				c.run()
				a.wantSend(t, 1, done, 9)
				b.wantRecv(t, 0, done, 9)
			})
		}
	}
}

// A receive that one step could not fill, and whose message is cancelled, takes the next one from the beginning.
func TestCancelOfAShortMessageThatBegan(t *testing.T) {
	const n = 600
	c := newCluster(t, 2, limits)
	r := registrationSizes{commands: 16, sends: 2, receives: 2, regionSize: 1024, poolEntries: n}
	a, _ := c.nodes[0].begin("a", "", 0, r)
	b, _ := c.nodes[1].begin("b", "", 0, r)
	c.run()
	to, h := b.memory(t, n, writeAccess)
	m := crumble(b, h, n)
	m.peer, m.tag = "a", 1
	b.recv(0, m)
	c.run()
	inline := message{peer: "b", tag: 1, len: n, flags: flagDoorbell | flagInline}
	fill(a.region(false, 0)[:n], 1)
	a.send(0, inline)
	a.node.nic.step(50)
	wantSizes(t, "request", c.hand(0, 1), requestSize+n)
	if bytes.Equal(to, make([]byte, n)) || bytes.Equal(to, a.region(false, 0)[:n]) {
		t.Fatal("nothing was moved, or all: the test is for a part")
	}
	a.post(cmdCancelSend, 0, 0, "")
	c.run()
	a.wantSend(t, 0, canceled, 0)
	b.wantRecv(t, 0, free, 0)
	fill(a.region(false, 1)[:n], 9)
	a.send(1, inline)
	c.run()
	a.wantSend(t, 1, done, n)
	b.wantRecv(t, 0, done, n)
	if !bytes.Equal(to, a.region(false, 1)[:n]) {
		t.Error("other bytes arrived")
	}
}

// A process that ends while the cancel of its send is not confirmed leaves nothing behind.
func TestSenderEndsBeforeItsCancelIsConfirmed(t *testing.T) {
	c, a, b := far(t, 1024, 0)
	a.send(0, message{peer: "b", tag: 1, len: 9, flags: flagDoorbell | flagInline})
	c.run()
	a.post(cmdCancelSend, 0, 0, "")
	a.node.nic.step(50)
	a.end()
	c.run()
	for _, node := range c.nodes {
		if s := node.nic.statistics(); s.badFrames != 0 {
			t.Errorf("NIC %d: %d bad frames", node.nic.id, s.badFrames)
		}
	}
	if got := b.node.nic.statistics().processes; got != 1 {
		t.Errorf("%d processes, want b", got)
	}
}

// Another NIC says of a send only what can be.
func TestAnswersToARequestAreChecked(t *testing.T) {
	taken := system(0xff81, 1, 1, 1, 1, 1, 1, uint32(1))
	wasCancelled := system(0xff89, 1, 1, 1, 1, 1, 1, uint32(1), uint32(canceled))
	for _, tc := range []struct {
		name   string
		n      int
		cancel bool
		frame  []byte
		want   string
		rings  state
	}{
		{"taken, without the message", 2000, false, taken, bad, free},
		{"taken", 10, false, taken, "", done},
		{"taken, empty", 0, false, taken, "", done},
		{"taken of another request", 10, false, system(0xff81, 1, 1, 1, 1, 1, 1, uint32(2)), late, free},
		{"cancelled by nobody", 10, false, wasCancelled, bad, free},
		{"cancelled by nobody, without the message", 2000, false, wasCancelled, bad, free},
		{"cancelled", 10, true, wasCancelled, "", canceled},
		{"taken before it was cancelled", 10, true, taken, "", done},
		{"permitted before it was cancelled", 10, true, system(0xff81, 1, 1, 1, 1, 1, 0, uint32(1)), late, free},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := limits
			l.packetSize = 4096
			c := newCluster(t, 1, l)
			n := c.nodes[0]
			a := n.register("a")
			n.driver(driverCommand{command: addNIC, nic: 2})
			c.run()
			receive := func(f []byte) {
				n.nic.receive(2, f)
				n.nic.step(50)
			}
			receive(system(0xff82, "x", 1, 1, uint64(0)))
			_, h := a.memory(t, 2000, readAccess)
			a.send(0, message{peer: "x", tag: 1, len: tc.n, flags: flagDoorbell, descriptors: []descriptor{{h, 2000, 0}}})
			c.run()
			if tc.cancel {
				a.post(cmdCancelSend, 0, 0, "")
				c.run()
			}
			before := n.nic.statistics()
			receive(tc.frame)
			after := n.nic.statistics()
			gotBad, gotLate := after.badFrames-before.badFrames, after.lateFrames-before.lateFrames
			if (tc.want == bad) != (gotBad == 1) || (tc.want == late) != (gotLate == 1) {
				t.Errorf("got %d bad, %d late, want %q", gotBad, gotLate, tc.want)
			}
			if s, _ := a.doorbell(false, 0); s != tc.rings {
				t.Errorf("the send rings %v, want %v", s, tc.rings)
			}
		})
	}
}
