//go:build linux && cgo

package ncp

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// comingSize is the length of a message of many packets.
const comingSize = 8 * packet

// coming is a message of comingSize bytes from a to b, of which some packets are in the local memory of b's NIC.
type coming struct {
	*cluster
	a, b     *process
	from, to []byte
	h, th    uint32
}

// newComing returns a message under tag 1 of which b's NIC has got so many packets.
func newComing(t *testing.T, nics, packets int) *coming {
	t.Helper()
	r := registrationSizes{commands: 16, sends: 8, receives: 8, regionSize: 1024, poolEntries: comingSize}
	c := &coming{cluster: newCluster(t, nics, limits)}
	c.a, _ = c.nodes[0].begin("a", "", 0, r)
	c.b, _ = c.nodes[nics-1].begin("b", "", 0, r)
	c.run()
	c.from, c.h = c.a.memory(t, comingSize, readAccess)
	c.to, c.th = c.b.memory(t, comingSize, writeAccess)
	for i := range c.from {
		c.from[i] = byte(1 + i%255)
	}
	c.a.send(0, c.message("b", 1, c.h, comingSize, comingSize))
	c.until(t, "local memory", func() bool { return c.local() > 0 })
	c.arrive(t, packets)
	return c
}

// message is a message of n bytes, in pieces of so many.
func (c *coming) message(peer string, tag uint16, h uint32, n, piece int) message {
	m := message{peer: peer, tag: tag, len: n, flags: flagDoorbell | flagPool}
	for at := 0; at < n; at += piece {
		m.descriptors = append(m.descriptors, descriptor{h, uint32(min(piece, n-at)), uint64(at)})
	}
	return m
}

// receive posts a receive for the message, and has b's NIC read it.
func (c *coming) receive(t *testing.T, room, piece int) {
	t.Helper()
	before := c.b.node.nic.statistics().commands
	c.b.recv(0, c.message("a", 1, c.th, room, piece))
	for i := 0; c.b.node.nic.statistics().commands == before; i++ {
		if c.b.node.nic.step(1) == 0 || i == 100 {
			t.Fatal("the receive has not been read")
		}
	}
}

// until runs NICs and frames one at a time.
func (c *coming) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for i := 0; !is(); i++ {
		if i == 100_000 {
			t.Fatalf("this never comes: %s", what)
		}
		for _, n := range c.nodes {
			if is() {
				return
			}
			n.nic.step(1)
			c.carry()
		}
	}
}

func (c *coming) arrive(t *testing.T, packets int) {
	t.Helper()
	c.until(t, fmt.Sprint(packets, " packets"), func() bool { return c.arrived() >= packets*packet })
	if got := c.arrived(); got != packets*packet {
		t.Fatalf("%d bytes have arrived, want %d packets", got, packets)
	}
}

// arrived is how many bytes b's NIC has got.
func (c *coming) arrived() int { return int(c.b.node.nic.statistics().bytesReceived) }

// local is how many bytes of local memory b's NIC uses.
func (c *coming) local() int { return int(c.b.node.nic.statistics().localMemory) }

// delivered is how many bytes are in b's memory, which are those that were sent.
func (c *coming) delivered(t *testing.T) int {
	t.Helper()
	n := len(c.to) - bytes.Count(c.to, []byte{0})
	if !bytes.Equal(c.to[:n], c.from[:n]) {
		t.Fatalf("other bytes than the first %d were delivered", n)
	}
	return n
}

func (c *coming) wantLocal(t *testing.T, want int) {
	t.Helper()
	if got := c.local(); got != want {
		t.Fatalf("local memory: got %d bytes, want %d", got, want)
	}
}

