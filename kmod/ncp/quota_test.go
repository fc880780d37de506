//go:build linux && cgo

package ncp

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"testing"
)

const (
	mallory = 1000 + iota // users
	alice
)

var tiny = registrationSizes{commands: 8, sends: 4, receives: 1, regionSize: 64}

// lives registers processes of a user that each send a message nobody receives and die. It gives how many registrations
// succeeded and the first result that was none.
func lives(t *testing.T, n *node, user uint64, most int) (alive int, refused int32) {
	t.Helper()
	for alive = range most {
		p, cookie := n.beginAs(user, fmt.Sprint("life", alive), "", 0, tiny)
		n.cluster.run()
		if r := n.result(t, cookie); r != 0 {
			return alive, r
		}
		p.short(0, message{peer: "deaf", tag: 1, len: 8, flags: flagDoorbell})
		n.cluster.run()
		p.wantSend(t, 0, done, 8)
		p.end()
		n.cluster.run()
		delete(n.processes, p.index)
		p.free()
	}
	return most, 0
}

// A user whose processes die with messages that nobody receives stops nobody's registration, not even his own.
func TestDeadNamesCountForTheirUser(t *testing.T) {
	for _, nics := range []int{1, 2} {
		t.Run(fmt.Sprint("nics=", nics), func(t *testing.T) {
			c := newCluster(t, nics, limits)
			here, there := c.nodes[0], c.nodes[nics-1]
			deaf := there.register("deaf")
			if n, r := lives(t, here, mallory, 3*int(limits.names)); r != 0 {
				t.Fatalf("the user's own registration after %d lives: result %d, want 0", n, r)
			}
			// His dead hold no more than his share, so the last message of the last dead is there, and the first is not.
			last := fmt.Sprint("life", 3*limits.names-1)
			deaf.recv(0, message{peer: last, tag: 1, len: 8, flags: flagDoorbell | flagInline})
			deaf.recv(1, message{peer: "life0", tag: 1, len: 8, flags: flagDoorbell | flagInline})
			c.run()
			deaf.wantRecv(t, 0, done, 8)
			deaf.wantRecv(t, 1, unknown, 0)
			for i, n := range c.nodes {
				for _, user := range []uint64{alice, 0} {
					_, cookie := n.beginAs(user, fmt.Sprintf("p%d.%d", i, user), "", 0, tiny)
					c.run()
					if r := n.result(t, cookie); r != 0 {
						t.Errorf("NIC %d, user %d: result %d, want 0", n.nic.id, user, r)
					}
				}
			}
		})
	}
}

// Users share what is free; root's part is left by all of them. A user gets half of what is free, and the last eighth
// is left to root.
func TestUsersShareNames(t *testing.T) {
	l := limits
	l.processes, l.names = 128, 128
	c := newCluster(t, 1, l)
	n := c.nodes[0]
	wide := l
	wide.names *= 4
	c.add(2, wide)
	c.run()
	c.nodes[1].register("there") // so that the Name Table is full before the Process Table
	fill := func(user uint64) (count int) {
		for ; ; count++ {
			p, cookie := n.beginAs(user, fmt.Sprint("u", user, "n", count), "", 0, tiny)
			c.run()
			r := n.result(t, cookie)
			if r != 0 {
				delete(n.processes, p.index)
				p.free()
			}
			switch r {
			case 0:
			case overQuota:
				return count
			default:
				if user == 0 && state(r) == noMemory {
					return count
				}
				t.Fatalf("user %d, process %d: result %d", user, count, r)
			}
		}
	}
	free := int(l.names-l.names/8) - 1
	for user := range uint64(4) {
		got := fill(mallory + user)
		if want := (free + 1) / 2; got != want {
			t.Errorf("user %d got %d names of %d free, want %d", mallory+user, got, free, want)
		}
		free -= got
	}
	if got, want := fill(0), free+int(l.names/8); got != want {
		t.Errorf("root got %d names, want the %d that are left", got, want)
	}
}

