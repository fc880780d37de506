//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// Sizes of queues. A send queue has room for the messages of a window, for operations, and for control. The queue pair
// for the peer's data asks for cancels, and binds and invalidates the windows of all pieces of all receives.
const (
	smallSends  = 128
	largeSends  = 128
	cancelSends = 4 * transferDepth
	windowSends = 4 * maxPieces * transferDepth // binds and invalidations, twice; a power of two
)

// Receives of the large track: an announcement for each transfer, and a close message.
const (
	largeReceives = transferDepth + 2
	announcement  = 64 // bytes
)

// newConn makes a connection's queues and buffers. The caller holds c.Mu.
func (c *opened) newConn(num uint32, peer string, u driver.URL) (*conn, error) {
	var n *conn
	var err error
	if c.Props.Track == driver.Large {
		l := &large{}
		l.Large.Init(&l.Conn, l, maxMessage)
		l.Prefetcher.Init(&l.Conn, l)
		l.ahead.Init(2*transferDepth, maxPieces)
		n, l.api, l.path = &l.conn, l, pathWrite
		c.initConn(n, num, peer, u)
		err = c.initLarge(l)
	} else {
		s := &small{}
		s.Small.Init(&s.Conn, s)
		n, s.api, s.path = &s.conn, s, pathSend
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
	n.ctx, n.peerInc, n.last = c, u.Incarnation, make(chan struct{}, 1)
	c.Add(n, num, peer, n.api, n.api)
}

func (c *opened) initSmall(s *small) (err error) {
	window, sends := c.opts.window, c.depth(smallSends)
	recvs, slots := window+controlReceives, window
	own := recvs
	if c.shared != nil {
		sends, slots = c.depth(sharedSends), sharedSlots
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
	if s.mem, err = newSlab(c.pd, c.opts.buffer, own, slots, opDepth*wordSize, ibv.AccessLocalWrite); err != nil {
		return err
	}
	s.pool.mem = s.mem
	if err := c.reserve(&s.conn, sends+own); err != nil {
		return err
	}
	if s.pool.qp, err = c.newQP(&s.conn, sends, own, inlineSize); err != nil {
		return err
	}
	s.results, s.lkey = s.mem.extra(), s.mem.lkey
	return c.initSends(&s.sq, s.pool.qp, sends, slots)
}

func (c *opened) initLarge(l *large) (err error) {
	const recvs = largeReceives
	const scratch = transferDepth * 8
	if l.mem, err = newSlab(c.pd, announcement, recvs, 0, claimBytes+scratch+opDepth*wordSize, ibv.AccessLocalWrite); err != nil {
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
	sends, rxSends := c.depth(largeSends), c.rxDepth()
	self := l.peerInc == c.Incarnation // one queue pair serves both directions
	entries, sendRecvs := sends+recvs, recvs
	if !self {
		entries += rxSends
		sendRecvs = 1 // which is never posted; a device may refuse a queue of none
	}
	if err := c.reserve(&l.conn, entries); err != nil {
		return err
	}
	tx, err := c.newQP(&l.conn, sends, sendRecvs, inlineSize)
	if err != nil {
		return err
	}
	if err := c.initSends(&l.sq, tx, sends, 0); err != nil {
		return err
	}
	rx := tx
	l.rx = &l.sq
	if !self {
		if rx, err = c.newQP(&l.conn, rxSends, recvs, wordSize); err != nil {
			return err
		}
		l.rx = new(sendQueue)
		if err := c.initSends(l.rx, rx, rxSends, 0); err != nil {
			return err
		}
	}
	l.inbox = newInbox(entries)
	l.pool = &pool{qp: rx, mem: l.mem}
	l.pool.chain, err = ibv.NewRecvChain(recvs, 1)
	return err
}

// discard frees a connection that is not used. The caller holds c.Mu.
func (c *opened) discard(n *conn) {
	closed := n.closeQueues()
	n.api.drop()
	c.unreserve(n)
	c.Conns.Remove(n.Number(), n)
	if !closed {
		c.stuck = append(c.stuck, n)
		return
	}
	n.gone.Store(true)
	n.Wake()
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
type adapter struct {
	*ibv.QP
	ctx *opened
}

func (c *opened) adapt(qp *ibv.QP) connect.QP { return adapter{qp, c} }

// Init implements connect.QP. The access is the most that the queue pair allows its peer; keys narrow it. Some devices
// without atomics refuse the flag for them.
func (a adapter) Init(p *connect.Path) error {
	access := ibv.AccessLocalWrite | ibv.AccessRemoteWrite | ibv.AccessRemoteRead
	if a.ctx.dev.Query().Atomic != ibv.AtomicNone {
		access |= ibv.AccessRemoteAtomic
	}
	return a.ToInit(ibv.InitAttr{Port: int(p.Port), PKeyIndex: int(p.PKeyIndex), Access: access})
}

func (a adapter) RTR(p *connect.Path) error {
	mtu, err := mtuOf(p.MTU)
	if err != nil {
		return err
	}
	to := ibv.Path{DLID: p.PeerLID, SL: p.ServiceLevel}
	if needsGRH(p, a.ctx.grh) {
		to.DGID, to.SGIDIndex, to.TrafficClass = p.PeerGID, int(p.GIDIndex), p.TrafficClass
	}
	return a.ToRTR(ibv.RTRAttr{
		Path: to, MTU: mtu, DestQPN: p.PeerQP, RQPSN: p.PeerPSN,
		MaxDestRdAtomic: int(p.Responder), MinRNRTimer: int(p.MinRNRTimer),
	})
}

// needsGRH reports whether packets to the peer need a global route header, of 40 bytes. RoCE always does. InfiniBand
// within a subnet does where the port requires it (InfiniBand Architecture Specification, volume 1, 8.3); the
// connection managers connect no ports of two subnets.
func needsGRH(p *connect.Path, required bool) bool {
	return p.LinkLayer != connect.InfiniBand || p.PeerLID == 0 || required
}

func (a adapter) RTS(p *connect.Path) error {
	return a.ToRTS(ibv.RTSAttr{
		SQPSN: p.PSN, Timeout: int(p.AckTimeout), RetryCount: int(p.RetryCount), RNRRetry: int(p.RNRRetry),
		MaxRdAtomic: int(p.Initiator),
	})
}