// Receive, steps 6 and 7: what has arrived is delivered at once, the rest when it arrives, and the local memory is free
// from then on.
func TestReceiveTakesAMessageInTheMiddle(t *testing.T) {
	for _, tc := range []struct{ packets, room, piece int }{
		{0, comingSize, comingSize},
		{1, comingSize, comingSize},
		{3, comingSize, 100},
		{7, comingSize, 1000},
		{3, 0, 1},
		{3, 2 * packet, 300}, // less than what has arrived
		{3, 3 * packet, 300},
		{3, 4*packet + 1, 300},
		{3, comingSize - packet, 500},
		{3, comingSize - 1, 1000},
	} {
		for _, nics := range []int{1, 2} {
			name := fmt.Sprintf("packets=%d/room=%d/piece=%d/nics=%d", tc.packets, tc.room, tc.piece, nics)
			t.Run(name, func(t *testing.T) {
				c := newComing(t, nics, tc.packets)
				c.receive(t, tc.room, tc.piece)
				c.wantLocal(t, 0)
				c.until(t, "the whole message", func() bool {
					if got, want := c.delivered(t), min(c.arrived(), tc.room); got != want {
						t.Fatalf("of %d bytes %d were delivered, want %d", c.arrived(), got, want)
					}
					c.wantLocal(t, 0)
					return c.arrived() == comingSize
				})
				c.run()
				c.a.wantSend(t, 0, done, comingSize)
				if tc.room < comingSize {
					c.b.wantRecv(t, 0, truncated, comingSize)
				} else {
					c.b.wantRecv(t, 0, done, comingSize)
				}
				if got := c.delivered(t); got != tc.room {
					t.Errorf("%d bytes were delivered, want %d", got, tc.room)
				}
			})
		}
	}
}

// If delivering takes several steps, packets that arrive meanwhile go to local memory, in their order, and those that
// arrive later do not.
func TestReceiveCatchesUpWithTheMessage(t *testing.T) {
	c := newComing(t, 2, 2)
	c.receive(t, comingSize, 1)
	for _, packets := range []int{3, 4} {
		if got := c.delivered(t); got == 0 || got > 2*packet {
			t.Fatalf("a receive that takes many steps has delivered %d bytes", got)
		}
		c.arrive(t, packets)
		c.wantLocal(t, comingSize)
	}
	for c.b.node.nic.step(1) > 0 {
	}
	// The packet that was carried when the fourth arrived may have arrived, too.
	if got := c.delivered(t); got != c.arrived() || got == comingSize {
		t.Fatalf("of %d bytes %d were delivered", c.arrived(), got)
	}
	c.wantLocal(t, 0)
	c.until(t, "the whole message", func() bool { c.wantLocal(t, 0); return c.arrived() == comingSize })
	c.run()
	c.a.wantSend(t, 0, done, comingSize)
	c.b.wantRecv(t, 0, done, comingSize)
	if got := c.delivered(t); got != comingSize {
		t.Errorf("%d bytes were delivered", got)
	}
}

// A receive that never catches up gets the message from local memory. The next receive of that sender and tag gets the
// next message.
func TestReceiveIsOvertakenByTheMessage(t *testing.T) {
	for _, nics := range []int{1, 2} {
		t.Run(fmt.Sprint("nics=", nics), func(t *testing.T) {
			c := newComing(t, nics, 7)
			c.receive(t, comingSize, 1)
			c.arrive(t, 8)
			c.wantLocal(t, comingSize)
			before := c.b.node.nic.statistics().commands
			c.b.recv(1, message{peer: "a", tag: 1, len: 5, flags: flagDoorbell | flagInline})
			c.until(t, "the command", func() bool { return c.b.node.nic.statistics().commands > before })
			c.a.send(1, message{peer: "b", tag: 1, len: 5, flags: flagDoorbell | flagInline})
			c.until(t, "the next message", func() bool { s, _ := c.a.doorbell(false, 1); return s != free })
			c.wantLocal(t, comingSize) // the receive of the first one has not ended
			c.run()
			c.wantLocal(t, 0)
			c.b.wantRecv(t, 0, done, comingSize)
			c.b.wantRecv(t, 1, done, 5)
			if got := c.delivered(t); got != comingSize {
				t.Fatalf("%d bytes were delivered", got)
			}
		})
	}
}

