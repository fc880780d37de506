//go:build linux && !(386 || arm || mips || mipsle)

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
func TestMismatchedEnds(t *testing.T) {
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
						s.cfg.cut = 0
						s.quiet()
					})
				})
			})
		}
	}
}

// InfiniBand ports of two subnets, and two limited members of a partition, do not fit. fits is symmetric.
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
		cfg := faultless
		s := newSim(t, uint64(k+1), cfg)
		a, b := s.endOf(0, false), s.endOf(1, false)
		s.start(0, a)
		s.start(1, b)
		for s.side[k].ends[0].end.state != stModify {
			s.step()
		}
		// The work of side k, which has begun, is reported as failed.
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
	m := &machine{self: 7, peer: 7, nextID: func() uint64 { return 1 }}
	e := &end{offer: anOffer(), timeout: time.Second}
	m.add(e, 0)
	m.start(e, 0)
	a := m.take(0)
	if len(a) != 2 || a[0].kind != actState || a[1].kind != actWork || a[1].first != stepInit || a[1].last != stepRTS {
		t.Fatalf("got %+v, want a change of state and all steps", a)
	}
	m.done(e, nil, 0)
	if a = m.take(0); len(a) != 1 || e.state != stReady || e.remote.qps != e.offer.qps {
		t.Fatalf("state %v, remote %+v, actions %+v", e.state, e.remote, a)
	}
	if _, ok := m.next(); ok || len(m.targets()) != 0 {
		t.Fatal("an end that is connected to itself wants a timer or a link")
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
	m.clearToSend(late)
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
	m.take(0)
	m.finalize(e)
	if a = m.take(0); len(a) != 1 || a[0].kind != actState {
		t.Fatalf("finalize: %+v", a)
	}
}

