//go:build linux && cgo

package ncp

import (
	"bytes"
	"testing"
)

func TestReceiveFails(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		for _, tc := range []struct {
			name string
			m    message
			want state
		}{
			{"unknown name", message{peer: "nobody", flags: flagInline}, unknown},
			{"name without an end", message{peer: "", flags: flagInline}, invalid},
			{"tag of a system message", message{peer: "b", tag: 0xffff}, invalid},
			{"unknown flag", message{peer: "b", flags: 0x8000}, invalid},
			{"too long for the region", message{peer: "b", len: 1025, flags: flagInline}, invalid},
			{"too long", message{peer: "b", len: 1 << 31}, invalid},
			{"first reserved byte", message{peer: "b", flags: flagInline, reserved: 36}, invalid},
			{"last reserved byte", message{peer: "b", flags: flagInline, reserved: 63}, invalid},
			{"beyond the pool", message{peer: "b", flags: flagPool, pool: 17}, invalid},
		} {
			t.Run(tc.name, func(t *testing.T) {
				a.clear(true, 0)
				a.recv(0, tc.m)
				c.run()
				a.wantRecv(t, 0, tc.want, 0)
			})
		}
	})
}

func TestReceivesAreFilledInTheOrderTheyWerePosted(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		order := []uint16{4, 0, 7}
		for _, i := range order {
			b.recv(i, message{peer: "a", len: 1024, flags: flagDoorbell | flagInline})
		}
		for i, n := range []int{3, 1000, 20} {
			a.short(uint16(i), message{peer: "b", len: n, flags: flagDoorbell})
		}
		c.run()
		for i, n := range []int{3, 1000, 20} {
			b.wantRecv(t, order[i], done, n)
			receive, context, ok := b.rung()
			if !receive || context != order[i] || !ok {
				t.Fatalf("the ring says receive %v %d (%v), want receive %d", receive, context, ok, order[i])
			}
		}
		if _, _, ok := b.rung(); ok {
			t.Fatal("the ring has one entry more than doorbells rang")
		}
	})
}

func TestReceiveOfAMessageThatIsComing(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		from, h := a.memory(t, 20_000, readAccess)
		to, th := b.memory(t, 20_000, writeAccess)
		fill(from, 8)
		a.send(0, message{peer: "b", len: 20_000, flags: flagDoorbell, descriptors: []descriptor{{h, 20_000, 0}}})
		// A part of it lies in local memory when the receive comes.
		for range 12 {
			c.nodes[0].nic.step(1)
			c.carry()
			c.nodes[len(c.nodes)-1].nic.step(1)
			c.carry()
		}
		if n := b.node.nic.statistics().localMemory; n != 20_000 {
			t.Fatalf("local memory: got %d bytes, want 20000", n)
		}
		b.recv(0, message{peer: "a", len: 20_000, flags: flagDoorbell, descriptors: pieces(th, 20_000, 999)})
		c.run()
		a.wantSend(t, 0, done, 20_000)
		b.wantRecv(t, 0, done, 20_000)
		if !bytes.Equal(from, to) {
			t.Fatal("other bytes arrived")
		}
		if n := b.node.nic.statistics().localMemory; n != 0 {
			t.Fatalf("local memory: %d bytes are still in use", n)
		}
	})
}

func TestRequestThatCannotBeGrantedIsAnsweredLater(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		_, h := a.memory(t, 1<<20, readAccess)
		send := func(i uint16, n int) {
			a.send(i, message{peer: "b", tag: i, len: n, flags: flagDoorbell, descriptors: []descriptor{{h, uint32(n), 0}}})
			c.run()
		}
		for i := range uint16(4) { // they fill the local memory
			send(i, 1<<18)
			a.wantSend(t, i, done, 1<<18)
		}
		send(4, 1<<18)
		send(5, 100) // not before the one that waits
		send(6, 1<<19)
		requests := a.node.nic.statistics().requestsSent
		for i := uint16(4); i < 7; i++ {
			a.wantSend(t, i, free, 0)
		}
		_, th := b.memory(t, 1<<20, writeAccess)
		receive := func(i uint16, n int) {
			b.recv(i, message{peer: "a", tag: i, len: n, flags: flagDoorbell, descriptors: []descriptor{{th, uint32(n), 0}}})
			c.run()
			b.wantRecv(t, i, done, n)
		}
		receive(2, 1<<18)
		a.wantSend(t, 4, done, 1<<18)
		a.wantSend(t, 5, free, 0)
		receive(3, 1<<18)
		a.wantSend(t, 5, done, 100)
		a.wantSend(t, 6, free, 0) // too long for local memory: waits for its receive
		receive(6, 1<<19)
		a.wantSend(t, 6, done, 1<<19)
		if got := a.node.nic.statistics().requestsSent; got != requests {
			t.Fatalf("%d requests were repeated", got-requests)
		}
	})
}