// A packet whose descriptors are more than a step's is in the middle when the receive takes the message.
func TestReceiveTakesAPacketInTheMiddle(t *testing.T) {
	c := newComing(t, 1, 8)
	c.receive(t, comingSize, comingSize)
	c.run()
	c.b.wantRecv(t, 0, done, comingSize)
	clear(c.to)
	c.a.send(1, c.message("b", 1, c.h, comingSize, 1))
	before := c.arrived()
	c.until(t, "local memory", func() bool { return c.local() > 0 })
	c.until(t, "a packet", func() bool { return c.arrived() > before })
	c.b.node.nic.step(1) // a part of the next packet
	c.receive(t, comingSize, 500)
	c.wantLocal(t, 0)
	if got := c.delivered(t); got%packet == 0 || got > 2*packet {
		t.Fatalf("%d bytes were delivered, want a packet and a part", got)
	}
	c.run()
	c.a.wantSend(t, 1, done, comingSize)
	c.b.wantRecv(t, 0, done, comingSize)
	if got := c.delivered(t); got != comingSize {
		t.Errorf("%d bytes were delivered", got)
	}
}

// Posted receives stay behind the one that takes the message.
func TestReceivesBehindOneThatTakesAMessage(t *testing.T) {
	for _, nics := range []int{1, 2} {
		t.Run(fmt.Sprint("nics=", nics), func(t *testing.T) {
			c := newComing(t, nics, 3)
			c.receive(t, comingSize, 200)
			for i := range uint16(3) {
				c.a.send(1+i, message{peer: "b", tag: 1, len: 10 + int(i), flags: flagDoorbell | flagInline})
				c.b.recv(1+i, message{peer: "a", tag: 1, len: 100, flags: flagDoorbell | flagInline})
			}
			c.run()
			c.b.wantRecv(t, 0, done, comingSize)
			for i := range uint16(3) {
				c.b.wantRecv(t, 1+i, done, 10+int(i))
			}
			var order []uint16
			for _, i, ok := c.b.rung(); ok; _, i, ok = c.b.rung() {
				order = append(order, i)
			}
			if !slices.Equal(order, []uint16{0, 1, 2, 3}) {
				t.Errorf("the receives rang in the order %v", order)
			}
		})
	}
}

// A member of a group, and one that is named, can take a long message while it arrives, too.
func TestReceiversOfManyTakeAMessageInTheMiddle(t *testing.T) {
	for _, nics := range []int{1, 2} {
		t.Run(fmt.Sprint("nics=", nics), func(t *testing.T) {
			c := newComing(t, nics, 8)
			c.receive(t, comingSize, comingSize)
			d := c.nodes[0].register("d")
			c.run()
			clear(c.to)
			before := c.arrived()
			c.a.context(false, 1, c.message("", 1, c.h, comingSize, comingSize))
			c.a.post(cmdMulticast, 1, 2, "")
			c.a.postNames("b", "d")
			c.until(t, "local memory", func() bool { return c.local() > 0 })
			c.until(t, "some packets", func() bool { return c.arrived() > before+packet })
			c.b.clear(true, 0)
			c.receive(t, comingSize, 700)
			taken := c.b.node.nic.takenEarly()
			c.run()
			if taken == 0 {
				t.Error("the receive waited for the whole message")
			}
			c.b.wantRecv(t, 0, done, comingSize)
			if got := c.delivered(t); got != comingSize {
				t.Errorf("%d bytes were delivered", got)
			}
			to, h := d.memory(t, comingSize, writeAccess)
			m := c.message("a", 1, h, comingSize, comingSize)
			m.flags = flagDoorbell // d's pool is small
			d.recv(0, m)
			c.run()
			d.wantRecv(t, 0, done, comingSize)
			c.a.wantSend(t, 1, done, comingSize)
			if !bytes.Equal(to, c.from) {
				t.Error("the other receiver got other bytes")
			}
		})
	}
}

// middles are the states of a receive that takes a message while it arrives.
var middles = []struct {
	name  string
	piece int // of the receive's memory
}{
	{"taken", 1000},
	{"catching up", 1},
}

