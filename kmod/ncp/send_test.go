//go:build linux && cgo

package ncp

import (
	"bytes"
	"fmt"
	"testing"
)

// memory is translated memory of p.
func (p *process) memory(t testing.TB, n int, a accessRights) ([]byte, uint32) {
	t.Helper()
	b := newMemory(n)
	t.Cleanup(func() { freeMemory(b) })
	h := p.translate(b, a)
	if h == 0 {
		t.Fatal("no handle is left")
	}
	return b, h
}

// onOneAndTwo runs a test with both processes on one NIC, and on two.
func onOneAndTwo(t *testing.T, f func(t *testing.T, c *cluster, a, b *process)) {
	on(t, []int{1, 2}, f)
}

func on(t *testing.T, counts []int, f func(t *testing.T, c *cluster, a, b *process)) {
	for _, nics := range counts {
		t.Run(fmt.Sprintf("nics=%d", nics), func(t *testing.T) {
			c, a, b := pair(t, nics, limits)
			f(t, c, a, b)
		})
	}
}

// pieces cuts n bytes of the memory behind handle into descriptors of different lengths.
func pieces(handle uint32, n, most int) (d []descriptor) {
	for at := 0; at < n; {
		k := min(n-at, 1+(at*31+17)%most)
		d = append(d, descriptor{handle, uint32(k), uint64(at)})
		at += k
	}
	return d
}

func TestMessageArrivesWhole(t *testing.T) {
	packet := int(limits.packetSize)
	for _, n := range []int{0, 1, 64, packet - 1, packet, packet + 1, 3 * packet, 40_000} {
		for _, first := range []string{"receive", "send"} {
			t.Run(fmt.Sprintf("%d/%s first", n, first), func(t *testing.T) {
				onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
					from, fh := a.memory(t, n, readAccess)
					to, th := b.memory(t, n, writeAccess)
					fill(from, 1)
					send := func() {
						a.send(0, message{peer: "b", tag: 1, flags: flagDoorbell, len: n, descriptors: pieces(fh, n, 5000)})
					}
					receive := func() {
						b.recv(0, message{peer: "a", tag: 1, flags: flagDoorbell, len: n, descriptors: pieces(th, n, 3000)})
					}
					if first == "send" {
						send()
						c.run()
						receive()
					} else {
						receive()
						c.run()
						b.wantRecv(t, 0, free, 0)
						send()
					}
					c.run()
					a.wantSend(t, 0, done, n)
					b.wantRecv(t, 0, done, n)
					if !bytes.Equal(from, to) {
						t.Fatal("other bytes arrived")
					}
				})
			})
		}
	}
}

func TestEveryFormOfMemory(t *testing.T) {
	const n = 200
	forms := []string{"descriptors", "pool", "inline", "short"}
	for _, source := range forms {
		for _, target := range forms[:3] {
			t.Run(source+" to "+target, func(t *testing.T) {
				onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
					form := func(p *process, receive bool, form string, m message) ([]byte, message) {
						if form == "inline" || form == "short" {
							m.flags |= flagInline
							return p.region(receive, 3)[:n], m
						}
						if form == "pool" {
							m.flags |= flagPool
							m.pool = 2
						}
						memory, h := p.memory(t, n, readAccess|writeAccess)
						m.descriptors = pieces(h, n, 100)
						return memory, m
					}
					to, m := form(b, true, target, message{peer: "a", flags: flagDoorbell, len: n})
					b.recv(3, m)
					from, m := form(a, false, source, message{peer: "b", flags: flagDoorbell, len: n})
					fill(from, 9)
					if source == "short" {
						a.short(3, m)
					} else {
						a.send(3, m)
					}
					c.run()
					a.wantSend(t, 3, done, n)
					b.wantRecv(t, 3, done, n)
					if !bytes.Equal(from, to) {
						t.Fatal("other bytes arrived")
					}
				})
			})
		}
	}
}

func TestSendToOneself(t *testing.T) {
	c := newCluster(t, 1, limits)
	a := c.nodes[0].register("a")
	a.recv(0, message{peer: "a", tag: 3, flags: flagDoorbell | flagInline, len: 10})
	copy(a.region(false, 0), "to myself")
	a.short(0, message{peer: "a", tag: 3, flags: flagDoorbell, len: 9})
	c.run()
	a.wantSend(t, 0, done, 9)
	a.wantRecv(t, 0, done, 9)
	if got := string(a.region(true, 0)[:9]); got != "to myself" {
		t.Fatalf("got %q", got)
	}
}

