//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// carrier is the part of a manager that moves bytes between hosts.
type carrier interface {
	// dial connects to the peer, whose blob is target, and calls accept to make a link of the connection. If accept fails
	// it has closed the connection, and dial may try another way. An error that wraps ErrBroken means that the peer
	// does not exist any more; ErrAuth and ErrVersion mean that another attempt cannot succeed.
	dial(ctx context.Context, peer uint64, target []byte, accept func(stream) error) error
	// addresses returns those of a peer that has the blob, or an error for a blob that is malformed or leads nowhere.
	addresses(blob []byte) ([]netip.Addr, error)
	// close stops listening. Earlier connections continue.
	close() error
	// release frees what connections share. None is left.
	release() error
}

// self is what a hub knows of its own context.
type self struct {
	incarnation uint64
	timeout     time.Duration
	key         *handshake.Key
}

// hub is a manager on one port. It pairs its endpoints with those of each peer.
type hub struct {
	self
	name     string
	priority int
	port     *Port                // as it was when the hub was made
	latest   atomic.Pointer[Port] // with its present addresses
	blob     []byte               // the address for the peers' managers of this name, at most maxBlob bytes
	slots    chan struct{}        // for goroutines that move queue pairs
	origin   time.Time

	carrier carrier
	ctx     context.Context // ends when the hub closes
	cancel  context.CancelFunc
	tasks   sync.WaitGroup

	mu              sync.Mutex
	peers           map[uint64]*peer
	ends            map[*Endpoint]struct{} // not finalized
	made            uint64                 // endpoints made so far
	accepted        uint64                 // connections accepted so far
	unauthenticated []stream               // oldest first
	closed          bool
	stats           Stats
	wakes           []func() // to be called without mu
}

// peer is another context that endpoints wait for, or that waits for this one. hub.mu guards it.
type peer struct {
	inc      uint64
	waiting  []*Endpoint // not paired yet, in the order in which they were made
	unlinked []*Endpoint // connected, but their links were cut
	asking   bool        // goroutine ask runs
	watching bool        // goroutine watch runs
	request  *request    // of the peer, which no endpoint has met yet
	watcher  *link       // by which the peer watches this process
}

const (
	maxWorkers         = 16 // endpoints whose queue pairs are moved at the same time
	maxUnauthenticated = 256
	proofTime          = 5 * time.Second
)

