//go:build linux && cgo

package ncp

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// frameOf builds frames as another NIC does: numbers big-endian, int is 16 bits, uint32 and uint64 are themselves.
func frameOf(parts ...any) (b []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = binary.BigEndian.AppendUint16(b, uint16(p))
		case uint32:
			b = binary.BigEndian.AppendUint32(b, p)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, p)
		case string:
			n := makeName(p)
			b = append(b, n[:]...)
		case []byte:
			b = append(b, p...)
		default:
			panic(fmt.Sprintf("%T", p))
		}
	}
	return b
}

func system(code int, payload ...any) []byte {
	body := frameOf(payload...)
	return frameOf(0, 0, 1, 0, 2, 0, code, uint32(len(body)), 0, body)
}

// eager is request 1, under tag 5, for a message of n bytes, of which some come with it.
func eager(n, packet, packets uint32, with int) []byte {
	return system(0xff80, 1, 1, 1, 1, 5, 0, uint32(1), n, packet, packets, make([]byte, with))
}

const bad, late = "bad", "late"

// To NIC 1, where p0 is a member of g with a receive of tag 0 and one of 6 bytes, by 4, under tag 1 that is matched, as p1
// of NIC 2 has been granted request 77.
var hostileFrames = []struct {
	name  string
	frame []byte
	want  string
}{
	{"too short", frameOf(0, 0, 1), bad},
	{"to another NIC", frameOf(1, 1, 3, 1, 2, 1, 0, uint32(0), 0), bad},
	{"from another NIC", frameOf(1, 1, 1, 1, 3, 1, 0, uint32(0), 0), bad},
	{"length too large", frameOf(1, 1, 1, 1, 2, 1, 0, uint32(5), 0), bad},
	{"length of 4 GiB", frameOf(1, 1, 1, 1, 2, 1, 0, ^uint32(0), 0), bad},
	{"length too small", frameOf(1, 1, 1, 1, 2, 1, 0, uint32(0), 0, []byte("x")), bad},
	{"packet for nobody", frameOf(1, 1, 1, 9, 2, 1, 0, uint32(0), 0), late},
	{"packet for the dead", frameOf(7, 1, 1, 1, 2, 1, 0, uint32(0), 0), late},
	{"packet of nobody", frameOf(1, 1, 1, 1, 2, 9, 0, uint32(0), 0), late},
	{"packet without permission", frameOf(1, 1, 1, 1, 2, 1, 3, uint32(1), 0, []byte("x")), bad},
	{"packet for a receive that is not matched", frameOf(1, 1, 1, 1, 2, 1, 0, uint32(1), 0, []byte("x")), bad},
	{"packet with a wrong counter", frameOf(1, 1, 1, 1, 2, 1, 1, uint32(4), 1, []byte("xxxx")), bad},
	{"packet that is too short", frameOf(1, 1, 1, 1, 2, 1, 1, uint32(3), 0, []byte("xxx")), bad},
	{"packet that is too long", frameOf(1, 1, 1, 1, 2, 1, 1, uint32(5), 0, []byte("xxxxx")), bad},
	{"unknown message", system(0xff8b), bad},
	{"message below the codes", system(0xff7f), bad},
	{"message of a wrong size", system(0xff82, "x"), bad},
	{"request of nobody", system(0xff80, 1, 1, 9, 1, 5, 0, uint32(1), uint32(8), uint32(8), uint32(1)), bad},
	{"request under a system tag", system(0xff80, 1, 1, 1, 1, 0xff80, 0, uint32(1), uint32(8), uint32(8), uint32(1)), bad},
	{"request of 4 GiB", system(0xff80, 1, 1, 1, 1, 5, 0, uint32(1), ^uint32(0), uint32(65536), uint32(65536)), bad},
	{"request of empty packets", system(0xff80, 1, 1, 1, 1, 5, 0, uint32(1), uint32(8), uint32(0), uint32(1)), bad},
	{"request with packets longer than it", system(0xff80, 1, 1, 1, 1, 5, 0, uint32(1), uint32(8), uint32(9), uint32(1)), bad},
	{"request of huge packets", system(0xff80, 1, 1, 1, 1, 5, 0, uint32(1), uint32(1<<20), uint32(1<<17), uint32(8)), bad},
	{"request with a wrong count", system(0xff80, 1, 1, 1, 1, 5, 0, uint32(1), uint32(8), uint32(4), uint32(3)), bad},
	{"request with a part of its message", eager(8, 8, 1, 7), bad},
	{"request with more than its message", eager(8, 8, 1, 9), bad},
	{"request with a message of two packets", eager(8, 4, 2, 8), bad},
	{"request with a message that is too long", eager(1025, 1025, 1, 1025), bad},
	{"request that is too short", system(0xff80, 1, 1, 1, 1, 5, 0, uint32(1)), bad},
	{"permission for nothing", system(0xff81, 1, 1, 1, 1, 5, 0, uint32(1)), late},
	{"permission of nonsense", system(0xff81, 1, 1, 1, 1, 5, 2, uint32(1)), bad},
	{"permission for nobody", system(0xff81, 9, 1, 1, 1, 5, 0, uint32(1)), late},
	{"process without a name", system(0xff82, "", 5, 1, uint64(0)), bad},
	{"process with pid 0", system(0xff82, "x", 0, 1, uint64(0)), bad},
	{"process with generation 0", system(0xff82, "x", 5, 0, uint64(0)), bad},
	{"process that is there", system(0xff82, "x", 1, 2, uint64(0)), bad},
	{"acknowledgement with nonsense", system(0xff83, 1, 1, 5, 0), bad},
	{"acknowledgement for nobody", system(0xff83, 9, 1, 0, 0), late},
	{"group without a name", system(0xff84, "", uint32(2), 1, 1, uint32(1)), bad},
	{"group of size 0", system(0xff84, "x", uint32(0), 1, 1, uint32(1)), bad},
	{"group of nobody", system(0xff84, "x", uint32(2), 9, 1, uint32(1)), late},
	{"group that it is in", system(0xff84, "g", uint32(2), 1, 1, uint32(2)), bad},
	{"acknowledgement for no group", system(0xff85, "x", 1, 1, uint32(1), 0, 0), late},
	{"acknowledgement for no member", system(0xff85, "g", 9, 1, uint32(1), 0, 0), late},
	{"acknowledgement for an earlier join", system(0xff85, "g", 1, 1, uint32(9), 0, 0), late},
	{"acknowledgement of nonsense", system(0xff85, "g", 1, 1, uint32(1), 5, 0), bad},
	{"barrier of no group", system(0xff86, "x", uint32(2), 1, 1, uint32(1), uint64(1)), late},
	{"barrier of nobody", system(0xff86, "g", uint32(2), 9, 1, uint32(1), uint64(1)), late},
	{"barrier of another size", system(0xff86, "g", uint32(3), 1, 1, uint32(1), uint64(1)), bad},
	{"end of nobody", system(0xff87, "b", 9, 1), late},
	{"end under another name", system(0xff87, "x", 1, 1), bad},
	{"leaving no group", system(0xff88, "x", 1, 1, uint32(1), uint64(1)), late},
	{"failure for nobody", system(0xff89, 1, 1, 1, 1, 5, 3, uint32(1), uint32(5)), bad},
	{"refusal of nothing", system(0xff89, 1, 1, 1, 1, 5, 1, uint32(1), uint32(5)), late},
	{"refusal with nonsense", system(0xff89, 1, 1, 1, 1, 5, 1, uint32(1), uint32(2)), bad},
	{"giving up nothing", system(0xff89, 1, 1, 1, 1, 5, 2, uint32(1), uint32(8)), bad},
	{"giving up another request", system(0xff89, 1, 1, 1, 1, 1, 2, uint32(8), uint32(8)), bad},
	{"cancel with nonsense", system(0xff8a, 1, 1, 1, 1, 1, 2, uint32(77)), bad},
	{"cancel by nobody", system(0xff8a, 1, 1, 9, 1, 1, 0, uint32(1)), late},
}