func TestCancelReceive(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		for i := range uint16(3) {
			b.recv(i, message{peer: "a", len: 10, flags: flagDoorbell | flagInline})
		}
		b.post(cmdCancelReceive, 1, 0, "")
		b.post(cmdCancelReceive, 0, 0, "")
		b.post(cmdCancelReceive, 5, 0, "")
		c.run()
		b.wantRecv(t, 0, canceled, 0)
		b.wantRecv(t, 1, canceled, 0)
		a.short(0, message{peer: "b", len: 7, flags: flagDoorbell})
		c.run()
		b.wantRecv(t, 2, done, 7)
		b.post(cmdCancelReceive, 2, 0, "")
		c.run()
		b.wantRecv(t, 2, done, 7)
	})
}

func TestMessageOfADeadSenderIsKept(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		copy(a.region(false, 0), "testament")
		a.short(0, message{peer: "b", tag: 1, len: 9, flags: flagDoorbell})
		c.run()
		a.wantSend(t, 0, done, 9)
		b.recv(1, message{peer: "a", tag: 2, len: 9, flags: flagDoorbell | flagInline})
		c.run()
		a.end()
		c.run()
		b.wantRecv(t, 1, gone, 0)
		b.recv(1, message{peer: "a", tag: 2, len: 9, flags: flagDoorbell | flagInline})
		c.run()
		b.wantRecv(t, 1, unknown, 0)
		b.recv(0, message{peer: "a", tag: 1, len: 9, flags: flagDoorbell | flagInline})
		c.run()
		b.wantRecv(t, 0, done, 9)
		if got := string(b.region(true, 0)[:9]); got != "testament" {
			t.Fatalf("got %q", got)
		}
		b.recv(0, message{peer: "a", tag: 1, len: 9, flags: flagDoorbell | flagInline})
		c.run()
		b.wantRecv(t, 0, unknown, 0)
	})
}

func TestDeathInTheMiddle(t *testing.T) {
	for _, x := range []struct {
		dies string
		nics []int
	}{
		{"sender", []int{1, 2}},
		{"receiver", []int{1, 2}},
		{"sender's NIC", []int{2}},
		{"receiver's NIC", []int{2}},
	} {
		dies := x.dies
		t.Run(dies, func(t *testing.T) {
			on(t, x.nics, func(t *testing.T, c *cluster, a, b *process) {
				_, h := a.memory(t, 20_000, readAccess)
				_, th := b.memory(t, 20_000, writeAccess)
				b.recv(0, message{peer: "a", len: 20_000, flags: flagDoorbell, descriptors: []descriptor{{th, 20_000, 0}}})
				b.recv(1, message{peer: "a", len: 10, flags: flagDoorbell | flagInline})
				c.run()
				for i := range uint16(2) {
					a.send(i, message{peer: "b", len: 20_000, flags: flagDoorbell, descriptors: []descriptor{{h, 20_000, 0}}})
				}
				for range 8 {
					for _, n := range c.nodes {
						n.nic.step(1)
					}
					c.carry()
				}
				if n := b.node.nic.statistics().bytesReceived; n == 0 || n == 20_000 {
					t.Fatalf("the transfer is not in the middle: %d bytes", n)
				}
				switch dies {
				case "sender":
					a.end()
				case "receiver":
					b.end()
				case "sender's NIC":
					b.node.driver(driverCommand{command: removeNIC, nic: 1})
				case "receiver's NIC":
					a.node.driver(driverCommand{command: removeNIC, nic: 2})
				}
				// The word of it goes before the sender is done.
				b.node.nic.step(1)
				c.carry()
				c.run()
				if dies[0] == 's' {
					if s, n := b.doorbell(true, 0); s != gone || n == 0 || n == 20_000 {
						t.Fatalf("the receive in the middle: got %v, %d bytes, want gone", s, n)
					}
					b.wantRecv(t, 1, gone, 0)
				} else {
					if s, n := a.doorbell(false, 0); s != gone || n == 0 || n == 20_000 {
						t.Fatalf("the send in the middle: got %v, %d bytes, want gone", s, n)
					}
					a.wantSend(t, 1, gone, 0)
				}
			})
		})
	}
}
