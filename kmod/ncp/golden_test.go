//go:build linux && cgo

package ncp

import (
	"encoding/hex"
	"strings"
	"testing"
)

// frames takes all frames from one NIC to another and hands them on.
func (c *cluster) frames(from, to int) (all []string) {
	n, m := c.nodes[from].nic, c.nodes[to].nic
	for f := n.frame(m.id); len(f) > 0; f = n.frame(m.id) {
		all = append(all, hex.EncodeToString(f))
		if !m.receive(n.id, f) {
			c.t.Fatal("the input FIFO is full")
		}
		n.consume(m.id)
	}
	return all
}

// golden is what goes over the wire, byte by byte: generations, the specification's header of 16 bytes, payload.
func golden(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d frames, want %d: %v", what, len(got), len(want), got)
	}
	for i := range want {
		if w := strings.ReplaceAll(want[i], " ", ""); got[i] != w {
			t.Errorf("%s:\n got %s\nwant %s", what, got[i], w)
		}
	}
}

const (
	to2     = "0000 0000  0002 0000 0001 0000 "
	to1     = "0000 0000  0001 0000 0002 0000 "
	nameA   = "6100000000000000000000000000000000000000 "
	nameB   = "6200000000000000000000000000000000000000 "
	nameG   = "6700000000000000000000000000000000000000 "
	counter = "0000 "
)

func TestFramesAreThoseOfTheDocumentation(t *testing.T) {
	c := newCluster(t, 2, limits)
	step := func(i int) { c.nodes[i].nic.step(20) }
	a, _ := c.nodes[0].beginAs(1000, "a", "", 0, ordinary)
	step(0)
	golden(t, "New_Process", c.frames(0, 1), to2+"ff82 00000020"+counter+nameA+"0001 0001 00000000000003e8")
	step(1)
	golden(t, "New_Process_Ack", c.frames(1, 0), to1+"ff83 00000008"+counter+"0001 0001 0000 0000")
	c.nodes[1].register("b")

	a.send(0, message{peer: "b", tag: 0x1234, len: 1500, flags: flagDoorbell})
	step(0)
	golden(t, "Permission_Request", c.frames(0, 1), to2+"ff80 0000001c"+counter+
		"0001 0001 0001 0001 1234 0000 00000001 000005dc 00000400 00000002")
	step(1)
	golden(t, "Permission_Reply", c.frames(1, 0), to1+"ff81 00000010"+counter+"0001 0001 0001 0001 1234 0000 00000001")
	step(0) // it has no memory to send
	golden(t, "Failure for the receiver", c.frames(0, 1), to2+"ff89 00000014"+counter+
		"0001 0001 0001 0001 1234 0002 00000001 00000008")
	step(1)

	_, h := a.memory(t, 1<<20, readAccess)
	a.send(1, message{peer: "b", tag: 2, len: 1 << 20, descriptors: []descriptor{{h, 1 << 20, 0}}})
	step(0)
	c.frames(0, 1)
	a.post(cmdCancelSend, 1, 0, "")
	step(0)
	golden(t, "Cancel", c.frames(0, 1), to2+"ff8a 00000010"+counter+"0001 0001 0001 0001 0002 0000 00000002")

	from, h := a.memory(t, 1024+6, readAccess)
	copy(from[1024:], "golden")
	a.send(2, message{peer: "b", tag: 3, len: len(from), descriptors: []descriptor{{h, uint32(len(from)), 0}}})
	step(0)
	c.frames(0, 1)
	step(1)
	c.frames(1, 0)
	step(0)
	golden(t, "packets", c.frames(0, 1),
		"0001 0001  0002 0001 0001 0001 0003 00000400 0000"+strings.Repeat("00", 1024),
		"0001 0001  0002 0001 0001 0001 0003 00000006 0001 676f6c64656e")
	step(1)

	copy(a.region(false, 3), "golden")
	a.send(3, message{peer: "b", tag: 4, len: 6, flags: flagInline})
	step(0)
	golden(t, "Permission_Request with its message", c.frames(0, 1), to2+"ff80 00000022"+counter+
		"0001 0001 0001 0001 0004 0000 00000004 00000006 00000006 00000001 676f6c64656e")
	step(1)
	golden(t, "Permission_Reply, taken", c.frames(1, 0), to1+"ff81 00000010"+counter+"0001 0001 0001 0001 0004 0001 00000004")
	step(0)

	a.send(3, message{peer: "b", tag: 5, len: 6, flags: flagInline})
	step(0)
	c.nodes[0].nic.drop(2)
	a.post(cmdCancelSend, 3, 0, "")
	step(0)
	golden(t, "Cancel to be confirmed", c.frames(0, 1), to2+"ff8a 00000010"+counter+"0001 0001 0001 0001 0005 0001 00000005")
}

func TestFramesOfGroupsAreThoseOfTheDocumentation(t *testing.T) {
	c, a, b := pair(t, 2, limits)
	step := func(i int) { c.nodes[i].nic.step(20) }
	a.join(3, "g", 2)
	step(0)
	golden(t, "New_Group", c.frames(0, 1), to2+"ff84 00000020"+counter+nameG+"00000002 0001 0001 00000001")
	b.join(3, "g", 2)
	step(1)
	golden(t, "New_Group, New_Group_Ack", c.frames(1, 0), to1+"ff84 00000020"+counter+nameG+"00000002 0001 0001 00000001",
		to1+"ff85 00000020"+counter+nameG+"0001 0001 00000001 0000 0000")
	c.run()
	a.barrier(4, "g", 2)
	step(0)
	golden(t, "Barrier", c.frames(0, 1), to2+"ff86 00000028"+counter+nameG+"00000002 0001 0001 00000001 "+goldenView)
	b.barrier(4, "g", 2)
	c.run()
	a.post(cmdLeaveGroup, 5, 0, "g")
	step(0)
	golden(t, "Leave_Group", c.frames(0, 1), to2+"ff88 00000024"+counter+nameG+"0001 0001 00000001 "+goldenView)

	b.end()
	step(1)
	golden(t, "Leave_Group, Delete_Process", c.frames(1, 0),
		to1+"ff88 00000024"+counter+nameG+"0001 0001 00000001 "+goldenView,
		to1+"ff87 00000018"+counter+nameB+"0001 0001")
	a.send(6, message{peer: "b", tag: 9, len: 0})
	step(0) // it has heard of the end; the next frame is of one that has not
	request, _ := hex.DecodeString(strings.ReplaceAll(to2+"ff80 0000001c"+counter+
		"0001 0001 0001 0001 0009 0000 00000007 00000000 00000000 00000001", " ", ""))
	c.nodes[1].nic.receive(1, request)
	step(1)
	golden(t, "Failure for the sender", c.frames(1, 0), to1+"ff89 00000014"+counter+
		"0001 0001 0001 0001 0009 0001 00000007 00000005")
}

// goldenView is the sum of both members' marks.
const goldenView = "d239b3c7162d3432"
