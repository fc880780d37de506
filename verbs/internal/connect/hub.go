//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
)

// carrier is the part of a manager that moves bytes between hosts.
type carrier interface {
	// dial connects to the peer, whose blob is target, and calls accept to make a link of the connection. If accept fails
	// it has closed the connection, and dial may try another way. An error that wraps ErrBroken means that the peer
	// does not exist any more; ErrAuth and ErrVersion mean that another attempt cannot succeed.
	dial(ctx context.Context, peer uint64, target string, accept func(stream) error) error
	// close stops listening. Earlier connections continue.
	close() error
}

// hub is the module of a manager that has a carrier. It has the endpoints of each peer, and a link to each peer.
type hub struct {
	name   string
	env    *Env
	port   *Port                // as it was when the hub was made
	latest atomic.Pointer[Port] // with its present addresses
	cts    bool
	origin time.Time
	slots  chan struct{} // for goroutines that move queue pairs

	carrier carrier
	ctx     context.Context // ends when the hub closes
	cancel  context.CancelFunc
	tasks   sync.WaitGroup

	mu              sync.Mutex
	peers           map[uint64]*peer
	lastID          uint64
	unauthenticated []stream // not authenticated yet, oldest first
	closed          bool
	stats           Stats
	wakes           []func() // to be called without mu
}

// peer is another context that endpoints are connected to.
type peer struct {
	machine
	link    *link  // the current one, or nil
	attempt uint32 // highest attempt of either side
	dialing map[string]context.CancelFunc
	timer   *time.Timer
	restAt  time.Duration // since when neither side needs the link; 0: one does
}

const (
	maxWorkers         = 16 // endpoints whose queue pairs are moved at the same time
	maxUnauthenticated = 256
	proofTime          = 5 * time.Second
	restTime           = time.Second // after which an unused link is closed
)

func newHub(name string, env *Env, port *Port, cts bool) *hub {
	h := &hub{name: name, env: env, port: port, cts: cts, origin: time.Now(), slots: make(chan struct{}, maxWorkers)}
	h.peers = make(map[uint64]*peer)
	h.latest.Store(port)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// now returns the time of the machines, which is never 0.
func (h *hub) now() time.Duration { return time.Since(h.origin) + 1 }

func (h *hub) UsesCTS() bool { return h.cts }

func (h *hub) renew(p *Port) { h.latest.Store(p) }

func (h *hub) Stats(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.connected += h.stats.connected
	s.failed += h.stats.failed
	s.lost += h.stats.lost
	s.links += h.stats.links
	s.Refused += h.stats.Refused
	s.BadMessages += h.stats.BadMessages
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
		p = &peer{dialing: make(map[string]context.CancelFunc)}
		p.machine = machine{self: h.env.incarnation, peer: inc, nextID: func() uint64 { h.lastID++; return h.lastID }}
		p.timer = time.AfterFunc(time.Hour, func() { h.tick(p) })
		h.peers[inc] = p
	}
	return p
}

func (h *hub) tick(p *peer) {
	h.mu.Lock()
	defer h.unlock()
	if h.peers[p.peer] == p {
		p.tick(h.now())
		h.settle(p)
	}
}

// newEndpoint makes an endpoint towards a target that the manager has checked.
func (h *hub) newEndpoint(cfg *EndpointConfig, target string) (Endpoint, error) {
	e := &endpoint{hub: h, cfg: *cfg, done: make(chan struct{})}
	e.cfg.QPs = slices.Clone(cfg.QPs)
	e.end = end{target: target, timeout: h.env.timeout, cts: h.cts || cfg.deferred, clear: !cfg.deferred,
		offer: h.offer(cfg), user: e}
	if cfg.timeout > 0 {
		e.end.timeout = cfg.timeout
	}
	h.mu.Lock()
	defer h.unlock()
	if h.closed {
		return nil, fmt.Errorf("%w: connection manager %s on %s", driver.ErrClosed, h.name, h.port.name())
	}
	e.peer = h.peer(cfg.PeerIncarnation)
	e.peer.add(&e.end, h.now())
	h.settle(e.peer)
	return e, nil
}

