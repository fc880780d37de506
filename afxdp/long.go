//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/internal/kit"
)

// maxPieces is the most chunks of a frame that arrives: enough for the longest frame on a device that fills its chunks
// by half.
const maxPieces = 40

// assembly is a frame that arrives in several chunks. No chunk is kept: only placed fragments are so long, and they are
// copied when they are complete.
type assembly struct {
	pieces [maxPieces][]byte
	ids    [maxPieces]uint32
	n      int
	over   bool // there were too many chunks: the whole frame is dropped
}

// add adds a chunk. It returns false, and does not keep the chunk, if there are too many.
func (a *assembly) add(id uint32, b []byte) bool {
	if a.n == maxPieces {
		a.over = true
		return false
	}
	a.ids[a.n], a.pieces[a.n] = id, b
	a.n++
	return true
}

// arrivedPart handles one chunk of a frame in several chunks.
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

// arrivedLong handles a complete frame in several chunks.
func (n *nic) arrivedLong(a *assembly) {
	rest := a.pieces[1:a.n]
	for _, r := range rest {
		if len(r) == 0 { // no kernel passes an empty chunk
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

// join copies the frame into one piece, for captures.
func (a *assembly) join(n *nic) []byte {
	n.joined = n.joined[:0]
	for _, p := range a.pieces[:a.n] {
		n.joined = append(n.joined, p...)
	}
	return n.joined
}
