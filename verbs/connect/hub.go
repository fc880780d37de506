package connect

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
)

// carrier is what managers differ in: how frames get from one host to another.
type carrier interface {
	// dial reaches the peer, whose blob is target, and makes a link of the
	// connection by meet, which closes it when that fails; there may be several ways to
	// try. An error that wraps ErrBroken means that nobody is there any more,
	// ErrAuth and ErrVersion that there is no use in trying again.
	dial(ctx context.Context, peer uint64, target string, meet func(conn) error) error
	// close stops listening. Connections made before go on.
	close() error
}

// conn carries frames of at most maxFrame bytes in order. One goroutine sends,
// one receives.
type conn interface {
	send(b []byte) error
	// receive returns the next frame, which is valid until the next call.
	receive() ([]byte, error)
	// expire makes both fail from then on; the zero time undoes it.
	expire(t time.Time)
	// finish, called after the last send, lets the peer receive all; receive
	// goes on until the peer has finished, too, or a second has passed.
	finish()
	// close ends both at once. It may be called more than once.
	close()
}

// hub is the module of a manager that has a carrier: endpoints, by peer, and
// links to the peers.
type hub struct {
	name   string
	env    *Env
	port   *Port
	cts    bool
	origin time.Time
	slots  chan struct{} // for goroutines that move queue pairs

	carrier carrier
	ctx     context.Context // ends when the hub closes
	cancel  context.CancelFunc
	tasks   sync.WaitGroup

	mu        sync.Mutex
	peers     map[uint64]*peer
	lastID    uint64
	strangers []conn // not authenticated yet, oldest first
	closed    bool
	stats     Stats
	wakes     []func() // to be called without mu
}

// peer is a context elsewhere that endpoints are connected to.
type peer struct {
	machine
	links   []*link // newest last; that one is used
	dialing map[string]context.CancelFunc
	timer   *time.Timer
	restAt  time.Duration // since when nothing is to be said; 0: something is
}

const (
	maxWorkers   = 16 // queue pairs that are moved at the same time
	maxStrangers = 256
	maxLinks     = 4 // to one peer
	strangerTime = 5 * time.Second
	restTime     = time.Second // until a link that nobody needs is closed
)