// Joins of a user leave room in the table of groups here and at other NICs.
func TestUsersShareGroups(t *testing.T) {
	for _, nics := range []int{1, 2} {
		t.Run(fmt.Sprint("nics=", nics), func(t *testing.T) {
			l := limits
			l.groups = 64
			c := newCluster(t, nics, l)
			joins := func(p *process) (count int) {
				for ; ; count++ {
					p.clear(false, 0)
					p.join(0, fmt.Sprint(p.name, count), 1)
					c.run()
					switch s, _ := p.doorbell(false, 0); s {
					case done:
					case noMemory:
						return count
					default:
						t.Fatalf("%s: join %d: %v", p.name, count, s)
					}
				}
			}
			register := func(n *node, user uint64, name string) *process {
				p, cookie := n.beginAs(user, name, "", 0, tiny)
				c.run()
				if r := n.result(t, cookie); r != 0 {
					t.Fatalf("%s: result %d", name, r)
				}
				return p
			}
			n := c.nodes[nics-1]
			// 56 are not root's: a process may have a third of them, a user half.
			if got := joins(register(n, mallory, "m0")); got != 19 {
				t.Errorf("a process joined %d groups, want 19", got)
			}
			if got := joins(register(n, mallory, "m1")); got == 0 || got > 9 {
				t.Errorf("the user's second process joined %d groups, want 1 to 9", got)
			}
			if got := joins(register(c.nodes[0], alice, "a0")); got < 9 {
				t.Errorf("another user's process joined %d groups, want 9 or more", got)
			}
			if got := joins(register(c.nodes[0], 0, "r0")); got < 8 {
				t.Errorf("root's process joined %d groups, want 8 or more", got)
			}
		})
	}
}

// A join that another NIC has no room for is refused: by doorbell, by driver command, with a registration. It does not
// hang.
func TestJoinThatAnotherNICRefusesRings(t *testing.T) {
	c := newCluster(t, 0, limits)
	c.add(1, limits)
	small := limits
	small.groups = 1
	c.add(2, small)
	c.run()
	p, q := c.nodes[0].register("p"), c.nodes[1].register("q")
	q.join(0, "only", 1)
	c.run()
	q.wantSend(t, 0, done, 0)
	p.join(0, "more", 2)
	cookie := c.nodes[0].driver(driverCommand{command: joinGroup, index: p.index, group: makeName("other"), size: 1})
	_, third := c.nodes[0].begin("third", "another", 1, ordinary)
	c.run()
	p.wantSend(t, 0, noMemory, 0)
	for what, cookie := range map[string]uint64{"the driver's join": cookie, "a registration with a group": third} {
		if r := state(c.nodes[0].result(t, cookie)); r != noMemory {
			t.Errorf("%s: got %v, want %v", what, r, noMemory)
		}
	}
	// Nothing is left of them, so the group is another one now.
	q.post(cmdLeaveGroup, 1, 0, "only")
	c.run()
	p.join(1, "more", 1)
	c.run()
	p.wantSend(t, 1, done, 0)
}

// The entry of a group counts for who is in it longest, not for who has left.
func TestGroupCountsForItsMembers(t *testing.T) {
	l := limits
	l.groups = 16
	c := newCluster(t, 1, l)
	var ps []*process
	for i, user := range []uint64{mallory, alice} {
		p, _ := c.nodes[0].beginAs(user, fmt.Sprint("p", i), "", 0, tiny)
		ps = append(ps, p)
	}
	c.run()
	for i := range 12 {
		for _, p := range ps {
			p.join(0, fmt.Sprint("g", i), 2)
		}
		c.run()
		if s, _ := ps[0].doorbell(false, 0); s != done && i < 4 {
			t.Fatalf("join %d: %v", i, s)
		}
		ps[0].post(cmdLeaveGroup, 1, 0, fmt.Sprint("g", i))
		c.run()
	}
	ps[0].clear(false, 0)
	ps[0].join(0, "mine", 1)
	c.run()
	ps[0].wantSend(t, 0, done, 0)
}

// A user's messages that nobody receives leave local memory to others, and those who wait for it do not wait for each other.
func TestUsersShareLocalMemory(t *testing.T) {
	for _, nics := range []int{1, 2} {
		t.Run(fmt.Sprint("nics=", nics), func(t *testing.T) {
			l := limits
			l.localMemory = 64 << 10
			c := newCluster(t, nics, l)
			c.nodes[nics-1].register("deaf")
			sender := func(user uint64, name string) (p *process, h uint32) {
				p, cookie := c.nodes[0].beginAs(user, name, "", 0, ordinary)
				c.run()
				if r := c.nodes[0].result(t, cookie); r != 0 {
					t.Fatalf("%s: result %d", name, r)
				}
				_, h = p.memory(t, 4096, readAccess)
				return p, h
			}
			send := func(p *process, h uint32) (sent int) {
				for i := range uint16(8) {
					p.send(i, message{peer: "deaf", tag: i, len: 4096, flags: flagDoorbell, descriptors: []descriptor{{h, 4096, 0}}})
				}
				c.run()
				for i := range uint16(8) {
					if s, _ := p.doorbell(false, i); s == done {
						sent++
					}
				}
				return sent
			}
			for i := range 4 {
				p, h := sender(mallory, fmt.Sprint("m", i))
				send(p, h)
			}
			if got := c.nodes[nics-1].nic.statistics().localMemory; got > 32<<10 {
				t.Errorf("one user holds %d bytes of local memory, want half of it at most", got)
			}
			p, h := sender(alice, "a")
			if got := send(p, h); got < 2 {
				t.Errorf("%d messages of another user found local memory, want 2 or more", got)
			}
			p, h = sender(0, "r")
			if got := send(p, h); got < 4 {
				t.Errorf("%d messages of root's found local memory, want 4 or more", got)
			}
		})
	}
}