func TestSendFails(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		memory, read := a.memory(t, 5000, readAccess)
		_, write := a.memory(t, 5000, writeAccess)
		_ = memory
		one := func(h, n uint32, at uint64) []descriptor { return []descriptor{{h, n, at}} }
		for _, tc := range []struct {
			name string
			m    message
			want state
			n    int
		}{
			{"unknown name", message{peer: "nobody", len: 1, flags: flagInline}, unknown, 0},
			{"empty name", message{len: 1, flags: flagInline}, invalid, 0},
			{"name with a space", message{peer: "a b", len: 1, flags: flagInline}, invalid, 0},
			{"tag of a system message", message{peer: "b", tag: 0xff80}, invalid, 0},
			{"unknown flag", message{peer: "b", flags: 8}, invalid, 0},
			{"too long for the region", message{peer: "b", len: 1025, flags: flagInline}, invalid, 0},
			{"too long", message{peer: "b", len: 1 << 31}, invalid, 0},
			{"first reserved byte", message{peer: "b", len: 1, flags: flagInline, reserved: 36}, invalid, 0},
			{"last reserved byte", message{peer: "b", len: 1, flags: flagInline, reserved: 63}, invalid, 0},
			{"beyond the pool", message{peer: "b", len: 1, flags: flagPool, pool: 17}, invalid, 0},
			{"no descriptors", message{peer: "b", len: 10}, fault, 0},
			{"too few descriptors", message{peer: "b", len: 4000, descriptors: one(read, 3000, 0)}, fault, 2048},
			{"handle 0", message{peer: "b", len: 10, descriptors: one(0, 10, 0)}, fault, 0},
			{"handle of nobody", message{peer: "b", len: 10, descriptors: one(60, 10, 0)}, fault, 0},
			{"memory to write only", message{peer: "b", len: 10, descriptors: one(write, 10, 0)}, fault, 0},
			{"beyond the memory", message{peer: "b", len: 10, descriptors: one(read, 10, 4995)}, fault, 0},
			{"offset overflows", message{peer: "b", len: 10, descriptors: one(read, 10, 1<<64-5)}, fault, 0},
		} {
			t.Run(tc.name, func(t *testing.T) {
				want, n := tc.want, tc.n
				m := tc.m
				if want == fault {
					to, h := b.memory(t, 5000, writeAccess)
					defer b.untranslate(h)
					_ = to
					b.recv(0, message{peer: "a", tag: m.tag, flags: flagDoorbell, len: 5000, descriptors: one(h, 5000, 0)})
					c.run()
				}
				b.clear(true, 0)
				a.clear(false, 0)
				a.send(0, m) // a failure rings without being asked to
				c.run()
				a.wantSend(t, 0, want, n)
				if want == fault {
					if s, got := b.doorbell(true, 0); s != fault || got < n {
						t.Fatalf("the receive: got %v, %d bytes, want fault, at least %d", s, got, n)
					}
				}
			})
		}
	})
}

func TestOrderWithinATag(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		// Long ones and short ones under two tags, some before their receives and some after.
		lens := []int{700, 5000, 10, 0, 3000, 1024}
		memory, h := a.memory(t, 1<<14, readAccess)
		fill(memory, 3)
		for tag := range 2 {
			for i, n := range lens[:3] {
				a.send(uint16(tag*3+i), message{peer: "b", tag: uint16(tag), len: n, flags: flagDoorbell,
					descriptors: []descriptor{{h, uint32(n), uint64(100*i + tag)}}})
			}
		}
		c.nodes[0].nic.step(3)
		for i, n := range lens[:3] {
			for tag := range 2 {
				to, th := b.memory(t, 6000, writeAccess)
				b.recv(uint16(i), message{peer: "a", tag: uint16(tag), len: 6000, flags: flagDoorbell,
					descriptors: []descriptor{{th, 6000, 0}}})
				c.run()
				b.wantRecv(t, uint16(i), done, n)
				if !bytes.Equal(to[:n], memory[100*i+tag:][:n]) {
					t.Fatalf("tag %d, message %d: other bytes arrived", tag, i)
				}
			}
		}
	})
}

func TestTruncatedMessageSaysItsLength(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		memory, h := a.memory(t, 5000, readAccess)
		fill(memory, 2)
		for _, first := range []bool{true, false} {
			to, th := b.memory(t, 3000, writeAccess)
			receive := func() {
				b.recv(0, message{peer: "a", len: 2500, flags: flagDoorbell, descriptors: []descriptor{{th, 3000, 0}}})
				c.run()
			}
			if first {
				receive()
			}
			a.send(0, message{peer: "b", len: 5000, flags: flagDoorbell, descriptors: []descriptor{{h, 5000, 0}}})
			c.run()
			if !first {
				receive()
			}
			a.wantSend(t, 0, done, 5000)
			b.wantRecv(t, 0, truncated, 5000)
			if !bytes.Equal(to[:2500], memory[:2500]) || !bytes.Equal(to[2500:], make([]byte, 500)) {
				t.Fatal("not the first 2500 bytes, or more than them")
			}
		}
	})
}

func TestFaultyReceiverDoesNotFailTheSender(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		_, h := a.memory(t, 5000, readAccess)
		_, th := b.memory(t, 1500, writeAccess)
		b.recv(0, message{peer: "a", len: 5000, flags: flagDoorbell, descriptors: []descriptor{{th, 5000, 0}}})
		a.send(0, message{peer: "b", len: 5000, flags: flagDoorbell, descriptors: []descriptor{{h, 5000, 0}}})
		c.run()
		a.wantSend(t, 0, done, 5000)
		if s, n := b.doorbell(true, 0); s != fault || n > 1500 {
			t.Fatalf("got %v, %d bytes, want fault, at most 1500", s, n)
		}
		// The next message is whole again.
		b.recv(0, message{peer: "a", len: 10, flags: flagDoorbell | flagInline})
		a.short(0, message{peer: "b", len: 10, flags: flagDoorbell})
		c.run()
		b.wantRecv(t, 0, done, 10)
	})
}

