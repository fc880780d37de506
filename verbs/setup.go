package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// Sizes of queues. A send queue has room for the messages of a window, for
// operations, and for control.
const (
	smallSends = 128
	largeSends = 128
	rxSends    = 512 // requests of the receiving queue pair: cancels, and windows of all pieces of all receives, twice
)

// Receives of the large track: an announcement for each transfer, and a goodbye.
const (
	largeReceives = transferDepth + 2
	announcement  = 64 // bytes
)

// peerAccess is the most that the queue pairs allow peers; keys narrow it.
const peerAccess = ibv.AccessLocalWrite | ibv.AccessRemoteWrite | ibv.AccessRemoteRead | ibv.AccessRemoteAtomic

// newConn makes a connection's queues and buffers. The caller holds c.Mu.
func (c *opened) newConn(num uint32, peer string, u driver.URL) (*conn, error) {
	var n *conn
	var err error
	if c.Props.Track == driver.Large {
		l := &large{}
		l.Large.Init(&l.Conn, l, maxMessage)
		l.Prefetcher.Init(&l.Conn, l)
		l.ahead.Init(2*transferDepth, maxPieces)
		n, l.api = &l.conn, l
		c.initConn(n, num, peer, u)
		err = c.initLarge(l)
	} else {
		s := &small{}
		s.Small.Init(&s.Conn, s)
		n, s.api = &s.conn, s
		c.initConn(n, num, peer, u)
		err = c.initSmall(s)
	}
	if err != nil {
		c.discard(n)
		return nil, err
	}
	return n, nil
}

func (c *opened) initConn(n *conn, num uint32, peer string, u driver.URL) {
	n.ctx, n.peerInc = c, u.Incarnation
	c.Add(n, num, peer, n.api, n.api)
}

func (c *opened) initSmall(s *small) (err error) {
	window, sends := c.opts.window, smallSends
	recvs, slots := window+controlReceives, window
	own := recvs
	if c.shared != nil {
		sends, slots = sharedSends, sharedSlots
		recvs, own = window+sharedPeer, 0
	}
	s.inbox = newInbox(sends + recvs)
	s.got = make([]message, len(newInbox(recvs).ring))
	s.pool = &pool{shared: c.shared, window: window}
	if s.pool.chain, err = ibv.NewRecvChain(recvs, 1); err != nil {
		return err
	}
	if c.shared != nil {
		if err := c.shared.join(); err != nil {
			return err
		}
		s.joined = true
	}
	// The results of atomics lie after the buffers.
	if s.mem, err = newSlab(c.pd, c.opts.buffer, own, slots, opDepth*8, ibv.AccessLocalWrite); err != nil {
		return err
	}
	s.pool.mem = s.mem
	if s.pool.qp, err = c.newQP(&s.conn, sends, own); err != nil {
		return err
	}
	s.results, s.lkey = s.mem.extra(), s.mem.lkey
	return s.sq.init(s.pool.qp, sends, slots, inlineSize)
}

func (c *opened) initLarge(l *large) (err error) {
	const recvs = largeReceives
	const scratch = transferDepth * 8
	if l.mem, err = newSlab(c.pd, announcement, recvs, 0, claimBytes+scratch+opDepth*8, ibv.AccessLocalWrite); err != nil {
		return err
	}
	var tag [8]byte
	_, _ = rand.Read(tag[:]) // never fails
	l.tag = binary.LittleEndian.Uint64(tag[:])
	extra := l.mem.extra()
	l.claim = (*claimTable)(unsafe.Pointer(unsafe.SliceData(extra)))
	l.claimMR, err = c.pd.RegMR(extra[:claimBytes], ibv.AccessLocalWrite|ibv.AccessRemoteRead|ibv.AccessRemoteWrite)
	if err != nil {
		return err
	}
	l.asks = extra[claimBytes : claimBytes+scratch]
	l.results, l.lkey = extra[claimBytes+scratch:], l.mem.lkey
	tx, err := c.newQP(&l.conn, largeSends, recvs)
	if err != nil {
		return err
	}
	if err := l.sq.init(tx, largeSends, 0, inlineSize); err != nil {
		return err
	}
	rx := tx
	l.rx = &l.sq
	if l.peerInc != c.Incarnation {
		if rx, err = c.newQP(&l.conn, rxSends, recvs); err != nil {
			return err
		}
		l.rx = new(sendQueue)
		if err := l.rx.init(rx, rxSends, 0, 8); err != nil {
			return err
		}
	}
	l.inbox = newInbox(largeSends + rxSends + 2*recvs)
	l.pool = &pool{qp: rx, mem: l.mem}
	l.pool.chain, err = ibv.NewRecvChain(recvs, 1)
	return err
}

