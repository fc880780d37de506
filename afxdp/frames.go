//go:build linux

package afxdp

import (
	"github.com/bywash/bywash/afxdp/link"
	"github.com/bywash/bywash/afxdp/xsk"
)

// Where a frame lies in a chunk that is sent: its link packet begins at dataAt, the headers
// in front of it end there.
const (
	dataAt = 128
	// prefixSize is what our payloads begin with: magic, version, and the numbers of the contexts that
	// they go to and come from.
	prefixSize  = 4
	prefixMagic = 0xb7
)

// chunk is what we know of a chunk of the UMEM.
type chunk struct {
	sending bool // in a transmit ring, or on the way back from it
	back    bool // given back while it was being sent
}

// memory is the chunks of a NIC. It belongs to whoever holds the lock.
type memory struct {
	umem   *xsk.UMEM
	size   int // of a chunk
	chunks []chunk
	free   []uint32 // to send from
	spare  []uint32 // to be filled: they receive
}

func (m *memory) init(umem *xsk.UMEM, receive int) {
	m.umem, m.size = umem, umem.ChunkSize()
	m.chunks = make([]chunk, umem.Chunks())
	m.free, m.spare = make([]uint32, 0, len(m.chunks)), make([]uint32, 0, len(m.chunks))
	for k := range m.chunks {
		if k < receive {
			m.spare = append(m.spare, uint32(k))
			continue
		}
		m.free = append(m.free, uint32(k))
	}
}

// bytes is a chunk as a whole.
func (m *memory) bytes(k uint32) []byte { return m.umem.Frame(m.umem.Addr(int(k))) }

// frame is a chunk as link sees it.
func (m *memory) frame(k uint32) link.Frame {
	return link.Frame{ID: uint64(k), Data: m.bytes(k)[dataAt:]}
}

// Get implements link.Carrier.
func (c *Context) Get() (link.Frame, bool) {
	m := &c.nic.memory
	if len(m.free) == 0 {
		c.nic.reclaim()
		if len(m.free) == 0 {
			return link.Frame{}, false
		}
	}
	k := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	return m.frame(k), true
}

// Put implements link.Carrier.
func (c *Context) Put(id uint64) { c.nic.put(uint32(id)) }

func (n *nic) put(k uint32) {
	m := &n.memory
	if int(k) < n.rxChunks { // each half keeps its number, so that neither direction starves the other
		m.spare = append(m.spare, k)
		return
	}
	if s := &m.chunks[k]; s.sending {
		s.back = true
		return
	}
	m.free = append(m.free, k)
}

// Sending implements link.Carrier.
func (c *Context) Sending(id uint64) bool {
	s := &c.nic.memory.chunks[id]
	if s.sending {
		c.nic.reclaim()
	}
	return s.sending
}

// Send implements link.Carrier.
func (c *Context) Send(r link.Route, f link.Frame, size int) bool {
	n := c.nic
	var p *peerPath
	if r == link.Reply {
		p = n.reply()
	} else {
		p = c.routes[r].path.Load()
	}
	if p == nil {
		return true // nowhere to at the moment: it counts as lost
	}
	q := &n.queues[int(r)%len(n.queues)]
	if q.out == len(q.batch) && !n.push(q) {
		return false
	}
	m := &n.memory
	b := m.bytes(uint32(f.ID))
	at := dataAt - prefixSize - p.headerLen
	b[dataAt-4], b[dataAt-3], b[dataAt-2], b[dataAt-1] = prefixMagic, URLVersion, p.number, c.number
	total := p.path.Put(b[at:], prefixSize+size)
	if total == 0 {
		return true
	}
	m.chunks[f.ID].sending = true
	q.batch[q.out] = xsk.Desc{Addr: m.umem.Addr(int(f.ID)) + uint64(at), Len: uint32(total)}
	q.out++
	return true
}

// reclaim takes back chunks that were sent.
func (n *nic) reclaim() {
	var addrs [64]uint64
	m := &n.memory
	for k := range n.queues {
		q := &n.queues[k]
		for {
			got := q.sock.Complete(addrs[:])
			for _, a := range addrs[:got] {
				id := uint32(m.umem.Chunk(a))
				s := &m.chunks[id]
				s.sending = false
				if s.back {
					s.back = false
					m.free = append(m.free, id)
				}
			}
			q.under -= got
			if got < len(addrs) {
				break
			}
		}
	}
}

// push hands what is batched to the kernel.
func (n *nic) push(q *queue) bool {
	sent := q.sock.Transmit(q.batch[:q.out])
	if sent > 0 {
		if to := n.tap.Sinks(); to != nil {
			n.showSent(to, q.batch[:sent])
		}
		q.under += sent
		copy(q.batch[:], q.batch[sent:q.out])
		q.out -= sent
	}
	q.kick(n)
	return q.out < len(q.batch)
}

// freeChunks is how many chunks there are for acknowledgements, greetings, and what is not genuine.
const freeChunks = 64

// fill gives the kernel chunks to receive into: as many as peers have credit for, and some for what
// needs none. The kernel takes them in turn, so that few stay in the caches.
func (n *nic) fill() {
	m := &n.memory
	target := freeChunks
	for _, c := range n.contexts[:n.used] {
		if c != nil {
			target += c.end.Reserved() + freeChunks/2 + 2*c.end.Conns()
		}
	}
	var addrs [64]uint64
	for k := range n.queues {
		q := &n.queues[k]
		for len(m.spare) > 0 {
			want := min(len(m.spare), len(addrs), min(target, q.rxLimit)-q.posted)
			if want <= 0 {
				break
			}
			for j, id := range m.spare[len(m.spare)-want:] {
				addrs[j] = m.umem.Addr(int(id))
			}
			done := q.sock.Fill(addrs[:want])
			m.spare = m.spare[:len(m.spare)-done]
			q.posted += done
			if done < want {
				break
			}
		}
	}
}
