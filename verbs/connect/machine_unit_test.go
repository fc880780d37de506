package connect

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// Ends that cannot work together fail on both sides, for the reason.
func TestEndsThatDoNotFit(t *testing.T) {
	onHost(t)
	for _, tt := range []struct {
		name   string
		change func(*offer)
		want   rejectCode
	}{
		{"link layer", func(o *offer) { o.linkLayer, o.gidType = InfiniBand, GIDInfiniBand }, rejectLinkLayer},
		{"RoCE version", func(o *offer) { o.gidType = GIDRoCEv1 }, rejectGIDType},
		{"address family", func(o *offer) { o.gid[0] = 0x20 }, rejectGIDType},
		{"link-local", func(o *offer) { o.gid = [16]byte{0: 0xfe, 1: 0x80} }, rejectGIDType},
		{"partition", func(o *offer) { o.pkey = 0x8001 }, rejectPKey},
		{"queue pairs", func(o *offer) { o.n = 2 }, rejectQPs},
	} {
		for k := range 2 {
			t.Run(fmt.Sprint(tt.name, k), func(t *testing.T) {
				networks(t, func(t *testing.T, cfg simConfig) {
					seeds(t, func(seed uint64) {
						if seed > 20 {
							return
						}
						s := newSim(t, seed, cfg)
						a, b := s.endOf(k, false), s.endOf(1-k, false)
						tt.change(&a.offer)
						s.start(k, a)
						s.start(1-k, b)
						s.run(10 * time.Second)
						for _, e := range []*simEnd{a, b} {
							want := (&message{code: tt.want}).rejectError()
							if e.state != Failed || e.err == nil || e.err.Error() != want.Error() || !errors.Is(e.err, driver.ErrInvalid) {
								s.fail("end is %v with %v, want %v", e.state, e.err, want)
							}
						}
						s.cfg.loss, s.cfg.cut = 0, 0
						s.quiet()
					})
				})
			})
		}
	}
}

// InfiniBand ports of two subnets, and two limited members of a partition, do not fit; what fits, fits both
// ways.
func TestFits(t *testing.T) {
	ib := func(prefix byte, pkey uint16) offer {
		return offer{linkLayer: InfiniBand, mtu: 5, n: 1, pkey: pkey, gid: [16]byte{0: 0xfe, 1: prefix, 15: prefix}}
	}
	v6 := func(first byte) offer {
		return offer{linkLayer: Ethernet, gidType: GIDRoCEv2, mtu: 3, n: 1, pkey: 0xffff, gid: [16]byte{0: first, 1: 0x80, 15: 1}}
	}
	for _, tt := range []struct {
		name string
		a, b offer
		want rejectCode
	}{
		{"same subnet", ib(1, 0xffff), ib(1, 0xffff), 0},
		{"other subnet", ib(1, 0xffff), ib(2, 0xffff), rejectSubnet},
		{"full and limited member", ib(1, 0x8001), ib(1, 0x0001), 0},
		{"limited members", ib(1, 0x0001), ib(1, 0x0001), rejectPKey},
		{"global IPv6", v6(0x20), v6(0x20), 0},
		{"global and link-local IPv6", v6(0x20), v6(0xfe), rejectSubnet},
		{"link-local IPv6", v6(0xfe), v6(0xfe), 0},
	} {
		if x, y := tt.a.fits(&tt.b), tt.b.fits(&tt.a); x != tt.want || y != tt.want {
			t.Errorf("%s: got %d and %d, want %d", tt.name, x, y, tt.want)
		}
	}
}

// A queue pair that cannot be moved fails both ends, with step and errno.
func TestStepFailureReachesBothSides(t *testing.T) {
	for k := range 2 {
		cfg := calm
		s := newSim(t, uint64(k+1), cfg)
		a, b := s.endOf(0, false), s.endOf(1, false)
		s.start(0, a)
		s.start(1, b)
		for s.side[k].ends[0].end.state != stModify {
			s.step()
		}
		// The work of side k, which has begun, is told to have failed.
		s.side[k].m.done(s.side[k].ends[0].end, &stepError{step: stepRTR, err: fmt.Errorf("modify: %w", errTimedOut)}, s.now)
		s.carryOut(k)
		s.run(time.Second)
		mine, theirs := s.side[k].ends[0], s.side[1-k].ends[0]
		for _, e := range []*simEnd{mine, theirs} {
			if e.state != Failed || !errors.Is(e.err, driver.ErrBroken) || !bytes.Contains([]byte(e.err.Error()), []byte("RTR")) {
				t.Errorf("side %d: %v (%v), want Failed with ErrBroken that names RTR", k, e.state, e.err)
			}
		}
		if !errors.Is(mine.err, errTimedOut) {
			t.Errorf("own error %v does not wrap the cause", mine.err)
		}
	}
}

