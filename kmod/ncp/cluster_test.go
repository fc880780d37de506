//go:build linux && cgo

package ncp

import (
	"testing"
)

var limits = tableLimits{processes: 32, names: 128, groups: 16, nics: 16, packetSize: 1024, localMemory: 1 << 20}

// node is a NIC with the processes that are registered with it.
type node struct {
	nic       *hostNIC
	cluster   *cluster
	processes map[uint16]*process
	cookie    uint64
	results   map[uint64]int32
}

// cluster is some NICs that hear each other's frames in the order they were sent.
type cluster struct {
	t     testing.TB
	nodes []*node
}

func newCluster(t testing.TB, nics int, l tableLimits) *cluster {
	c := &cluster{t: t}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			if leaked := n.nic.close(); leaked != 0 {
				t.Errorf("NIC %d leaks %d bytes", n.nic.id, leaked)
			}
			for _, p := range n.processes {
				p.free()
			}
		}
	})
	for i := range nics {
		c.add(uint16(i+1), l)
	}
	c.run()
	return c
}

func (c *cluster) add(id uint16, l tableLimits) *node {
	nic, err := newNIC(id, l, 1<<18)
	if err != nil {
		c.t.Fatal(err)
	}
	n := &node{nic: nic, cluster: c, processes: map[uint16]*process{}, results: map[uint64]int32{}}
	for _, m := range c.nodes {
		m.driver(driverCommand{command: addNIC, nic: id})
		n.driver(driverCommand{command: addNIC, nic: m.nic.id})
	}
	c.nodes = append(c.nodes, n)
	return n
}

// driver posts a driver command and gives its cookie.
func (n *node) driver(d driverCommand) uint64 {
	if d.cookie == 0 {
		n.cookie++
		d.cookie = n.cookie
	}
	for !n.nic.post(d) {
		if n.nic.step(1) == 0 {
			n.cluster.t.Fatal("the Driver Command Queue is full, and the NIC does nothing")
		}
	}
	return d.cookie
}

func (n *node) collect() {
	var d [8]commandDoorbell
	for {
		k := n.nic.doorbells(d[:])
		if k == 0 {
			return
		}
		for _, d := range d[:k] {
			n.results[d.cookie] = d.result
		}
	}
}

func (n *node) result(t testing.TB, cookie uint64) int32 {
	t.Helper()
	n.collect()
	r, ok := n.results[cookie]
	if !ok {
		t.Fatalf("the driver's doorbell %d has not rung", cookie)
	}
	return r
}

// run steps all NICs and carries all frames until nothing can be done.
func (c *cluster) run() {
	for busy := true; busy; {
		busy = false
		for _, n := range c.nodes {
			busy = n.nic.step(64) > 0 || busy
		}
		busy = c.carry() || busy
	}
	for _, n := range c.nodes {
		n.collect()
	}
}

func (c *cluster) carry() (any bool) {
	for _, n := range c.nodes {
		for _, m := range c.nodes {
			if n != m {
				any = n.nic.carry(m.nic, 1<<20) > 0 || any
			}
		}
	}
	return any
}

var ordinary = registrationSizes{commands: 16, sends: 8, receives: 8, regionSize: 1024, poolEntries: 16}

// begin starts a registration of root's.
func (n *node) begin(name, group string, size uint32, r registrationSizes) (*process, uint64) {
	n.cluster.t.Helper()
	return n.beginAs(0, name, group, size, r)
}

func (n *node) beginAs(user uint64, name, group string, size uint32, r registrationSizes) (*process, uint64) {
	n.cluster.t.Helper()
	m, err := makeProcess(r)
	if err != nil {
		n.cluster.t.Fatal(err)
	}
	p := &process{hostProcess: m, node: n, name: name}
	for n.processes[p.index] != nil {
		p.index++
	}
	n.processes[p.index] = p
	return p, n.driver(driverCommand{command: newProcess, index: p.index, name: makeName(name),
		group: makeName(group), size: size, process: m, user: user})
}

func (n *node) register(name string) *process {
	n.cluster.t.Helper()
	p, cookie := n.begin(name, "", 0, ordinary)
	n.cluster.run()
	if r := n.result(n.cluster.t, cookie); r != 0 {
		n.cluster.t.Fatalf("register %s: result %d", name, r)
	}
	return p
}

// end de-registers; the mappings stay until the test ends.
func (p *process) end() {
	p.node.driver(driverCommand{command: deleteProcess, index: p.index})
}

// pair is two processes, on one NIC or on two.
func pair(t *testing.T, nics int, l tableLimits) (c *cluster, a, b *process) {
	c = newCluster(t, nics, l)
	return c, c.nodes[0].register("a"), c.nodes[nics-1].register("b")
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8) + seed
	}
}