// The end of a process or of a NIC in the middle ends the operation at the other end, and leaves no local memory and
// nothing to do. The receive reports what was delivered; nothing is delivered after the end.
func TestDeathWhileAReceiveTakesAMessage(t *testing.T) {
	for _, x := range []struct {
		dies string
		nics []int
		die  func(c *coming)
	}{
		{"sender", []int{1, 2}, func(c *coming) { c.a.end() }},
		{"receiver", []int{1, 2}, func(c *coming) { c.b.end() }},
		{"sender's NIC", []int{2}, func(c *coming) { c.b.node.driver(driverCommand{command: removeNIC, nic: 1}) }},
		{"receiver's NIC", []int{2}, func(c *coming) { c.a.node.driver(driverCommand{command: removeNIC, nic: 2}) }},
	} {
		for _, m := range middles {
			for _, nics := range x.nics {
				t.Run(fmt.Sprintf("%s/%s/nics=%d", x.dies, m.name, nics), func(t *testing.T) {
					c := newComing(t, nics, 3)
					c.receive(t, comingSize, m.piece)
					got := c.delivered(t)
					if c.local() > 0 != (m.piece == 1) || got == 0 || c.arrived() == comingSize {
						t.Fatalf("not in the middle: %d bytes delivered, %d in local memory", got, c.local())
					}
					x.die(c)
					c.b.node.nic.step(1)
					got = c.delivered(t)
					c.carry()
					c.run()
					if x.dies == "receiver's NIC" {
						c.a.wantSend(t, 0, gone, 0+int(c.a.node.nic.statistics().bytesSent))
						return
					}
					c.wantLocal(t, 0)
					if x.dies == "receiver" {
						if s, n := c.a.doorbell(false, 0); s != gone || n == 0 || n == comingSize {
							t.Fatalf("the send: got %v, %d bytes, want gone", s, n)
						}
						if n := c.delivered(t); n != got {
							t.Fatalf("%d bytes were delivered after the receiver's end", n-got)
						}
						return
					}
					c.b.wantRecv(t, 0, gone, c.delivered(t))
					// The context can be used again.
					c.nodes[len(c.nodes)-1].register("c")
					c.b.clear(true, 0)
					c.b.recv(0, message{peer: "c", tag: 1, len: 9, flags: flagDoorbell | flagInline})
					c.run()
					c.b.wantRecv(t, 0, free, 0)
				})
			}
		}
	}
}

// Memory that is not translated any more ends the receive; that of the sender both.
func TestMemoryEndsWhileAReceiveTakesAMessage(t *testing.T) {
	for _, m := range middles {
		for _, whose := range []string{"sender", "receiver"} {
			for _, nics := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s/%s/nics=%d", whose, m.name, nics), func(t *testing.T) {
					c := newComing(t, nics, 3)
					c.receive(t, comingSize, m.piece)
					got := c.delivered(t)
					if whose == "sender" {
						c.a.untranslate(c.h)
						c.run()
						if s, n := c.a.doorbell(false, 0); s != fault || n == 0 || n == comingSize {
							t.Errorf("the send: got %v, %d bytes, want fault", s, n)
						}
						c.b.wantRecv(t, 0, fault, c.delivered(t))
					} else {
						c.b.untranslate(c.th)
						c.run()
						c.a.wantSend(t, 0, done, comingSize)
						c.b.wantRecv(t, 0, fault, got)
						if n := c.delivered(t); n != got {
							t.Errorf("%d bytes were delivered to memory that had ended", n-got)
						}
					}
					c.wantLocal(t, 0)
				})
			}
		}
	}
}

// Neither end can cancel a message that a receive has taken while it arrives.
func TestCancelWhileAReceiveTakesAMessage(t *testing.T) {
	for _, m := range middles {
		for _, nics := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/nics=%d", m.name, nics), func(t *testing.T) {
				c := newComing(t, nics, 3)
				c.receive(t, comingSize, m.piece)
				c.b.post(cmdCancelReceive, 0, 0, "")
				c.a.post(cmdCancelSend, 0, 0, "")
				c.run()
				c.a.wantSend(t, 0, done, comingSize)
				c.b.wantRecv(t, 0, done, comingSize)
				if got := c.delivered(t); got != comingSize {
					t.Errorf("%d bytes were delivered", got)
				}
				c.wantLocal(t, 0)
			})
		}
	}
}

