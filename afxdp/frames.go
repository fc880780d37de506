//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/afxdp/xsk"
)

// Layout of a frame in a chunk to send from: the headers end at dataAt, and the link packet begins there.
const (
	dataAt = 128
	// prefixSize is the size of the prefix of every payload: magic, version, and the numbers of the destination and
	// source contexts.
	prefixSize  = 4
	prefixMagic = 0xb7
)

// chunk is the state of a chunk of the UMEM.
type chunk struct {
	sending bool   // in a transmit ring, or on its way back
	back    bool   // given back while it was being sent
	owner   uint16 // quota that it counts for; 0: none
}

// memory holds the chunks of a NIC. It belongs to the holder of the lock.
type memory struct {
	umem   *xsk.UMEM
	size   int // of a chunk
	chunks []chunk
	free   []uint32 // chunks to send from
	spare  []uint32 // chunks to receive into
	quotas quotas   // of chunks to send from

	// Runs of adjacent chunks, to send long frames from. The first chunk identifies a run.
	longAt  int // number of the first chunk in a run
	run     int // chunks of each; 0: there are none
	runs    []run
	longest []uint32 // runs that are free
}

// run is the state of a run.
type run struct {
	under int  // chunks in a transmit ring, or on their way back
	back  bool // given back while it was being sent
}

func (m *memory) init(umem *xsk.UMEM, receive, runChunks int) {
	m.umem, m.size = umem, umem.ChunkSize()
	m.chunks = make([]chunk, umem.Chunks())
	m.longAt, m.run = len(m.chunks), runChunks
	if runChunks > 0 {
		m.runs = make([]run, longChunks/runChunks)
		m.longAt -= len(m.runs) * runChunks
	}
	m.free, m.spare = make([]uint32, 0, m.longAt), make([]uint32, 0, m.longAt)
	for k := range m.longAt {
		if k < receive {
			m.spare = append(m.spare, uint32(k))
			continue
		}
		m.free = append(m.free, uint32(k))
	}
	for k := range m.runs {
		m.longest = append(m.longest, uint32(k))
	}
}

// bytes returns the whole chunk.
func (m *memory) bytes(k uint32) []byte { return m.umem.Frame(m.umem.Addr(int(k))) }

// frame returns a chunk in the form of package link.
func (m *memory) frame(k uint32) link.Frame {
	return link.Frame{ID: uint64(k), Data: m.bytes(k)[dataAt:]}
}

