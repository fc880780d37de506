//go:build linux && cgo

package ncp

import (
	"bytes"
	"fmt"
	"testing"
)

// crowd is n processes p0, p1, …, spread over the NICs, all in the group "all" when grouped.
func crowd(t *testing.T, nics, n int, grouped bool) (*cluster, []*process) {
	t.Helper()
	c := newCluster(t, nics, limits)
	var ps []*process
	var cookies []uint64
	for i := range n {
		group := ""
		if grouped {
			group = "all"
		}
		p, cookie := c.nodes[i%nics].begin(fmt.Sprint("p", i), group, uint32(n), ordinary)
		ps, cookies = append(ps, p), append(cookies, cookie)
	}
	c.run()
	for i, p := range ps {
		if r := p.node.result(t, cookies[i]); r != 0 {
			t.Fatalf("register %s: result %d", p.name, r)
		}
	}
	return c, ps
}

func TestBroadcastReachesAllOthers(t *testing.T) {
	for _, nics := range []int{1, 3} {
		for _, tc := range []struct {
			command uint32
			n       int
		}{{cmdBroadcast, 5000}, {cmdBroadcast, 0}, {cmdBroadcastShort, 900}} {
			t.Run(fmt.Sprintf("nics=%d command=%d n=%d", nics, tc.command, tc.n), func(t *testing.T) {
				c, ps := crowd(t, nics, 7, true)
				from, h := ps[0].memory(t, tc.n, readAccess)
				if tc.command == cmdBroadcastShort {
					from = ps[0].region(false, 0)[:tc.n]
				}
				fill(from, 6)
				tos := make([][]byte, len(ps))
				receive := func(i int) {
					var th uint32
					tos[i], th = ps[i].memory(t, 5000, writeAccess)
					ps[i].recv(0, message{peer: "p0", tag: 1, len: 5000, flags: flagDoorbell, descriptors: pieces(th, 5000, 2000)})
				}
				for i := 1; i < 4; i++ {
					receive(i)
				}
				ps[0].context(false, 0, message{tag: 1, len: tc.n, flags: flagDoorbell, descriptors: []descriptor{{h, uint32(tc.n), 0}}})
				ps[0].post(tc.command, 0, 0, "all")
				c.run()
				for i := 4; i < 7; i++ {
					receive(i)
				}
				c.run()
				ps[0].wantSend(t, 0, done, tc.n)
				for i := 1; i < 7; i++ {
					ps[i].wantRecv(t, 0, done, tc.n)
					if !bytes.Equal(tos[i][:tc.n], from) {
						t.Fatalf("p%d got other bytes", i)
					}
				}
			})
		}
	}
}

func TestBroadcastFails(t *testing.T) {
	c, ps := crowd(t, 2, 3, true)
	for _, tc := range []struct {
		name, group string
		flags       uint16
		want        state
	}{
		{"no such group", "none", flagInline, unknown},
		{"no name", "", flagInline, invalid},
		{"bad context", "all", 0x40, invalid},
		{"bad memory", "all", 0, fault},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ps[0].clear(false, 0)
			ps[0].context(false, 0, message{len: 10, flags: tc.flags})
			ps[0].post(cmdBroadcast, 0, 0, tc.group)
			c.run()
			if s, _ := ps[0].doorbell(false, 0); s != tc.want {
				t.Fatalf("got %v, want %v", s, tc.want)
			}
		})
	}
}

func TestMulticastReachesThoseNamed(t *testing.T) {
	for _, nics := range []int{1, 3} {
		for _, names := range [][]string{{"p1"}, {"p1", "p2", "p3"}, {"p4", "p1", "p5", "p6"}, {"p1", "p2", "p3", "p4", "p5", "p6", "p0"}} {
			for _, command := range []uint32{cmdMulticast, cmdMulticastShort} {
				c, ps := crowd(t, nics, 7, false)
				copy(ps[0].region(false, 0), "to some")
				ps[0].context(false, 0, message{tag: 1, len: 7, flags: flagDoorbell | flagInline})
				ps[0].post(command, 0, uint32(len(names)), "")
				ps[0].postNames(names[:min(3, len(names))]...)
				c.run() // the names may come late
				ps[0].postNames(names[min(3, len(names)):]...)
				c.run()
				ps[0].wantSend(t, 0, done, 7)
				for _, p := range ps {
					p.recv(0, message{peer: "p0", tag: 1, len: 7, flags: flagDoorbell | flagInline})
					c.run()
					want := free
					for _, n := range names {
						if n == p.name {
							want = done
						}
					}
					s, _ := p.doorbell(true, 0)
					if s != want {
						t.Fatalf("%s: got %v, want %v", p.name, s, want)
					}
					if want == done && string(p.region(true, 0)[:7]) != "to some" {
						t.Fatalf("%s got other bytes", p.name)
					}
				}
			}
		}
	}
}