// Before the first packet the sender can cancel. The receive then gets the next message, also if it waits behind one
// that takes many steps.
func TestCancelBeforeTheFirstPacket(t *testing.T) {
	for _, behind := range []bool{false, true} {
		t.Run(fmt.Sprint("behind=", behind), func(t *testing.T) {
			c := newComing(t, 2, 8)
			c.run()
			c.a.send(1, c.message("b", 2, c.h, comingSize, comingSize))
			c.nodes[0].nic.step(10)
			c.nodes[0].nic.carry(c.nodes[1].nic, 9)
			c.nodes[1].nic.step(10) // grants it; the reply is on its way
			if behind {
				c.receive(t, comingSize, 1)
			}
			c.b.recv(1, message{peer: "a", tag: 2, len: 100, flags: flagDoorbell | flagInline})
			c.nodes[1].nic.step(1)
			c.a.post(cmdCancelSend, 1, 0, "")
			c.nodes[0].nic.step(10)
			c.a.wantSend(t, 1, canceled, 0)
			c.nodes[0].nic.carry(c.nodes[1].nic, 9)
			c.nodes[1].nic.step(1)
			if got := c.delivered(t); behind && (got == 0 || got == comingSize) {
				t.Fatalf("%d bytes of the first message were delivered, want some", got)
			}
			c.run()
			c.wantLocal(t, b2i(!behind)*comingSize)
			c.b.wantRecv(t, 1, free, 0)
			c.a.send(2, message{peer: "b", tag: 2, len: 77, flags: flagDoorbell | flagInline})
			c.run()
			c.b.wantRecv(t, 1, done, 77)
			if behind {
				c.b.wantRecv(t, 0, done, comingSize)
			}
		})
	}
}

// A receive that takes a message keeps its place behind an earlier one that takes many steps.
func TestReceivesOfLocalMemoryKeepTheirOrder(t *testing.T) {
	c := newComing(t, 2, 8)
	c.run()
	c.a.send(1, c.message("b", 1, c.h, comingSize, comingSize))
	c.nodes[0].nic.step(10)
	c.nodes[0].nic.carry(c.nodes[1].nic, 9)
	c.nodes[1].nic.step(10)
	c.receive(t, comingSize, 1) // the first message
	c.b.recv(1, message{peer: "a", tag: 1, len: 0, flags: flagDoorbell | flagInline})
	c.until(t, "the second message", func() bool { s, _ := c.b.doorbell(true, 1); return s != free })
	c.b.wantRecv(t, 0, done, comingSize)
	c.b.wantRecv(t, 1, truncated, comingSize)
	if _, first, _ := c.b.rung(); first != 0 {
		t.Errorf("receive %d rang first", first)
	}
}

// Frames that come twice, or too early, are dropped after the receive has taken the message as before.
func TestRepeatedPacketsOfAMessageThatWasTaken(t *testing.T) {
	for _, m := range middles {
		t.Run(m.name, func(t *testing.T) {
			c := newComing(t, 2, 3)
			c.receive(t, comingSize, m.piece)
			a, b := c.nodes[0].nic, c.nodes[1].nic
			for len(a.frame(b.id)) == 0 {
				if a.step(1) == 0 {
					t.Fatal("no packet is left")
				}
			}
			bad := b.statistics().badFrames
			f := bytes.Clone(a.frame(b.id))
			b.receive(a.id, f)
			b.receive(a.id, f)
			a.consume(b.id)
			f[19] += 2 // the counter
			b.receive(a.id, f)
			c.run()
			if got := b.statistics().badFrames - bad; got != 2 {
				t.Errorf("%d frames were dropped, want 2", got)
			}
			c.b.wantRecv(t, 0, done, comingSize)
			if got := c.delivered(t); got != comingSize {
				t.Errorf("%d bytes were delivered", got)
			}
		})
	}
}