// Queue pairs whose peer has the same incarnation are connected to themselves.
func TestSelf(t *testing.T) {
	m := &machine{self: 7, peer: 7, timeout: time.Second, nextID: func() uint64 { return 1 }}
	e := &end{offer: anOffer(), timeout: time.Second}
	m.add(e, 0)
	m.start(e, 0)
	a := m.take()
	if len(a) != 2 || a[0].kind != actState || a[1].kind != actWork || a[1].first != stepInit || a[1].last != stepRTS {
		t.Fatalf("got %+v, want a change of state and all steps", a)
	}
	m.done(e, nil, 0)
	if a = m.take(); len(a) != 1 || e.state != stReady || e.remote.qps != e.offer.qps {
		t.Fatalf("state %v, remote %+v, actions %+v", e.state, e.remote, a)
	}
	if _, ok := m.next(); ok || len(m.targets()) != 0 {
		t.Fatal("an end that stands with itself wants a timer or a link")
	}
	late := &end{offer: anOffer(), timeout: time.Second, cts: true}
	m.add(late, 0)
	m.start(late, 0)
	m.done(late, nil, 0)
	if late.state != stClear {
		t.Fatalf("state %v before receives are posted", late.state)
	}
	if at, ok := m.next(); ok {
		t.Fatalf("waits for itself until %v", at)
	}
	m.clearToSend(late, 0)
	if late.state != stReady {
		t.Fatalf("state %v after receives are posted", late.state)
	}
	soon := &end{offer: anOffer(), timeout: time.Second, cts: true, clear: true}
	m.add(soon, 0)
	m.start(soon, 0)
	m.done(soon, nil, 0)
	if soon.state != stReady {
		t.Fatalf("state %v with receives that are posted", soon.state)
	}
	m.take()
	m.finalize(e, 0)
	if a = m.take(); len(a) != 1 || a[0].kind != actState {
		t.Fatalf("finalize: %+v", a)
	}
}

// Messages that no machine would send, about ids that nobody has, are answered or refused; they
// change nothing.
func TestUnknownIDs(t *testing.T) {
	for k := range 2 {
		s := newSim(t, 1, calm)
		a, b := s.endOf(0, false), s.endOf(1, false)
		s.start(0, a)
		s.start(1, b)
		s.run(time.Second)
		m := s.side[k].m
		for kind := messageKind(1); kind <= msgCheck; kind++ {
			for _, msg := range []message{
				{kind: kind, from: 1 << 40, to: 1 << 41, offer: anOffer()},
				{kind: kind, from: 1 << 40, to: s.side[k].ends[0].id, offer: anOffer()},
				{kind: kind, from: 1 << 40, offer: anOffer()},
			} {
				if msg.checkIDs() != nil || kind == msgClosed {
					continue
				}
				_ = m.receive(&msg, s.now)
				for _, act := range m.take() {
					if act.kind != actSend {
						t.Errorf("side %d, message %+v: action %+v", k, msg, act)
					}
				}
			}
		}
		s.mustAll(0, Ready)
		s.mustAll(1, Ready)
	}
}

// An asker whose peer accepts what does not fit refuses, and does nothing else.
func TestAskerChecksTheReply(t *testing.T) {
	s := newSim(t, 1, calm)
	a := s.endOf(0, false)
	s.start(0, a)
	bad := anOffer()
	bad.n = 2
	_ = s.side[0].m.receive(&message{kind: msgReply, from: 9, to: a.id, offer: bad}, 0)
	if out := s.side[0].m.take(); a.end.state != stFailed || len(out) != 2 || out[0].msg.kind != msgReject || out[0].msg.code != rejectQPs || out[1].kind != actState {
		t.Errorf("%v, actions %+v; want failed with a reject", a.end.state, out)
	}
}

// A reject without an endpoint of the peer fails the request and is not answered; a close is repeated until it was heard.
func TestLastWords(t *testing.T) {
	s := newSim(t, 1, calm)
	a, b := s.endOf(0, false), s.endOf(0, false)
	m := s.side[0].m
	s.start(0, a)
	s.start(0, b)
	_ = m.receive(&message{kind: msgReject, to: a.id, code: rejectBusy}, 0)
	if out := m.take(); a.end.state != stFailed || len(out) != 1 || out[0].kind != actState {
		t.Errorf("%v, actions %+v", a.end.state, out)
	}
	m.finalize(b.end, 0)
	m.take()
	sent := func(now time.Duration) (n int) {
		m.tick(now)
		for _, act := range m.take() {
			if act.kind == actSend && act.msg.kind == msgClose && act.msg.from == b.id {
				n++
			}
		}
		return n
	}
	if n := sent(time.Second); n != 1 {
		t.Errorf("%d closes after a second without an answer, want 1", n)
	}
	_ = m.receive(&message{kind: msgClosed, to: b.id}, time.Second)
	if n := sent(2*time.Second) + sent(3*time.Second); n != 0 {
		t.Errorf("%d closes after the answer", n)
	}
	for _, kind := range []messageKind{msgClose, msgReject} {
		_ = m.receive(&message{kind: kind, from: 77, to: 88}, 0)
		want := message{kind: msgClosed, from: 88, to: 77}
		if out := m.take(); len(out) != 1 || !reflect.DeepEqual(out[0].msg, want) {
			t.Errorf("kind %d is answered by %+v, want %+v", kind, out, want)
		}
	}
}