// Messages that no machine would send, about unknown ids, are answered or refused; they
// change nothing.
func TestUnknownIDs(t *testing.T) {
	for k := range 2 {
		s := newSim(t, 1, faultless)
		a, b := s.endOf(0, false), s.endOf(1, false)
		s.start(0, a)
		s.start(1, b)
		s.run(time.Second)
		m := s.side[k].m
		for kind := messageKind(1); kind <= msgPong; kind++ {
			for _, msg := range []message{
				{kind: kind, from: 1 << 40, to: 1 << 41, offer: anOffer()},
				{kind: kind, from: 1 << 40, to: s.side[k].ends[0].id, offer: anOffer()},
				{kind: kind, from: 1 << 40, offer: anOffer()},
			} {
				if msg.checkIDs() != nil {
					continue
				}
				_ = m.receive(&msg, s.now)
				for _, act := range m.take(s.now) {
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
	s := newSim(t, 1, faultless)
	a := s.endOf(0, false)
	s.side[0].m.linkUp(0)
	s.start(0, a)
	bad := anOffer()
	bad.n = 2
	_ = s.side[0].m.receive(&message{kind: msgReply, from: 9, to: a.id, offer: bad}, 0)
	if out := s.side[0].m.take(0); a.end.state != stFailed || len(out) != 2 || out[0].kind != actState || out[1].msg.kind != msgReject || out[1].msg.code != rejectQPs {
		t.Errorf("%v, actions %+v; want failed with a reject", a.end.state, out)
	}
}

// A reject without an endpoint of the peer fails the request and is not answered; a side that finalizes an end sends
// that once, and so does a side that is asked for an unknown end.
func TestMessagesAtTheEnd(t *testing.T) {
	s := newSim(t, 1, faultless)
	a, b := s.endOf(0, false), s.endOf(0, false)
	m := s.side[0].m
	m.linkUp(0)
	m.start(a.end, 0)
	m.start(b.end, 0)
	m.take(0)
	_ = m.receive(&message{kind: msgReject, to: a.id, code: rejectTime}, 0)
	out := m.take(0)
	if a.end.state != stFailed || len(out) != 2 || out[0].kind != actState || out[1].msg.kind != msgRequest || out[1].msg.from != b.id {
		t.Errorf("%v, actions %+v; want failed, and the next request", a.end.state, out)
	}
	m.finalize(b.end)
	want := message{kind: msgGone, from: b.id}
	if out := m.take(0); len(out) != 2 || out[0].kind != actState || !reflect.DeepEqual(out[1].msg, want) {
		t.Errorf("actions %+v after finalize, want %+v", out, want)
	}
	for now := time.Duration(0); now < time.Minute; now += time.Second {
		m.tick(now)
		if out := m.take(now); len(out) != 0 {
			t.Errorf("actions %+v after the last word", out)
		}
	}
	for _, kind := range []messageKind{msgConfirm, msgReply} {
		_ = m.receive(&message{kind: kind, from: 77, to: 88, offer: anOffer()}, 0)
		want := message{kind: msgGone, from: 88, to: 77}
		if out := m.take(0); len(out) != 1 || !reflect.DeepEqual(out[0].msg, want) {
			t.Errorf("kind %d is answered by %+v, want %+v", kind, out, want)
		}
	}
	for _, kind := range []messageKind{msgGone, msgReject} {
		_ = m.receive(&message{kind: kind, from: 77, to: 88}, 0)
		if out := m.take(0); len(out) != 0 {
			t.Errorf("kind %d is answered by %+v, want nothing", kind, out)
		}
	}
}

// Of the requests that match no end the newest one is kept, until its end is gone or the link is.
func TestRequestsAreBounded(t *testing.T) {
	m := &machine{self: 2, peer: 1, nextID: func() uint64 { return 1 }}
	request := func(id uint64) {
		_ = m.receive(&message{kind: msgRequest, from: id, offer: anOffer()}, 0)
	}
	m.linkUp(0)
	for id := range uint64(1000) {
		request(id + 1)
	}
	if m.waiting == nil || m.waiting.from != 1000 || m.idle() || len(m.take(0)) != 0 {
		t.Errorf("%+v waits, want request 1000, without an answer", m.waiting)
	}
	_ = m.receive(&message{kind: msgGone, from: 999}, 0)
	if m.waiting == nil {
		t.Error("another request was given up")
	}
	_ = m.receive(&message{kind: msgGone, from: 1000}, 0)
	if m.waiting != nil || !m.idle() {
		t.Error("a request that was given up is kept")
	}
	request(1001)
	m.linkDown(0)
	if m.waiting != nil || !m.idle() {
		t.Error("the request of a peer that left is kept")
	}
	m.linkUp(0)
	request(1)
	e := &end{offer: anOffer(), timeout: time.Second}
	if m.add(e, 0); e.state != stReply || e.peerID != 1 {
		t.Errorf("messages of a peer that came back are ignored: %v", e.state)
	}
}

// A request that comes again over a new link is answered again, by what became of it.
func TestRequestOverTheNextLink(t *testing.T) {
	for _, fails := range []bool{false, true} {
		m := &machine{self: 2, peer: 1, nextID: func() uint64 { return 9 }}
		m.linkUp(0)
		e := &end{offer: anOffer(), timeout: time.Second}
		m.add(e, 0)
		o := anOffer()
		want := msgReply
		if fails {
			o.n, want = 2, msgReject
		}
		for range 2 {
			_ = m.receive(&message{kind: msgRequest, from: 5, offer: o}, 0)
			out := m.take(0)
			if n := len(out); n == 0 || out[n-1].msg.kind != want || out[n-1].msg.to != 5 {
				t.Errorf("answers %+v, want kind %d", out, want)
			}
			m.linkDown(0)
			m.linkUp(0)
			m.take(0)
		}
		if len(m.ends) != 1 || e.peerID != 5 {
			t.Errorf("%d ends, met %d", len(m.ends), e.peerID)
		}
	}
}

// An answerer may be established, send and leave before the asker's last step is done: the asker is established as
// well, and then loses the connection, in order.
func TestPeerLeavesBeforeTheLastStep(t *testing.T) {
	for _, tt := range []struct {
		name  string
		leave func(m *machine, e *end)
	}{
		{"endpoint", func(m *machine, e *end) {
			_ = m.receive(&message{kind: msgGone, from: e.peerID, to: e.id}, 0)
		}},
		{"context", func(m *machine, _ *end) { m.leave() }},
	} {
		for _, cts := range []bool{false, true} {
			m := &machine{self: 1, peer: 2, nextID: func() uint64 { return 5 }}
			e := &end{offer: anOffer(), timeout: time.Second, cts: cts, clear: true}
			m.add(e, 0)
			m.start(e, 0)
			for _, msg := range []message{
				{kind: msgReply, from: 9, to: 5, offer: anOffer()},
				{kind: msgConfirm, from: 9, to: 5},
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
			m.take(0)
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