// offer returns the description of an endpoint for the peer.
func (h *hub) offer(cfg *EndpointConfig) offer {
	p := h.latest.Load()
	o := offer{linkLayer: p.LinkLayer, gidType: p.GIDType, mtu: mtuCode(p.MTU), responder: p.MaxResponder,
		initiator: p.MaxInitiator, lid: p.LID, pkey: p.PKey, gid: p.GID, n: len(cfg.QPs), user: slices.Clone(cfg.UserData)}
	var r [4 * maxQPs]byte
	_, _ = rand.Read(r[:])
	for k, qp := range cfg.QPs {
		o.qps[k] = qpOffer{qp.Num() & 0xffffff, binary.LittleEndian.Uint32(r[4*k:]) & 0xffffff}
	}
	return o
}

// settle carries out the actions of a peer's machine after an event. The caller holds mu.
func (h *hub) settle(p *peer) {
	for _, a := range p.take(h.now()) {
		switch a.kind {
		case actSend:
			if p.link != nil {
				p.link.post(&a.msg)
			}
		case actWork:
			e := a.end.user.(*endpoint)
			h.tasks.Go(func() { h.work(e, a.first, a.last) })
		case actState:
			h.report(a.end.user.(*endpoint))
		}
	}
	targets := p.targets()
	for target, cancel := range p.dialing {
		if !slices.Contains(targets, target) {
			cancel()
		}
	}
	for _, target := range targets {
		if p.link == nil && p.dialing[target] == nil && !h.closed {
			ctx, cancel := context.WithCancel(h.ctx)
			p.dialing[target] = cancel
			h.tasks.Go(func() { h.dial(ctx, p, target) })
		}
	}
	h.rest(p)
}

// rest sets the peer's timer. The side that dialed closes an unused link after restTime; a peer without link and
// endpoints is forgotten. The caller holds mu.
func (h *hub) rest(p *peer) {
	now := h.now()
	at, ok := p.next()
	switch {
	case !p.idle():
		p.restAt = 0
	case p.restAt == 0:
		p.restAt = now
	}
	if l := p.link; p.restAt != 0 && l != nil && l.dialed {
		if now >= p.restAt+restTime {
			h.unlink(p, l)
		} else if !ok || p.restAt+restTime < at {
			at, ok = p.restAt+restTime, true
		}
	}
	switch {
	case p.restAt != 0 && p.link == nil && len(p.dialing)+len(p.ends) == 0:
		p.timer.Stop()
		if h.peers[p.peer] == p {
			delete(h.peers, p.peer)
		}
	case ok:
		p.timer.Reset(max(at-now, 0))
	default:
		p.timer.Stop()
	}
}

// report passes a change of state to an endpoint's user. The caller holds mu.
func (h *hub) report(e *endpoint) {
	s := e.end.state.public()
	if s == e.State() {
		return // a second action for the same state
	}
	switch s {
	case Ready:
		h.stats.connected++
	case Failed:
		h.stats.failed++
	case Lost:
		h.stats.lost++
	}
	if err := e.end.err; err != nil {
		name := e.cfg.PeerName
		if name == "" {
			name = fmt.Sprintf("%016x", e.cfg.PeerIncarnation)
		}
		e.err.Store(&Error{manager: h.name, device: h.port.name(), peer: name, state: e.end.doing.String(), err: err})
	}
	e.state.Store(uint32(s))
	if e.cfg.Wake != nil && !e.calling {
		h.wakes = append(h.wakes, e.cfg.Wake)
	}
}

func (h *hub) Finalize() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	err := h.carrier.close()
	h.cancel()
	for _, s := range h.unauthenticated {
		s.Close()
	}
	for _, p := range h.peers {
		for _, e := range slices.Clone(p.ends) {
			p.finalize(e)
			e.user.(*endpoint).over()
		}
		h.settle(p)
		if l := p.link; l != nil {
			l.post(&message{kind: msgBye})
			h.unlink(p, l)
		}
		p.timer.Stop()
	}
	h.unlock()
	h.tasks.Wait()
	return err
}
