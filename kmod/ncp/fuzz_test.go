//go:build linux && cgo

package ncp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// FuzzWire plays another NIC: each frame is a length and bytes; a length with its top bit set leaves the header of a
// system message to the test, so that payloads are reached soon.
func FuzzWire(f *testing.F) {
	for _, data := range framesToVary() {
		f.Add(data)
	}
	f.Fuzz(playNIC)
}

func framesToVary() [][]byte {
	record := func(frames ...[]byte) (b []byte) {
		for _, frame := range frames {
			b = append(binary.LittleEndian.AppendUint16(b, uint16(len(frame))), frame...)
		}
		return b
	}
	join := system(0xff84, "g", uint32(2), 1, 1, uint32(1))
	peer := system(0xff82, "x", 1, 1, uint64(0))
	request := func(tag, id int, n uint32) []byte {
		return system(0xff80, 1, 1, 1, 1, tag, 0, uint32(id), n, min(n, 4), max(1, (n+3)/4))
	}
	return [][]byte{
		record(peer, join, system(0xff86, "g", uint32(2), 1, 1, uint32(1), uint64(1)), system(0xff88, "g", 1, 1, uint32(1), uint64(1))),
		record(peer, request(1, 1, 6), frameOf(1, 1, 1, 1, 2, 1, 1, uint32(4), 0, []byte("abcd")), system(0xff87, "x", 1, 1)),
		record(peer, request(0, 1, 0), frameOf(1, 1, 1, 1, 2, 1, 0, uint32(0), 0), request(0, 2, 9), system(0xff8a, 1, 1, 1, 1, 0, 0, uint32(2))),
		record(peer, request(2, 1, 1<<20), system(0xff89, 1, 1, 1, 1, 2, 2, uint32(1), uint32(8)), request(2, 2, 1<<18)),
		record(peer, eager(8, 8, 1, 8), eager(1024, 1024, 1, 1024), system(0xff8a, 1, 1, 1, 1, 5, 1, uint32(1)), eager(8, 8, 1, 7),
			eager(8, 4, 2, 8), system(0xff81, 1, 1, 1, 1, 2, 1, uint32(1)), system(0xff89, 1, 1, 1, 1, 3, 1, uint32(2), uint32(6))),
		record(system(0xff83, 1, 1, 0, 0), system(0xff85, "g", 1, 1, uint32(1), 0, 0), system(0xff81, 1, 1, 1, 1, 3, 0, uint32(1))),
	}
}

// playNIC has NIC 2 say what data holds.
func playNIC(t *testing.T, data []byte) {
	c := newCluster(t, 1, limits)
	n := c.nodes[0]
	a, b := n.register("a"), n.register("b")
	n.driver(driverCommand{command: addNIC, nic: 2})
	n.begin("c", "", 0, ordinary) // goes on until NIC 2 has answered, which may refuse it
	a.recv(0, message{peer: "x", tag: 1, len: 5, flags: flagDoorbell | flagInline})
	a.join(0, "g", 2)
	c.run()
	for len(data) > 2 && n.nic.statistics().systemMessages < 2000 {
		size := binary.LittleEndian.Uint16(data)
		frame := data[2:][:min(int(size&0x7fff), len(data)-2)]
		data = data[2+len(frame):]
		if size>>15 != 0 && len(frame) > 0 {
			frame = system(0xff80+int(frame[0])%11, frame[1:])
		}
		n.nic.receive(2, frame)
		n.nic.step(40)
		if i := a.freeSendContext(); i > 0 { // something of ours is always under way to it
			m := message{peer: "x", tag: uint16(i), len: 2000, flags: flagDoorbell}
			if i%2 == 0 {
				m.len, m.flags = 10, flagDoorbell|flagInline
			}
			a.send(uint16(i), m)
			if i%3 == 0 {
				a.post(cmdCancelSend, uint16(i), 0, "")
			}
			a.recv(uint16(i), message{peer: "x", tag: uint16(i), len: 100, flags: flagDoorbell | flagInline})
		}
		n.nic.drop(2)
	}
	stillWorks(t, c, a, b)
}

func (p *process) freeSendContext() int {
	for i := range p.info.sends {
		if s, _ := p.doorbell(false, uint16(i)); s != free || p.tail <= i {
			p.clear(false, uint16(i))
			return int(i)
		}
	}
	return -1
}

