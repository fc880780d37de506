//go:build linux

package afxdp

import (
	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/driver/kit"
)

// maxPieces is in how many chunks a frame may arrive: the longest of all, where a device fills them by half.
const maxPieces = 40

// assembly is a frame that arrives in several chunks. None of them is kept: only placed
// fragments are so long, and they are copied when they are complete.
type assembly struct {
	pieces [maxPieces][]byte
	ids    [maxPieces]uint32
	n      int
	over   bool // there were too many: it is dropped, all of it
}

// add takes a piece; false: it is one too many, and not taken.
func (a *assembly) add(id uint32, b []byte) bool {
	if a.n == maxPieces {
		a.over = true
		return false
	}
	a.ids[a.n], a.pieces[a.n] = id, b
	a.n++
	return true
}

// arrivedPart takes a chunk of such a frame.
func (n *nic) arrivedPart(a *assembly, id uint32, b []byte, last bool, to []kit.Sink) {
	m := &n.memory
	if !a.add(id, b) {
		m.spare = append(m.spare, id)
	}
	if !last {
		return
	}
	if to != nil {
		n.showArrived(to, a.join(n))
	}
	if a.over {
		n.stats.pieces++
	} else {
		n.arrivedLong(a)
	}
	m.spare = append(m.spare, a.ids[:a.n]...)
	clear(a.pieces[:a.n])
	a.n, a.over = 0, false
}

// arrivedLong takes such a frame when it is complete.
func (n *nic) arrivedLong(a *assembly) {
	rest := a.pieces[1:a.n]
	for _, r := range rest {
		if len(r) == 0 { // no kernel does that
			n.stats.pieces++
			return
		}
	}
	var code carrier.Code
	n.from, code = carrier.ParsePieces(a.pieces[0], rest, &n.filter)
	if c := n.contextOf(code); c != nil {
		b := n.from.Payload
		n.source(b[3])
		c.end.InputPieces(n.now, b[prefixSize:], rest)
	}
}

// join is the frame in one piece, for those who capture.
func (a *assembly) join(n *nic) []byte {
	n.joined = n.joined[:0]
	for _, p := range a.pieces[:a.n] {
		n.joined = append(n.joined, p...)
	}
	return n.joined
}