func TestMulticastToldWhatFailed(t *testing.T) {
	c, ps := crowd(t, 2, 3, false)
	receive := func() {
		for _, p := range ps[1:] {
			p.recv(0, message{peer: "p0", len: 7, flags: flagDoorbell | flagInline})
		}
		c.run()
	}
	served := func(i int, want state) {
		t.Helper()
		if s, _ := ps[i].doorbell(true, 0); s != want {
			t.Fatalf("p%d: got %v, want %v", i, s, want)
		}
		ps[i].clear(true, 0)
	}
	begin := func(size uint32) {
		ps[0].context(false, 0, message{len: 7, flags: flagDoorbell | flagInline})
		ps[0].post(cmdMulticastShort, 0, size, "")
	}
	receive()
	begin(3)
	ps[0].postNames("p1", "nobody", "p2")
	c.run()
	ps[0].wantSend(t, 0, unknown, 7)
	served(1, done)
	served(2, done)

	receive()
	begin(3)
	ps[0].postNames("p1", "", "p2")
	c.run()
	ps[0].wantSend(t, 0, invalid, 7)
	served(1, done)
	served(2, done)

	receive()
	begin(4) // the fourth name never comes
	ps[0].postNames("p1", "p2", "p1")
	ps[0].post(cmdCancelReceive, 0, 0, "")
	c.run()
	ps[0].wantSend(t, 0, invalid, 7)
	served(1, done)
	served(2, done)
	receive()
	served(1, done)

	for _, size := range []uint32{0, limits.names + 1} {
		ps[0].clear(false, 0)
		begin(size)
		c.run()
		ps[0].wantSend(t, 0, invalid, 0)
	}
	misuse := ps[0].status(statusMisuse)
	ps[0].postNames("p1")
	c.run()
	if got := ps[0].status(statusMisuse); got != misuse+1 {
		t.Fatalf("names without a multicast: misuse is %d, want %d", got, misuse+1)
	}
}

func TestDeathOfAReceiverOfMany(t *testing.T) {
	c, ps := crowd(t, 3, 4, true)
	_, h := ps[0].memory(t, 1<<19, readAccess)
	ps[0].context(false, 0, message{len: 1 << 19, flags: flagDoorbell, descriptors: []descriptor{{h, 1 << 19, 0}}})
	ps[0].post(cmdBroadcast, 0, 0, "all")
	c.run()
	ps[1].end()
	for _, p := range ps[2:] {
		_, th := p.memory(t, 1<<19, writeAccess)
		p.recv(0, message{peer: "p0", len: 1 << 19, flags: flagDoorbell, descriptors: []descriptor{{th, 1 << 19, 0}}})
	}
	c.run()
	ps[0].wantSend(t, 0, gone, 1<<19)
	for _, p := range ps[2:] {
		p.wantRecv(t, 0, done, 1<<19)
	}
	// The sender of another ends while nobody has received.
	ps[2].context(false, 0, message{tag: 9, len: 1 << 9, flags: flagDoorbell | flagInline})
	ps[2].post(cmdBroadcast, 0, 0, "all")
	ps[2].end()
	c.run()
}

// A process holds no more of the NIC's memory than so many receivers take.
func TestReceiversUnderWayAreLimited(t *testing.T) {
	l := limits
	l.names = 16384
	c := newCluster(t, 1, l)
	a := c.nodes[0].register("a")
	begin := func(i uint16, size uint32) {
		a.context(false, i, message{tag: i, len: 1 << 20, flags: flagDoorbell})
		a.post(cmdMulticast, i, size, "")
		a.postNames("a")
		a.post(cmdCancelReceive, 0, 0, "") // the other names never come
		c.run()
	}
	begin(0, 16000)
	begin(1, 384)
	a.wantSend(t, 1, free, 0)
	begin(2, 1)
	a.wantSend(t, 2, noMemory, 0)
	a.post(cmdCancelSend, 1, 0, "")
	c.run()
	a.wantSend(t, 1, invalid, 1<<20)
	begin(2, 384)
	a.wantSend(t, 2, noMemory, 0) // its doorbell has not been cleared: nothing new rang
	a.clear(false, 2)
	a.post(cmdCancelSend, 2, 0, "")
	c.run()
	a.wantSend(t, 2, invalid, 1<<20)
}

func TestCancelBroadcast(t *testing.T) {
	c, ps := crowd(t, 2, 3, true)
	_, h := ps[0].memory(t, 1<<19, readAccess)
	_, th := ps[1].memory(t, 1<<19, writeAccess)
	ps[1].recv(0, message{peer: "p0", len: 1 << 19, flags: flagDoorbell, descriptors: []descriptor{{th, 1 << 19, 0}}})
	c.run()
	ps[0].context(false, 0, message{len: 1 << 19, flags: flagDoorbell, descriptors: []descriptor{{h, 1 << 19, 0}}})
	ps[0].post(cmdBroadcast, 0, 0, "all")
	c.run()
	ps[1].wantRecv(t, 0, done, 1<<19)
	ps[0].wantSend(t, 0, free, 0)
	ps[0].post(cmdCancelSend, 0, 0, "")
	c.run()
	ps[0].wantSend(t, 0, canceled, 1<<19)
}