// stillWorks sends a message between processes of the NIC after all that was done to it.
func stillWorks(t *testing.T, c *cluster, a, b *process) {
	c.run()
	b.clear(true, 7)
	a.clear(false, 7)
	b.recv(7, message{peer: a.name, tag: 0x7777, len: 10, flags: flagDoorbell | flagInline})
	a.short(7, message{peer: b.name, tag: 0x7777, len: 10, flags: flagDoorbell})
	c.run()
	b.wantRecv(t, 7, done, 10)
}

// FuzzProcess plays a process that writes what it likes into its mappings, at any time. Nothing of another process
// changes that did not ask for it.
func FuzzProcess(f *testing.F) {
	for _, data := range writesToVary() {
		f.Add(data)
	}
	f.Fuzz(playProcess)
}

func writesToVary() (all [][]byte) {
	for code := range uint32(15) {
		for _, name := range []string{"a", "b", "g", ""} {
			command := frameOf(code<<24, int(1)<<8, 0, uint32(1<<24), name)
			all = append(all, append([]byte{0, 0, byte(len(command))}, command...))
		}
	}
	return append(all, bytes.Repeat([]byte{0, 0, 4, 1, 0, 0, 0, 255}, 9))
}

// playProcess writes into a process's mappings what data holds, while the NIC runs.
func playProcess(t *testing.T, data []byte) {
	c := newCluster(t, 1, limits)
	n := c.nodes[0]
	bad, good := n.register("a"), n.register("b")
	other := n.register("c")
	group := func(p *process) { p.join(0, "g", 2); c.run() }
	group(other)
	group(bad)
	mine, h := bad.memory(t, 5000, readAccess|writeAccess)
	secret, sh := good.memory(t, 5000, readAccess|writeAccess)
	fill(mine, 1)
	fill(secret, 2)
	for i := range uint16(4) {
		bad.context(i%2 == 0, i, message{peer: "a", tag: i, len: 3000, descriptors: []descriptor{{h, 3000, 0}}})
		bad.context(i%2 != 0, i, message{peer: "a", tag: i, len: 900, flags: flagInline | flagDoorbell})
	}
	good.recv(0, message{peer: "c", tag: 1, len: 5000, flags: flagDoorbell, descriptors: []descriptor{{sh, 5000, 0}}})
	c.run()
	before := [][]byte{bytes.Clone(good.vni), bytes.Clone(good.hps), bytes.Clone(secret)}
	for steps := 0; len(data) > 3 && steps < 400; steps++ {
		at, size := int(binary.LittleEndian.Uint16(data)), int(data[2])
		body := data[3:][:min(size&0x7f, len(data)-3)]
		data = data[3+len(body):]
		memory := bad.vni
		switch {
		case size&0x80 != 0:
			memory = bad.hps
		case at < 1<<14: // half of them at the entry that the NIC reads next
			at = int(n.head(bad)%bad.info.commands) * 64
		}
		if at %= len(memory); at < len(memory) {
			copy(memory[at:], body)
		}
		n.nic.ring(bad.index)
		n.nic.step(1 + steps%3)
	}
	c.run()
	for i, now := range [][]byte{good.vni, good.hps, secret} {
		if !bytes.Equal(before[i], now) {
			t.Fatalf("another process's memory has changed: %s", []string{"interface", "host page", "translated"}[i])
		}
	}
	bad.end()
	stillWorks(t, c, other, good)
}

// head is how many commands of p the NIC has read.
func (n *node) head(p *process) uint32 {
	s, _ := n.nic.processStatistics(p.index)
	return uint32(s.commands)
}

// vary strings seeds together and changes some bytes.
func vary(rng *rand.Rand, seeds [][]byte) (data []byte) {
	for range 1 + rng.IntN(40) {
		data = append(data, seeds[rng.IntN(len(seeds))]...)
	}
	for range rng.IntN(8) {
		data[rng.IntN(len(data))] = byte(rng.Uint32())
	}
	return data
}

// The fuzzers' runs, from fixed seeds.
func TestGarbageDoesNoHarm(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		t.Run(fmt.Sprint("frames/", seed), func(t *testing.T) { playNIC(t, vary(rng, framesToVary())) })
		t.Run(fmt.Sprint("interface/", seed), func(t *testing.T) { playProcess(t, vary(rng, writesToVary())) })
	}
}