// A request that comes again long after its end was finalized is none.
func TestLateRequestIsNoNewOne(t *testing.T) {
	m := &machine{self: 2, peer: 1, timeout: time.Second, nextID: func() uint64 { return 9 }}
	m.linkUp(0)
	e := &end{offer: anOffer(), timeout: time.Second}
	m.add(e, 0)
	request := message{kind: msgRequest, from: 5, offer: anOffer()}
	_ = m.receive(&request, 0)
	m.finalize(e, 0)
	m.tick(time.Hour)
	if m.take(); len(m.graves) != 0 {
		t.Fatalf("%d graves after an hour", len(m.graves))
	}
	_ = m.receive(&request, time.Hour)
	if out := m.take(); len(m.queue) != 0 || len(out) != 1 || out[0].msg.kind != msgClosed || out[0].msg.to != 5 {
		t.Errorf("%d requests wait, answers %+v; want closed", len(m.queue), out)
	}
}

// A close that overtakes its request, or whose request was lost, is remembered:
// the request is none when it comes, and the one after it does not wait for it.
func TestCloseBeforeItsRequest(t *testing.T) {
	m := &machine{self: 2, peer: 1, timeout: time.Second, nextID: func() uint64 { return 9 }}
	m.linkUp(0)
	_ = m.receive(&message{kind: msgClose, from: 5}, 0)
	_ = m.receive(&message{kind: msgRequest, from: 6, prev: 5, offer: anOffer()}, 0)
	m.take()
	if len(m.queue) != 1 || m.queue[0].from != 6 {
		t.Fatalf("%+v wait, want request 6", m.queue)
	}
	_ = m.receive(&message{kind: msgRequest, from: 5, offer: anOffer()}, 0)
	if out := m.take(); len(m.queue) != 1 || len(out) != 1 || out[0].msg.kind != msgClosed || out[0].msg.to != 5 {
		t.Errorf("%d requests wait, answers %+v; want closed", len(m.queue), out)
	}
}

// The queue of requests that nobody meets is bounded, and the peer is told.
func TestRequestsAreBounded(t *testing.T) {
	onHost(t)
	m := &machine{self: 2, peer: 1, timeout: time.Second, nextID: func() uint64 { return 1 }}
	m.linkUp(0)
	var last message
	for k := range maxQueue + 1 {
		_ = m.receive(&message{kind: msgRequest, from: uint64(k + 1), offer: anOffer()}, 0)
		for _, a := range m.take() {
			last = a.msg
		}
	}
	if len(m.queue) != maxQueue || last.kind != msgReject || last.code != rejectBusy {
		t.Errorf("%d queued, last answer %+v", len(m.queue), last)
	}
	m.linkDown(0)
	if at, ok := m.next(); !ok || at != time.Second {
		t.Errorf("requests without a link are kept until %v (%v)", at, ok)
	}
	m.tick(time.Second)
	if !m.idle() {
		t.Error("requests of a peer that left are kept")
	}
	m.linkUp(time.Second)
	_ = m.receive(&message{kind: msgRequest, from: 1, offer: anOffer()}, time.Second)
	if len(m.queue) != 1 {
		t.Error("a peer that came back is not heard")
	}
}

// An answerer may stand, send and leave before the asker's last step is done: the asker stands as well, and
// then loses the connection, in order.
func TestPeerLeavesBeforeTheLastStep(t *testing.T) {
	for _, tt := range []struct {
		name  string
		leave func(m *machine, e *end)
	}{
		{"endpoint", func(m *machine, e *end) {
			_ = m.receive(&message{kind: msgClose, from: e.peerID, to: e.id}, 0)
		}},
		{"context", func(m *machine, _ *end) { m.leave() }},
	} {
		for _, cts := range []bool{false, true} {
			m := &machine{self: 1, peer: 2, timeout: time.Second, nextID: func() uint64 { return 5 }}
			e := &end{offer: anOffer(), timeout: time.Second, cts: cts, clear: true}
			m.add(e, 0)
			m.start(e, 0)
			for _, msg := range []message{
				{kind: msgReply, from: 9, to: 5, offer: anOffer()},
				{kind: msgConfirm, from: 9, to: 5, flags: flagAnswer},
			} {
				if err := m.receive(&msg, 0); err != nil {
					t.Fatal(err)
				}
				if e.state == stModify {
					m.done(e, nil, 0)
				}
			}
			if e.state != stFinish {
				t.Fatalf("state is %v, want %v", e.state, stFinish)
			}
			m.take()
			tt.leave(m, e)
			if e.state != stFinish {
				t.Errorf("%s: given up in the middle of a step: %v (%v)", tt.name, e.state, e.err)
			}
			m.done(e, nil, 0)
			if e.state != stLost || !errors.Is(e.err, driver.ErrClosed) {
				t.Errorf("%s: state %v (%v), want %v in order", tt.name, e.state, e.err, stLost)
			}
		}
	}
}