func (c *share) Get() (link.Frame, bool) {
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

// GetLong implements link.Carrier. It returns no frame while none can be sent, because link would fill it in vain at
// each attempt.
func (c *share) GetLong() (link.Frame, bool) {
	m := &c.nic.memory
	for k := range c.nic.queues {
		if q := &c.nic.queues[k]; q.stuck && q.out+m.run > len(q.batch) {
			return link.Frame{}, false
		}
	}
	if len(m.longest) == 0 {
		c.nic.reclaim()
		if len(m.longest) == 0 {
			return link.Frame{}, false
		}
	}
	r := int(m.longest[len(m.longest)-1])
	m.longest = m.longest[:len(m.longest)-1]
	first := m.longAt + r*m.run
	return link.Frame{ID: uint64(first), Data: m.umem.Span(m.umem.Addr(first), m.run*m.size)[dataAt:]}, true
}

func (c *share) Put(id uint64) { c.nic.put(uint32(id)) }

func (n *nic) put(k uint32) {
	m := &n.memory
	if int(k) >= m.longAt {
		r := (int(k) - m.longAt) / m.run
		if m.runs[r].back = m.runs[r].under > 0; !m.runs[r].back {
			m.longest = append(m.longest, uint32(r))
		}
		return
	}
	if int(k) < n.rxChunks { // chunks keep their direction, so that neither direction starves the other
		m.spare = append(m.spare, k)
		return
	}
	if s := &m.chunks[k]; s.sending {
		s.back = true
		return
	}
	m.freed(k)
}

func (c *share) Sending(id uint64) bool { // never called for a long frame, which link gives back at once
	s := &c.nic.memory.chunks[id]
	if s.sending {
		c.nic.reclaim()
	}
	if s.sending {
		c.nic.kickDead() // it waits in a ring since the link was down
	}
	return s.sending
}

func (c *share) Address(r link.Route) []byte { return c.routes[r].name }

func (c *share) Send(r link.Route, f link.Frame, size int) bool {
	n := c.nic
	var p *peerPath
	if r == link.Reply {
		p = n.reply()
	} else {
		p = c.routes[r].path.Load()
	}
	if p == nil {
		return true // the route is unknown now: the frame counts as lost
	}
	q := &n.queues[int(r)%len(n.queues)]
	m := &n.memory
	at := dataAt - prefixSize - p.headerLen
	b, parts := m.bytes(uint32(f.ID)), 1
	if int(f.ID) >= m.longAt {
		b = m.umem.Span(m.umem.Addr(int(f.ID)), m.run*m.size)
		parts = (dataAt + size + m.size - 1) / m.size
	}
	if q.out+parts > len(q.batch) {
		n.fill() // before peers get the credit that these frames carry
	}
	if q.out+parts > len(q.batch) && (!n.push(q) || q.out+parts > len(q.batch)) {
		return false
	}
	b[dataAt-4], b[dataAt-3], b[dataAt-2], b[dataAt-1] = prefixMagic, urlVersion, p.number, c.number
	total := p.path.Put(b[at:], prefixSize+size)
	if total == 0 {
		return true
	}
	addr := m.umem.Addr(int(f.ID)) + uint64(at)
	if int(f.ID) >= m.longAt {
		m.runs[(int(f.ID)-m.longAt)/m.run].under += parts
		q.addLong(addr, total, m.size)
		return true
	}
	m.chunks[f.ID].sending = true
	q.batch[q.out] = xsk.Desc{Addr: addr, Len: uint32(total)}
	q.out++
	return true
}

// addLong adds a frame that lies in adjacent chunks to the batch.
func (q *queue) addLong(addr uint64, total, chunk int) {
	for total > 0 {
		n := min(total, chunk-int(addr%uint64(chunk)))
		d := xsk.Desc{Addr: addr, Len: uint32(n)}
		if total -= n; total > 0 {
			d.Options = xsk.DescContinued
		}
		q.batch[q.out] = d
		q.out++
		addr += uint64(n)
	}
}

// reclaim takes back chunks that the kernel has sent.
func (n *nic) reclaim() {
	var addrs [64]uint64
	m := &n.memory
	for k := range n.queues {
		q := &n.queues[k]
		for {
			got := q.sock.Complete(addrs[:])
			for _, a := range addrs[:got] {
				m.sent(m.umem.Chunk(a))
			}
			q.under -= got
			if got < len(addrs) {
				break
			}
		}
	}
}

// sent takes back one chunk.
func (m *memory) sent(id int) {
	if id >= m.longAt {
		k := (id - m.longAt) / m.run
		r := &m.runs[k]
		if r.under--; r.under == 0 && r.back {
			r.back = false
			m.longest = append(m.longest, uint32(k))
		}
		return
	}
	s := &m.chunks[id]
	s.sending = false
	if s.back {
		s.back = false
		m.freed(uint32(id))
	}
}

// push passes the batch to the kernel, whole frames only.
func (n *nic) push(q *queue) bool {
	ready := min(q.out, q.sock.TxFree())
	for ready > 0 && q.batch[ready-1].Options&xsk.DescContinued != 0 {
		ready--
	}
	sent := q.sock.Transmit(q.batch[:ready])
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

// freeChunks is the number of chunks for packets without credit: acknowledgements, greetings and forgeries.
const freeChunks = 64

// fill gives the kernel chunks to receive into: as many as peers have credit for, and freeChunks. The kernel uses them
// in turn, so a small number keeps more of them in the caches. A device that writes to the chunks itself gets all, for they
// are its receive ring, which takes the host's other frames, too.
func (n *nic) fill() {
	m := &n.memory
	target := freeChunks + n.pool.Reserved()
	for _, c := range n.contexts[:n.used] {
		if c != nil {
			target += freeChunks/2 + 2*c.end.Conns()
		}
	}
	var addrs [64]uint64
	for k := range n.queues {
		q := &n.queues[k]
		limit := q.rxLimit
		if !q.sock.ZeroCopy() {
			limit = min(limit, target)
		}
		for len(m.spare) > 0 {
			want := min(len(m.spare), len(addrs), limit-q.posted)
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