// newQP makes one of a connection's queue pairs, and room in the completion queue for all its requests.
func (c *opened) newQP(n *conn, sends, recvs int) (*ibv.QP, error) {
	need := c.cqNeed + sends + recvs
	if have := c.done.cq.Len(); need > have {
		limit := c.dev.Query().MaxCQE
		if need > limit {
			return nil, fmt.Errorf("%w: the completion queue has at most %d entries: use fewer peers a context", driver.ErrBusy, limit)
		}
		c.done.mustLock()
		err := c.done.cq.Resize(min(max(need, 2*have), limit))
		c.done.unlock()
		if err != nil {
			return nil, err
		}
	}
	init := ibv.QPInit{
		SendCQ: c.done.cq, RecvCQ: c.done.cq, MaxSendWR: sends, MaxRecvWR: recvs,
		MaxInline: inlineSize, Tag: queueTag(n.Number(), uint8(len(n.qps))),
	}
	if c.shared != nil {
		init.SRQ = c.shared.srq
	}
	qp, err := c.pd.CreateQP(init)
	if err != nil {
		return nil, err
	}
	n.qps = append(n.qps, qp)
	n.entries += sends + recvs
	c.cqNeed = need
	return qp, nil
}

// discard frees a connection that nobody uses. The caller holds c.Mu.
func (c *opened) discard(n *conn) {
	n.closeQueues()
	c.cqNeed -= n.entries
	n.api.drop()
	c.Conns.Remove(n.Number(), n)
}

// remove frees a connection that is closed.
func (c *opened) remove(n *conn) {
	n.stopQueues()
	n.closeQueues()
	c.drainAll()
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.discard(n)
}

// adapter implements connect.QP for a queue pair.
type adapter struct{ *ibv.QP }

func (c *opened) adapt(qp *ibv.QP) connect.QP { return adapter{qp} }

// Init implements connect.QP.
func (a adapter) Init(p *connect.Path) error {
	return a.ToInit(ibv.InitAttr{Port: int(p.Port), PKeyIndex: int(p.PKeyIndex), Access: peerAccess})
}

// RTR implements connect.QP.
func (a adapter) RTR(p *connect.Path) error {
	mtu, err := mtuOf(p.MTU)
	if err != nil {
		return err
	}
	return a.ToRTR(ibv.RTRAttr{
		Path: ibv.Path{
			DGID: p.PeerGID, SGIDIndex: int(p.GIDIndex), HopLimit: p.HopLimit, TrafficClass: p.TrafficClass,
			FlowLabel: p.FlowLabel, DLID: p.PeerLID, SL: p.ServiceLevel,
		},
		MTU: mtu, DestQPN: p.PeerQP, RQPSN: p.PeerPSN,
		MaxDestRdAtomic: int(p.Responder), MinRNRTimer: int(p.MinRNRTimer),
	})
}

// RTS implements connect.QP.
func (a adapter) RTS(p *connect.Path) error {
	return a.ToRTS(ibv.RTSAttr{
		SQPSN: p.PSN, Timeout: int(p.AckTimeout), RetryCount: int(p.RetryCount), RNRRetry: int(p.RNRRetry),
		MaxRdAtomic: int(p.Initiator),
	})
}
