//go:build linux && cgo

package ncp

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// barrierCase is the simulation's model with a group of three, p0 to p2, each on a NIC of its own.
type barrierCase struct {
	*sim
	g *simGroup
}

func newBarrierCase(t *testing.T) *barrierCase {
	c := &barrierCase{&sim{cluster: &cluster{t: t}, rng: rand.New(rand.NewPCG(1, 1)), flows: map[flowKey]*flow{},
		base: map[*node]uint64{}}, &simGroup{name: "g", size: 3}}
	t.Cleanup(c.free)
	c.groups = []*simGroup{c.g}
	for range 3 {
		c.addNIC()
	}
	for _, n := range c.nodes {
		c.registerOn(n, c.g, ordinary)
	}
	c.settle()
	return c
}

func (c *barrierCase) post(uid int) { c.barrier(c.actors[uid], c.actors[uid].freeSend(), c.g) }

// between runs some NICs, and carries their frames to each other.
func (c *barrierCase) between(nics ...int) {
	for range 4 {
		for _, i := range nics {
			c.nodes[i].nic.step(20)
			for _, j := range nics {
				if i != j {
					c.nodes[i].nic.carry(c.nodes[j].nic, 20)
				}
			}
		}
	}
	for _, a := range c.actors {
		c.listen(a)
	}
}

// forge has p2's NIC hear that p1 has reached the same barrier as p2: both have the same pid.
func (c *barrierCase) forge() {
	from, to := c.nodes[2].nic, c.nodes[1].nic
	from.step(20)
	var last []byte
	for f := from.frame(to.id); len(f) > 0; f = from.frame(to.id) {
		last = slices.Clone(f)
		from.consume(to.id)
	}
	binary.BigEndian.PutUint16(last[4:], from.id)
	binary.BigEndian.PutUint16(last[8:], to.id)
	from.receive(to.id, last)
}

// wrong returns what the model finds wrong.
func (c *barrierCase) wrong(t *testing.T, do func(*testing.T, *barrierCase)) (found failure) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			found = f
		}
	}()
	do(t, c)
	return ""
}

func (c *barrierCase) wantDone(t *testing.T, want int) {
	t.Helper()
	if c.stats.barriers != want {
		t.Fatalf("%d barriers are done, want %d", c.stats.barriers, want)
	}
}

// The model permits what the NICs do, and notices what they must not do.
func TestModelOfBarriers(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, c *barrierCase)
		want failure
	}{
		// p0's and p1's barrier rings GONE at them when p1 ends. p2 enters it before its NIC hears of that, so all
		// have reached it, and it is done there, also if another process has tried to join meanwhile.
		{"done where a leaver is still known", func(t *testing.T, c *barrierCase) {
			c.post(0)
			c.post(1)
			c.between(0, 1, 2)
			c.kill(c.actors[1])
			c.between(0, 1)
			p := c.registerOn(c.nodes[2], nil, ordinary)
			c.nodes[2].nic.step(20)
			c.between(2)
			c.g.join(p)
			p.sends[0] = simSend{busy: true, command: cmdJoinGroup, group: c.g}
			p.join(0, "g", 3)
			c.between(2) // its NIC knows three members
			c.post(2)
			c.between(2)
			c.wantDone(t, 1)
		}, ""},
		{"done before another has reached it", func(t *testing.T, c *barrierCase) {
			c.post(0)
			c.between(0, 1, 2)
			c.post(2)
			c.forge()
			c.between(2)
		}, "p2: barrier 1 of g is done, and p1 has posted 0, the first 0 for earlier ones"},
		// p1's barrier of before is not one of those who are members now.
		{"done with one that has rung GONE", func(t *testing.T, c *barrierCase) {
			c.post(1)
			c.between(0, 1, 2)
			c.kill(c.actors[0])
			c.between(0, 1, 2)
			c.registerOn(c.nodes[0], c.g, ordinary)
			c.settle()
			c.post(3)
			c.between(0, 1, 2)
			c.post(2)
			c.forge()
			c.between(2)
		}, "p2: barrier 1 of g is done, and p1 has posted 1, the first 0 for earlier ones"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := newBarrierCase(t).wrong(t, tc.do); got != tc.want {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
		})
	}
}