func TestSilentContextRingsOnlyFailures(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		b.recv(0, message{peer: "a", len: 10, flags: flagInline})
		a.short(0, message{peer: "b", len: 10})
		c.run()
		a.wantSend(t, 0, free, 0)
		b.wantRecv(t, 0, free, 0)
		if string(b.region(true, 0)[:10]) != string(make([]byte, 10)) {
			t.Fatal("got other bytes")
		}
		a.short(0, message{peer: "x", len: 10})
		c.run()
		a.wantSend(t, 0, unknown, 0)
	})
}

func TestCancelSend(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		_, h := a.memory(t, 1<<20, readAccess)
		big := func(n int) message { // more than local memory takes, so that it needs a receive
			return message{peer: "b", len: n, flags: flagDoorbell, descriptors: []descriptor{{h, uint32(n), 0}}}
		}
		a.send(0, big(1<<19))
		a.send(1, big(1<<19+1))
		a.send(2, big(1<<19+2))
		c.run()
		a.post(cmdCancelSend, 1, 0, "") // has not asked yet
		a.post(cmdCancelSend, 0, 0, "") // is remembered at the receiver
		a.post(cmdCancelSend, 7, 0, "") // is not under way
		c.run()
		a.wantSend(t, 0, canceled, 0)
		a.wantSend(t, 1, canceled, 0)
		a.wantSend(t, 2, free, 0)
		_, th := b.memory(t, 1<<20, writeAccess)
		b.recv(0, message{peer: "a", len: 1 << 20, flags: flagDoorbell, descriptors: []descriptor{{th, 1 << 20, 0}}})
		c.run()
		a.wantSend(t, 2, done, 1<<19+2)
		b.wantRecv(t, 0, done, 1<<19+2)
		a.post(cmdCancelSend, 2, 0, "")
		c.run()
		a.wantSend(t, 2, done, 1<<19+2)
	})
}

func TestCancelCrossesThePermission(t *testing.T) {
	c, a, b := pair(t, 2, limits)
	const n = 2000
	_, h := a.memory(t, n, readAccess)
	_, th := b.memory(t, n, writeAccess)
	m := message{peer: "b", len: n, flags: flagDoorbell, descriptors: []descriptor{{h, n, 0}}}
	b.recv(0, message{peer: "a", len: n, flags: flagDoorbell, descriptors: []descriptor{{th, n, 0}}})
	c.run()
	a.send(0, m)
	c.nodes[0].nic.step(9)
	c.carry()
	c.nodes[1].nic.step(9) // it grants
	a.post(cmdCancelSend, 0, 0, "")
	c.nodes[0].nic.step(9)
	a.wantSend(t, 0, canceled, 0)
	c.run()
	b.wantRecv(t, 0, free, 0)
	// The receive is there for the next message.
	a.send(1, m)
	c.run()
	a.wantSend(t, 1, done, n)
	b.wantRecv(t, 0, done, n)
	if late := c.nodes[0].nic.statistics().lateFrames; late != 1 {
		t.Fatalf("late frames: got %d, want the permission that came too late", late)
	}
}

// newPair makes two NICs with output FIFOs of so many bytes, and a process at each.
func newPair(t *testing.T, fifo int) (c *cluster, a, b *process) {
	t.Helper()
	c = newCluster(t, 0, limits)
	for id := range uint16(2) {
		nic, err := newNIC(id+1, limits, fifo)
		if err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, &node{nic: nic, cluster: c, processes: map[uint16]*process{}, results: map[uint64]int32{}})
	}
	c.nodes[0].driver(driverCommand{command: addNIC, nic: 2})
	c.nodes[1].driver(driverCommand{command: addNIC, nic: 1})
	return c, c.nodes[0].register("a"), c.nodes[1].register("b")
}

func TestFullFIFOLosesNothing(t *testing.T) {
	c, a, b := newPair(t, 3000) // room for two packets
	from, h := a.memory(t, 50_000, readAccess)
	to, th := b.memory(t, 50_000, writeAccess)
	fill(from, 4)
	for i := range uint16(5) {
		d := func(h uint32) []descriptor { return []descriptor{{h, 10_000, uint64(i) * 10_000}} }
		a.send(i, message{peer: "b", tag: i, len: 10_000, flags: flagDoorbell, descriptors: d(h)})
		b.recv(i, message{peer: "a", tag: i, len: 10_000, flags: flagDoorbell, descriptors: d(th)})
	}
	c.run()
	for i := range uint16(5) {
		a.wantSend(t, i, done, 10_000)
		b.wantRecv(t, i, done, 10_000)
	}
	if !bytes.Equal(from, to) {
		t.Fatal("other bytes arrived")
	}
}
