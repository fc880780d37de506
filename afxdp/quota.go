//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"fmt"

	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/driver"
)

// A message of the small track holds chunks to send from until the peer has received it, and a peer that never receives
// makes it hold them for good. The chunks are therefore divided:
//
//   - leastChunks for each connection of the small track that the device has room for, whatever the others hold;
//   - commonChunks for all connections. A connection takes no more of these than it leaves, so that n full connections
//     leave one part in n+1 to the others (dynamic thresholds: Choudhury and Hahne, 1998);
//   - controlChunks for frames that wait for no peer: acknowledgements, greetings, and copies that are being sent.
const (
	leastChunks   = 16
	commonChunks  = 2048
	controlChunks = 512
	leastRoom     = 192 // connections of the small track
	endingRoom    = 64  // room beyond Hints.Peers for connections that were closed while the peer does not know yet
)

// quotas count the chunks to send from that connections hold. They belong to the holder of the NIC's lock.
type quotas struct {
	room  int // connections
	least int // chunks of its own for each connection
	over  int // common chunks that are held
	of    []quota
	free  []uint16 // free indexes of of
}

// quota is the quota of one connection.
type quota struct {
	held   int
	closed bool
}

// init makes room for the connections of a device with that many peers, whose packets hold payload bytes of a message.
func (q *quotas) init(peers, payload int) {
	q.room = min(max(leastRoom, peers+endingRoom), 1<<16-1)
	q.least = max(leastChunks, (maxSmall+payload-1)/payload)
	q.of = make([]quota, q.room+1) // index 0 is not used
	for k := q.room; k > 0; k-- {
		q.free = append(q.free, uint16(k))
	}
}

// chunks returns how many chunks to send from the device needs.
func (q *quotas) chunks() int { return controlChunks + commonChunks + q.room*q.least }

// open gives a connection a quota. It returns false if there is no room.
func (q *quotas) open() (id uint16, ok bool) {
	if len(q.free) == 0 {
		return 0, false
	}
	id = q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	q.of[id] = quota{}
	return id, true
}

// close ends a quota once its last chunk is given back.
func (q *quotas) close(id uint16) {
	if q.of[id].closed = true; q.of[id].held == 0 {
		q.free = append(q.free, id)
	}
}

// take counts a chunk. It returns false if the connection may not have one now.
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

// back uncounts a chunk that was given back.
func (q *quotas) back(id uint16) {
	x := &q.of[id]
	if x.held--; x.held >= q.least {
		q.over--
	}
	if x.closed && x.held == 0 {
		q.free = append(q.free, id)
	}
}

// plenty reports whether connections may take more chunks than they need now.
func (q *quotas) plenty() bool { return q.over < commonChunks/2 }

// take lends a chunk to a connection of the small track until put.
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

// pool returns the pool of frames that peers may fill, with shares for Hints.Peers connections of each track.
func (o *options) pool(run int) *link.Pool {
	return link.NewPool(o.frames, o.peers*(link.Share(1, 1)+link.Share(run+1, 1)))
}

// framesOf returns the default of option frames: enough for the shares of both tracks' connections, and some to grow
// into.
func framesOf(peers int) int { return min(max(optionTable.Defaults.frames, 64*peers), 1<<16) }

// full returns the error of a refused connection, which names the option that makes room.
func (c *share) full(why error) error {
	return fmt.Errorf("%w: Hints.Peers=%d and option frames=%d leave no room for another connection (%w): "+
		"raise Hints.Peers where the device is first opened", driver.ErrBusy, c.nic.opts.peers, c.nic.opts.frames, why)
}