// Broadcasts and multicasts of one user leave room for others'.
func TestUsersShareReceiversUnderWay(t *testing.T) {
	l := limits
	l.names = 16384
	c := newCluster(t, 1, l)
	begin := func(user uint64, name string) (under int) {
		p, _ := c.nodes[0].beginAs(user, name, "", 0, tiny)
		c.run()
		p.context(false, 0, message{tag: 1, len: 8, flags: flagInline})
		p.post(cmdMulticast, 0, 16384, "")
		p.postNames("deaf")
		c.run()
		if s, _ := p.doorbell(false, 0); s == noMemory {
			return 0
		}
		return 16384
	}
	sum := 0
	for i := range 20 {
		sum += begin(mallory, fmt.Sprint("m", i))
	}
	if sum == 0 || sum > 8*16384 {
		t.Errorf("one user has %d receivers under way, want 1 to %d", sum, 8*16384)
	}
	if begin(alice, "a") == 0 {
		t.Error("another user's multicast found no room")
	}
}

// A message that waits for local memory is tried again after an allocation failed, and the host is told to come back.
func TestFailedAllocationIsTriedAgain(t *testing.T) {
	c, a, b := pair(t, 2, limits)
	_ = b
	c.nodes[1].nic.failAfter(1) // the request is remembered, its buffer is not there
	a.short(0, message{peer: "b", tag: 1, len: 8, flags: flagDoorbell})
	c.run()
	a.wantSend(t, 0, free, 0)
	if !c.nodes[1].nic.retry() {
		t.Fatal("the host is not told to come back")
	}
	c.nodes[1].nic.failAfter(-1)
	c.run()
	a.wantSend(t, 0, done, 8)
	if c.nodes[1].nic.retry() {
		t.Fatal("the host is told to come back for nothing")
	}
}

// plainHash is a hash without a key, which was the Name Table's: names that fall together can be found at leisure.
func plainHash(n nameBytes) uint32 {
	w0, w1 := binary.LittleEndian.Uint64(n[:]), binary.LittleEndian.Uint64(n[8:])
	h := (w0 ^ bits.RotateLeft64(w1, 23)) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32 ^ uint64(binary.LittleEndian.Uint32(n[16:]))) * 0xd6e8feb86659fd93
	return uint32(h >> 32)
}

// A user who chooses names, or sees those of one NIC, does not learn which names fall together at another NIC.
func TestHashesAreKeyed(t *testing.T) {
	const names = 64
	l := limits
	l.processes = names
	c := newCluster(t, 2, l)
	for i, found := 0, 0; found < names; i++ {
		name := fmt.Sprint("n", i)
		if plainHash(makeName(name))%l.names != 0 {
			continue
		}
		found++
		c.nodes[0].begin(name, "", 0, tiny)
	}
	c.run()
	for _, n := range c.nodes {
		if got := n.nic.longestChain(); got == 0 || got > names/4 {
			t.Errorf("NIC %d: %d of %d names share a bucket", n.nic.id, got, names)
		}
	}
}

// Many processes of one name have ended, and left messages: they make no search long but that for these
// messages, and each is forgotten at once.
func TestDeadOfOneNameAreNotSearched(t *testing.T) {
	l := limits
	l.processes, l.names = 128, 1024
	c := newCluster(t, 1, l)
	n := c.nodes[0]
	r := n.register("r")
	const many = 100
	for i := range many {
		p := n.register("x")
		p.region(false, 0)[0] = byte(i)
		p.send(0, message{peer: "r", len: 1, flags: flagInline})
		c.run()
		p.end()
		c.run()
	}
	if got := n.nic.longestChain(); got > 4 {
		t.Errorf("%d processes share a bucket", got)
	}
	for i := range many {
		r.recv(0, message{peer: "x", len: 1, flags: flagDoorbell | flagInline})
		c.run()
		r.wantRecv(t, 0, done, 1)
		if got := r.region(true, 0)[0]; got != byte(i) {
			t.Fatalf("the message of process %d comes where that of %d is expected", got, i)
		}
		r.clear(true, 0)
	}
}
