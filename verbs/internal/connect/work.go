//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// endpoint is an Endpoint of a hub.
type endpoint struct {
	hub  *hub
	peer *peer
	cfg  EndpointConfig
	end  end // guarded by hub.mu

	state  atomic.Uint32
	err    atomic.Pointer[Error]
	remote atomic.Pointer[Remote]

	calling bool // guarded by hub.mu: the user is calling, and must not be woken
	done    chan struct{}
}

var _ Endpoint = (*endpoint)(nil)

func (e *endpoint) Manager() string { return e.hub.name }

func (e *endpoint) State() State { return State(e.state.Load()) }

func (e *endpoint) Remote() *Remote { return e.remote.Load() }

func (e *endpoint) Err() error {
	if err := e.err.Load(); err != nil {
		return err
	}
	return nil
}

func (e *endpoint) Done() <-chan struct{} { return e.done }

func (e *endpoint) Start() (err error) {
	e.call(func() {
		if e.end.state == stOver {
			err = fmt.Errorf("%w: endpoint is finalized", driver.ErrClosed)
			return
		}
		e.peer.start(&e.end, e.hub.now())
	})
	return err
}

func (e *endpoint) ClearToSend() {
	e.call(func() { e.peer.clearToSend(&e.end) })
}

func (e *endpoint) Finalize() {
	e.call(func() {
		if e.end.state == stOver {
			return
		}
		e.peer.finalize(&e.end)
		e.over()
	})
}

// call runs a call of the user with mu held.
func (e *endpoint) call(f func()) {
	h := e.hub
	h.mu.Lock()
	defer h.unlock()
	e.calling = true
	f()
	h.settle(e.peer)
	e.calling = false
}

// over closes done once no goroutine works on a finalized endpoint. The caller holds hub.mu.
func (e *endpoint) over() {
	if e.end.state == stOver && !e.end.working {
		close(e.done)
	}
}

// work moves the queue pairs of an endpoint. It may take seconds.
func (h *hub) work(e *endpoint, first, last step) {
	h.slots <- struct{}{}
	err := e.steps(first, last)
	<-h.slots
	h.mu.Lock()
	defer h.unlock()
	e.peer.done(&e.end, err, h.now())
	e.over()
	h.settle(e.peer)
}

func (e *endpoint) steps(first, last step) *stepError {
	paths := e.paths()
	if first == stepInit {
		e.remote.Store(e.remoteEnd())
	}
	for s := first; s <= last; s++ {
		for k, qp := range e.cfg.QPs {
			if e.State() >= Failed {
				return nil
			}
			if err := move(qp, s, &paths[k]); err != nil {
				return &stepError{step: s, err: fmt.Errorf("queue pair %#x: %w", qp.Num(), err)}
			}
		}
		if s == stepInit && e.cfg.Prepare != nil && e.State() < Failed {
			if err := e.cfg.Prepare(e.Remote()); err != nil {
				return &stepError{prepare: true, err: err}
			}
		}
	}
	return nil
}

func move(qp QP, s step, p *Path) error {
	switch s {
	case stepInit:
		return qp.Init(p)
	case stepRTR:
		return qp.RTR(p)
	}
	return qp.RTS(p)
}

// paths returns the agreed paths of the queue pairs. The remote offer does not change once work has begun.
func (e *endpoint) paths() (list [maxQPs]Path) {
	p, mine, theirs := e.hub.latest.Load(), &e.end.offer, &e.end.remote
	for k := range mine.n {
		list[k] = Path{
			Port: p.Num, GIDIndex: p.GIDIndex, PKeyIndex: p.PKeyIndex, LinkLayer: p.LinkLayer, MTU: e.mtu(),
			PSN: mine.qps[k].psn, PeerPSN: theirs.qps[k].psn, PeerQP: theirs.qps[k].num, PeerLID: theirs.lid, PeerGID: theirs.gid,
			Responder: min(mine.responder, theirs.initiator), Initiator: min(mine.initiator, theirs.responder),
			Quality: p.Quality,
		}
	}
	return list
}

func (e *endpoint) mtu() int { return 128 << min(e.end.offer.mtu, e.end.remote.mtu) }

func (e *endpoint) remoteEnd() *Remote {
	o := &e.end.remote
	r := &Remote{lid: o.lid, gid: o.gid, MTU: e.mtu(), UserData: slices.Clone(o.user)}
	for _, q := range o.qps[:o.n] {
		r.QPs = append(r.QPs, q.num)
	}
	return r
}