// Frames of a NIC that lies about all it can: each is dropped and counted, and nothing else happens.
func TestHostileFrames(t *testing.T) {
	for _, tc := range hostileFrames {
		t.Run(tc.name, func(t *testing.T) {
			c, ps := crowd(t, 2, 2, false)
			a, b := ps[0], ps[1]
			a.join(0, "g", 2)
			b.join(0, "g", 2)
			a.recv(0, message{peer: "p1", tag: 0, len: 100, flags: flagDoorbell | flagInline})
			a.recv(1, message{peer: "p1", tag: 1, len: 100, flags: flagDoorbell | flagInline})
			c.run()
			nic := c.nodes[0].nic
			receive := func(f []byte) {
				if !nic.receive(2, f) {
					t.Fatal("the FIFO is full")
				}
				nic.step(50)
			}
			receive(system(0xff80, 1, 1, 1, 1, 1, 0, uint32(77), uint32(6), uint32(4), uint32(2)))
			before, rang := nic.statistics(), a.status(statusTail)
			receive(tc.frame)
			after := nic.statistics()
			gotBad, gotLate := after.badFrames-before.badFrames, after.lateFrames-before.lateFrames
			if (tc.want == bad) != (gotBad == 1) || (tc.want == late) != (gotLate == 1) {
				t.Errorf("got %d bad, %d late, want one %s", gotBad, gotLate, tc.want)
			}
			if a.status(statusTail) != rang {
				t.Error("a doorbell rang")
			}
			// The transfer that was under way goes on.
			receive(frameOf(1, 1, 1, 1, 2, 1, 1, uint32(4), 0, []byte("abcd")))
			receive(frameOf(1, 1, 1, 1, 2, 1, 1, uint32(2), 1, []byte("ef")))
			a.wantRecv(t, 1, done, 6)
			if got := a.region(true, 1)[:6]; !slices.Equal(got, []byte("abcdef")) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// When any allocation fails, nothing leaks or hangs in a loop, and the result is NO_MEMORY or that the NIC is out.
func TestAllocationFailures(t *testing.T) {
	for after := range 60 {
		c, ps := crowd(t, 2, 4, false)
		for _, n := range c.nodes {
			n.nic.failAfter(after)
		}
		for i, p := range ps {
			q := ps[(i+1)%4]
			p.join(0, "g", 4)
			p.short(1, message{peer: q.name, tag: 1, len: 10, flags: flagDoorbell})
			p.context(false, 2, message{tag: 2, len: 10, flags: flagDoorbell | flagInline})
			p.post(cmdMulticast, 2, 3, "")
			p.postNames(q.name, "p0", "p1")
			p.context(false, 3, message{tag: 3, len: 10, flags: flagDoorbell | flagInline})
			p.post(cmdBroadcast, 3, 0, "g")
			p.barrier(4, "g", 4)
		}
		c.nodes[0].begin("more", "h", 2, ordinary)
		c.run()
		for _, p := range ps {
			for i := range uint16(5) {
				switch s, _ := p.doorbell(false, i); s {
				case free, done, noMemory, unknown, gone, invalid:
				default:
					t.Fatalf("after %d: %s, context %d: %v", after, p.name, i, s)
				}
			}
		}
		for _, n := range c.nodes {
			n.nic.failAfter(-1)
		}
		for _, p := range ps {
			p.end()
		}
		c.run()
	}
}
