//go:build linux

package afxdp

import (
	"fmt"

	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/driver"
)

// Chunks to send from. A message of the small track holds some until the peer has it, and a peer that does not
// receive has them held for good. So they are divided:
//
//   - leastChunks for each connection of the small track that the device has room for, whatever the others hold;
//   - commonChunks for all of them. A connection takes no more of these than it leaves, so that n that fill up leave
//     one part in n+1 to the others (dynamic thresholds: Choudhury and Hahne, 1998);
//   - controlChunks for what waits for no peer: acknowledgements, greetings, and copies while they are being sent.
const (
	leastChunks   = 16
	commonChunks  = 2048
	controlChunks = 512
	leastRoom     = 192 // connections of the small track
	endingRoom    = 64  // and, beyond Hints.Peers, those that have been closed while the peer does not know
)

// quotas are what connections of a device hold of the chunks to send from. They belong to whoever holds the NIC's lock.
type quotas struct {
	room  int // connections
	least int // chunks of each
	over  int // chunks that are held beyond least
	of    []quota
	free  []uint16 // of of
}

// quota is one connection's.
type quota struct {
	held   int
	closed bool
}

// init makes room for as many connections as the device shall carry, with packets that hold so many bytes of a message.
func (q *quotas) init(peers, payload int) {
	q.room = min(max(leastRoom, peers+endingRoom), 1<<16-1)
	q.least = max(leastChunks, (maxSmall+payload-1)/payload)
	q.of = make([]quota, q.room+1) // 0 is nobody's
	for k := q.room; k > 0; k-- {
		q.free = append(q.free, uint16(k))
	}
}

// chunks is how many there must be.
func (q *quotas) chunks() int { return controlChunks + commonChunks + q.room*q.least }

// open gives a connection a quota; false: there is no room for it.
func (q *quotas) open() (id uint16, ok bool) {
	if len(q.free) == 0 {
		return 0, false
	}
	id = q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	q.of[id] = quota{}
	return id, true
}

// close ends a quota when the last chunk is back.
func (q *quotas) close(id uint16) {
	if q.of[id].closed = true; q.of[id].held == 0 {
		q.free = append(q.free, id)
	}
}

// take counts a chunk; false: the connection may not have it now.
func (q *quotas) take(id uint16) bool {
	x := &q.of[id]
	if mine := x.held - q.least; mine >= 0 {
		if mine >= commonChunks-q.over {
			return false
		}
		q.over++
	}
	x.held++
	return true
}

// back counts a chunk that was given back.
func (q *quotas) back(id uint16) {
	x := &q.of[id]
	if x.held--; x.held >= q.least {
		q.over--
	}
	if x.closed && x.held == 0 {
		q.free = append(q.free, id)
	}
}

// plenty reports whether connections may take more than they need now.
func (q *quotas) plenty() bool { return q.over < commonChunks/2 }

// take lends a chunk to a connection of the small track, until it is put.
func (n *nic) take(id uint16) (uint32, bool) {
	m := &n.memory
	if len(m.free) == 0 {
		n.reclaim()
	}
	if len(m.free) == 0 || !m.quotas.take(id) {
		return 0, false
	}
	k := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	m.chunks[k].owner = id
	return k, true
}

// freed takes back a chunk to send from.
func (m *memory) freed(k uint32) {
	if s := &m.chunks[k]; s.owner != 0 {
		m.quotas.back(s.owner)
		s.owner = 0
	}
	m.free = append(m.free, k)
}

// pool makes the frames that peers may fill, with shares for Hints.Peers connections of each track.
func (o *options) pool(run int) *link.Pool {
	return link.NewPool(o.frames, o.peers*(link.Share(0, 0)+link.Share(run+1, 1)))
}

// framesOf is how many frames peers may fill where no option says so: room for the shares of both tracks' connections,
// and some to grow into.
func framesOf(peers int) int { return min(max(optionTable.Defaults.frames, 64*peers), 1<<16) }

// full says that a connection was refused, and which option makes room.
func (c *share) full(why error) error {
	return fmt.Errorf("%w: Hints.Peers=%d and option frames=%d leave no room for another connection (%w): "+
		"raise Hints.Peers where the device is first opened", driver.ErrBusy, c.nic.opts.peers, c.nic.opts.frames, why)
}
