//go:build linux && cgo

package ncp

import "testing"

// Receives of one sender and tag ring in the order they were posted, also if the first takes a message of local memory
// in many steps, and the message of the second arrives meanwhile.
func TestDoorbellsOfATagRingInOrder(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		const size = 8 * packet
		_, h := a.memory(t, size, readAccess)
		p, _ := b.node.begin("c", "", 0, registrationSizes{commands: 16, sends: 2, receives: 8, regionSize: 1024, poolEntries: size})
		c.run()
		_, th := p.memory(t, size, writeAccess)
		a.send(0, message{peer: "c", len: size, flags: flagDoorbell, descriptors: []descriptor{{h, size, 0}}})
		c.run()
		a.wantSend(t, 0, done, size)
		p.recv(5, message{peer: "a", len: size, flags: flagDoorbell | flagPool, descriptors: crumbs(th, size)})
		p.recv(2, message{peer: "a", len: 8, flags: flagDoorbell | flagInline})
		p.recv(4, message{peer: "a", len: 8, flags: flagDoorbell | flagInline})
		p.node.nic.step(4) // it has read them, and the first has some of its message
		p.wantRecv(t, 5, free, 0)
		a.short(1, message{peer: "c", len: 8, flags: flagDoorbell})
		a.short(2, message{peer: "c", len: 7, flags: flagDoorbell})
		a.node.nic.step(4)
		c.carry()
		c.run()
		p.wantRecv(t, 5, done, size)
		p.wantRecv(t, 2, done, 8)
		p.wantRecv(t, 4, done, 7)
		for _, want := range []uint16{5, 2, 4} {
			if receive, i, ok := p.rung(); !receive || i != want || !ok {
				t.Fatalf("the ring says receive %v %d (%v), want receive %d", receive, i, ok, want)
			}
		}
	})
}