func newHub(name string, own self, port *Port, s *settings) *hub {
	h := &hub{self: own, name: name, priority: s.priority, port: port, origin: time.Now(),
		slots: make(chan struct{}, maxWorkers)}
	h.peers, h.ends = make(map[uint64]*peer), make(map[*Endpoint]struct{})
	h.latest.Store(port)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// now is the time since the hub was made, in nanoseconds.
func (h *hub) now() int64 { return int64(time.Since(h.origin)) }

func (h *hub) addStats(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.links += h.stats.links
	s.Refused += h.stats.Refused
	s.BadMessages += h.stats.BadMessages
}

func (h *hub) count(n *uint64) {
	h.mu.Lock()
	*n++
	h.mu.Unlock()
}

// unlock unlocks mu and then wakes the users of endpoints.
func (h *hub) unlock() {
	wakes := h.wakes
	h.wakes = nil
	h.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
}

// peer returns the record of a peer, which it makes if necessary. The caller holds mu.
func (h *hub) peer(inc uint64) *peer {
	p := h.peers[inc]
	if p == nil {
		p = &peer{inc: inc}
		h.peers[inc] = p
	}
	return p
}

// asks reports whether this side asks, and the peer answers.
func (h *hub) asks(p *peer) bool { return h.incarnation < p.inc }

// newEndpoint makes an endpoint towards the peer whose blob is target, and begins to connect it.
func (h *hub) newEndpoint(cfg *EndpointConfig, target []byte) (*Endpoint, error) {
	addrs, err := h.carrier.addresses(target)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{hub: h, cfg: *cfg, target: target, offer: h.offer(cfg, addrs)}
	e.cfg.QPs = slices.Clone(cfg.QPs)
	e.over, e.done = make(chan struct{}), make(chan struct{})
	h.mu.Lock()
	defer h.unlock()
	if h.closed {
		return nil, fmt.Errorf("%w: connection manager %s on %s", driver.ErrClosed, h.name, h.port.name())
	}
	h.made++
	e.number = h.made
	h.ends[e] = struct{}{}
	if cfg.PeerIncarnation == h.incarnation {
		e.meet(nil, &message{offer: e.offer})
		h.tasks.Go(func() { e.run(e.alone) })
		return e, nil
	}
	h.wait(e)
	return e, nil
}

// offer returns the description of an endpoint for the peer, which has these addresses.
func (h *hub) offer(cfg *EndpointConfig, peer []netip.Addr) offer {
	p := h.latest.Load()
	o := offer{linkLayer: p.LinkLayer, gidType: p.GIDType, responder: p.MaxResponder, initiator: p.MaxInitiator,
		n: len(cfg.QPs), user: slices.Clone(cfg.UserData)}
	o.renew(p, peer...)
	var r [4 * maxQPs]byte
	_, _ = rand.Read(r[:])
	for k, qp := range cfg.QPs {
		o.qps[k] = qpOffer{qp.Num() & 0xffffff, binary.LittleEndian.Uint32(r[4*k:]) & 0xffffff}
	}
	return o
}

// renew describes the port as it is now, for a peer that has these addresses: the endpoint may have waited for long.
func (o *offer) renew(p *Port, peer ...netip.Addr) {
	o.lid, o.pkey, o.mtu, o.gid = p.LID, p.PKey, p.presentMTU(), p.sharing(peer...)
}

// wait lets an endpoint wait to be paired: behind those that were made before it. The caller holds mu.
func (h *hub) wait(e *Endpoint) {
	p := h.peer(e.cfg.PeerIncarnation)
	e.peer = p
	e.waits, e.stopWaiting = context.WithCancel(h.ctx)
	at, _ := slices.BinarySearchFunc(p.waiting, e.number, func(x *Endpoint, n uint64) int { return int(x.number) - int(n) })
	p.waiting = slices.Insert(p.waiting, at, e)
	switch {
	case h.asks(p):
		if !p.asking {
			p.asking = true
			h.tasks.Go(func() { h.ask(p) })
		}
	case !h.pair(p):
		h.startWatch(p)
	}
}

// unwait takes an endpoint from those that wait. The caller holds mu.
func (h *hub) unwait(e *Endpoint) {
	is := func(x *Endpoint) bool { return x == e }
	e.peer.waiting = slices.DeleteFunc(e.peer.waiting, is)
	e.peer.unlinked = slices.DeleteFunc(e.peer.unlinked, is)
	e.stopWaiting()
	h.forget(e.peer)
}

// forget removes the record of a peer that is not needed any more. The caller holds mu.
func (h *hub) forget(p *peer) {
	if h.peers[p.inc] == p && len(p.waiting)+len(p.unlinked) == 0 && !p.asking && !p.watching && p.request == nil && p.watcher == nil {
		delete(h.peers, p.inc)
	}
}

// lost ends every endpoint that waits for a peer, or has lost its link to it, because the peer's process is gone. With a
// target, it ends those that would dial there.
func (h *hub) lost(inc uint64, target []byte, err error) {
	h.mu.Lock()
	defer h.unlock()
	p := h.peers[inc]
	if p == nil {
		return
	}
	for _, e := range slices.Concat(p.waiting, p.unlinked) {
		if target == nil || bytes.Equal(e.target, target) {
			e.fail(err)
		}
	}
}

// report passes a change of state to an endpoint's user. The caller holds mu.
func (h *hub) report(e *Endpoint, s State, err error) {
	if err != nil {
		name := e.cfg.PeerName
		if name == "" {
			name = fmt.Sprintf("%016x", e.cfg.PeerIncarnation)
		}
		e.err.Store(&Error{manager: h.name, device: h.port.name(), peer: name, state: e.doing(), err: err})
	}
	e.state.Store(uint32(s))
	if e.cfg.Wake != nil {
		h.wakes = append(h.wakes, e.cfg.Wake)
	}
}

// close finalizes all endpoints, and waits until nothing runs for the hub.
func (h *hub) close() error {
	h.mu.Lock()
	h.closed = true
	for _, s := range h.unauthenticated {
		s.Close()
	}
	var links []*link
	for e := range h.ends {
		links = append(links, e.link)
		e.finalize(&message{kind: msgBye})
		if e.cfg.Wake != nil {
			h.wakes = append(h.wakes, e.cfg.Wake)
		}
	}
	for _, p := range h.peers {
		for _, l := range []*link{p.watcher, p.requester()} {
			if l != nil {
				links = append(links, l)
				h.tasks.Go(func() { l.finish(&message{kind: msgBye}) })
			}
		}
	}
	h.unlock()
	for _, l := range links {
		for l != nil && l.open() { // until the peers have read bye
		}
	}
	h.cancel()
	err := h.carrier.close() // not before: a dialer would take this process for dead
	h.tasks.Wait()
	return errors.Join(err, h.carrier.release())
}