func newHub(name string, env *Env, port *Port, cts bool) *hub {
	h := &hub{name: name, env: env, port: port, cts: cts, origin: time.Now(), slots: make(chan struct{}, maxWorkers), peers: make(map[uint64]*peer)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// now is the time of the machines; never 0.
func (h *hub) now() time.Duration { return time.Since(h.origin) + 1 }

// UsesCTS implements Module.
func (h *hub) UsesCTS() bool { return h.cts }

// Stats implements Module.
func (h *hub) Stats(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Connected += h.stats.Connected
	s.Failed += h.stats.Failed
	s.Lost += h.stats.Lost
	s.Links += h.stats.Links
	s.Refused += h.stats.Refused
	s.BadMessages += h.stats.BadMessages
	s.Repeated += h.stats.Repeated
	for _, p := range h.peers {
		s.Repeated += p.repeated
	}
}

// unlock wakes users of endpoints.
func (h *hub) unlock() {
	wakes := h.wakes
	h.wakes = nil
	h.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
}

// peer finds or makes the record of a peer. The caller holds mu.
func (h *hub) peer(inc uint64) *peer {
	p := h.peers[inc]
	if p == nil {
		p = &peer{dialing: make(map[string]context.CancelFunc)}
		p.machine = machine{self: h.env.Incarnation, peer: inc, timeout: h.env.Timeout, nextID: func() uint64 { h.lastID++; return h.lastID }}
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
	e.end = end{target: target, timeout: h.env.Timeout, cts: h.cts || cfg.Deferred, clear: !cfg.Deferred, offer: h.offer(cfg), user: e}
	if cfg.Timeout > 0 {
		e.end.timeout = cfg.Timeout
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

// offer is what an endpoint will say about itself.
func (h *hub) offer(cfg *EndpointConfig) offer {
	p := h.port
	o := offer{linkLayer: p.LinkLayer, gidType: p.GIDType, mtu: mtuCode(p.MTU), responder: p.MaxResponder, initiator: p.MaxInitiator,
		lid: p.LID, pkey: p.PKey, gid: p.GID, n: len(cfg.QPs), user: slices.Clone(cfg.UserData)}
	var r [4 * MaxQPs]byte
	_, _ = rand.Read(r[:])
	for k, qp := range cfg.QPs {
		o.qps[k] = qpOffer{qp.Num() & 0xffffff, binary.LittleEndian.Uint32(r[4*k:]) & 0xffffff}
	}
	return o
}

// settle does what a peer's machine wants after an event. The caller holds mu.
func (h *hub) settle(p *peer) {
	for _, a := range p.take() {
		switch a.kind {
		case actSend:
			if n := len(p.links); n > 0 {
				p.links[n-1].post(&a.msg)
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
		if len(p.links) == 0 && p.dialing[target] == nil && !h.closed {
			ctx, cancel := context.WithCancel(h.ctx)
			p.dialing[target] = cancel
			h.tasks.Go(func() { h.dial(ctx, p, target) })
		}
	}
	h.rest(p)
}

// rest closes links that nobody needs, forgets a peer that is not needed, and
// else sets the timer. The caller holds mu.
func (h *hub) rest(p *peer) {
	now := h.now()
	if !p.idle() {
		p.restAt = 0
	} else if p.restAt == 0 {
		p.restAt = now
	}
	at, ok := p.next()
	for _, l := range slices.Clone(p.links) {
		since := p.restAt
		if l.spare(p) && (since == 0 || l.since < since) {
			since = l.since
		}
		switch {
		case since == 0 || !l.dialed:
		case now >= since+restTime:
			h.leave(p, l, 0)
		case !ok || since+restTime < at:
			at, ok = since+restTime, true
		}
	}
	if len(p.links)+len(p.dialing)+len(p.ends)+len(p.queue) == 0 && p.idle() {
		h.forget(p)
		return
	}
	if ok {
		p.timer.Reset(max(at-now, 0))
	} else {
		p.timer.Stop()
	}
}

// forget drops the record of a peer. The caller holds mu.
func (h *hub) forget(p *peer) {
	p.timer.Stop()
	h.stats.Repeated += p.repeated
	p.repeated = 0
	if h.peers[p.peer] == p {
		delete(h.peers, p.peer)
	}
}

// report shows a change of state to an endpoint's user. The caller holds mu.
func (h *hub) report(e *endpoint) {
	s := e.end.state.public()
	if s == e.State() {
		return // it has gone through two states at once
	}
	switch s {
	case Ready:
		h.stats.Connected++
	case Failed:
		h.stats.Failed++
	case Lost:
		h.stats.Lost++
	}
	if err := e.end.err; err != nil {
		name := e.cfg.PeerName
		if name == "" {
			name = fmt.Sprintf("%016x", e.cfg.PeerIncarnation)
		}
		e.err.Store(&Error{Manager: h.name, Device: h.port.name(), Peer: name, State: e.end.doing.String(), Err: err})
	}
	e.state.Store(uint32(s))
	if e.cfg.Wake != nil && !e.calling {
		h.wakes = append(h.wakes, e.cfg.Wake)
	}
}

// Finalize implements Module.
func (h *hub) Finalize() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	err := h.carrier.close()
	h.cancel()
	for _, c := range h.strangers {
		c.close()
	}
	for _, p := range h.peers {
		for _, e := range slices.Clone(p.ends) {
			p.finalize(e, h.now())
			e.user.(*endpoint).over()
		}
		h.settle(p)
		for _, l := range slices.Clone(p.links) {
			h.leave(p, l, flagFinal)
		}
		p.timer.Stop()
	}
	h.unlock()
	h.tasks.Wait()
	return err
}
