//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/verbs/ibv"
)

// cmAddr is an address of the device's network interface.
func cmAddr(t testing.TB, c *ibv.Context) netip.Addr {
	t.Helper()
	for _, g := range ok[[]ibv.GIDEntry](t)(c.GIDs(1)) {
		if a := netip.AddrFrom16(g.GID).Unmap(); a.Is4() {
			return a
		}
	}
	// InfiniBand: an address of an IPoIB interface.
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		if addrs, _ := i.Addrs(); strings.HasPrefix(i.Name, "ib") && len(addrs) > 0 {
			return netip.MustParsePrefix(addrs[0].String()).Addr()
		}
	}
	t.Skip("needs an IPv4 address on the device's network interface")
	return netip.Addr{}
}

func cmChannel(t testing.TB) *ibv.CMChannel {
	t.Helper()
	ch, err := ibv.NewCMChannel()
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENODEV) {
		t.Skipf("needs the connection manager: %v", err)
	}
	return closing[*ibv.CMChannel](t)(ch, err)
}

// listen makes a listener on a channel of its own.
func listen(t testing.TB, c *ibv.Context) (*ibv.CMChannel, *ibv.CMID, netip.AddrPort) {
	t.Helper()
	ch := cmChannel(t)
	id := closing[*ibv.CMID](t)(ch.NewID())
	must(t, id.Bind(netip.AddrPortFrom(cmAddr(t, c), 0)))
	must(t, id.Listen(8))
	info := ok[ibv.CMInfo](t)(id.Info())
	if info.Device != c.Name() || info.Local.Port() == 0 {
		t.Fatalf("bound to %+v, want device %s and a port", info, c.Name())
	}
	return ch, id, info.Local
}

// dial resolves a peer's address up to where Connect can be called.
func dial(t testing.TB, ch *ibv.CMChannel, to netip.AddrPort) *ibv.CMID {
	t.Helper()
	id := closing[*ibv.CMID](t)(ch.NewID())
	must(t, id.ResolveAddr(netip.AddrPort{}, to, time.Second))
	ok[*ibv.CMEvent](t)(ch.Expect(soon(t), ibv.CMAddrResolved))
	must(t, id.ResolveRoute(time.Second))
	ok[*ibv.CMEvent](t)(ch.Expect(soon(t), ibv.CMRouteResolved))
	return id
}

// steps takes e's queue pair through the states given, with the connection manager's attributes.
func steps(t testing.TB, id *ibv.CMID, e *end, to ...ibv.QPState) {
	t.Helper()
	for _, s := range to {
		must(t, id.Step(e.qp, s, func(a *ibv.StepAttr) {
			a.Access = allAccess
			if s == ibv.StateRTR {
				a.MinRNRTimer = 12
			}
		}))
	}
}

// answer accepts one connect request with e and returns its event and id.
func answer(t testing.TB, lch *ibv.CMChannel, e *end, p ibv.CMParam) (*ibv.CMEvent, *ibv.CMID) {
	t.Helper()
	req := ok[*ibv.CMEvent](t)(lch.Expect(soon(t), ibv.CMConnectRequest))
	closing[*ibv.CMID](t)(req.ID, nil)
	steps(t, req.ID, e, ibv.StateInit, ibv.StateRTR, ibv.StateRTS)
	must(t, req.ID.Accept(e.qp, p))
	return req, req.ID
}

// finish ends the connecting side's handshake.
func finish(t testing.TB, ch *ibv.CMChannel, id *ibv.CMID, e *end) *ibv.CMEvent {
	t.Helper()
	resp := ok[*ibv.CMEvent](t)(ch.Expect(soon(t), ibv.CMConnectResponse))
	steps(t, id, e, ibv.StateRTR, ibv.StateRTS)
	must(t, id.Establish())
	return resp
}

func cmEnds(t testing.TB) (c *ibv.Context, a, b *end) {
	c = open(t)
	o := withDefaults(pairOptions{})
	return c, newEnd(t, c, o), newEnd(t, c, o)
}

func TestConnectionManagerConnectsCarriesDataAndDisconnects(t *testing.T) {
	c, a, b := cmEnds(t)
	lch, lid, addr := listen(t, c)
	ch := cmChannel(t)
	id := dial(t, ch, addr)
	steps(t, id, a, ibv.StateInit)
	must(t, id.Connect(a.qp, ibv.CMParam{Data: []byte("hello"), ResponderResources: 3, InitiatorDepth: 2,
		RetryCount: 6, RNRRetryCount: 6}))
	req, bid := answer(t, lch, b, ibv.CMParam{Data: []byte("welcome"), ResponderResources: 2, InitiatorDepth: 3,
		RNRRetryCount: 6})
	if !bytes.HasPrefix(req.Param.Data, []byte("hello\x00")) || req.QPN != a.qp.Num() || req.Listen != lid {
		t.Errorf("request %+v", req)
	}
	resp := finish(t, ch, id, a)
	if !bytes.HasPrefix(resp.Param.Data, []byte("welcome\x00")) || resp.QPN != b.qp.Num() {
		t.Errorf("response %+v", resp)
	}
	ok[*ibv.CMEvent](t)(lch.Expect(soon(t), ibv.CMEstablished))
	if info := ok[ibv.CMInfo](t)(id.Info()); info.Peer != addr || info.Device != c.Name() || info.Port != 1 {
		t.Errorf("connected to %+v, want %v", info, addr)
	}

	b.recv(1, 0, 100)
	fill(a.mem[:100], 8)
	a.next(2, 0, 100).Send()
	a.post()
	a.done(2, ibv.WCSend)
	b.done(1, ibv.WCRecv)
	if !bytes.Equal(a.mem[:100], b.mem[:100]) {
		t.Error("bytes differ")
	}
	a.next(3, 8, 8).FetchAdd(b.mr.Addr(), b.mr.RKey(), 1)
	a.post()
	a.done(3, ibv.WCFetchAdd)

	must(t, id.Disconnect())
	ok[*ibv.CMEvent](t)(lch.Expect(soon(t), ibv.CMDisconnected))
	must(t, bid.Disconnect())
	ok[*ibv.CMEvent](t)(ch.Expect(soon(t), ibv.CMDisconnected))
}

func TestConnectionsSetUpSideBySide(t *testing.T) {
	c := open(t)
	o := withDefaults(pairOptions{})
	lch, _, addr := listen(t, c)
	ch := cmChannel(t)
	const n = 5
	type half struct {
		e  *end
		id *ibv.CMID
	}
	client, server := map[*ibv.CMID]*end{}, map[*ibv.CMID]*end{}
	for range n {
		id := closing[*ibv.CMID](t)(ch.NewID())
		client[id] = newEnd(t, c, o)
		must(t, id.ResolveAddr(netip.AddrPort{}, addr, time.Second))
	}
	up := make(chan half, n)
	go func() { // the listener's side has its own goroutine
		for i := 0; i < 2*n; i++ {
			ev, err := lch.Event(soon(t))
			if err != nil {
				t.Error(err)
				break
			}
			switch ev.Type {
			case ibv.CMConnectRequest:
				e := newEnd(t, c, o)
				closing[*ibv.CMID](t)(ev.ID, nil)
				server[ev.ID] = e
				steps(t, ev.ID, e, ibv.StateInit, ibv.StateRTR, ibv.StateRTS)
				must(t, ev.ID.Accept(e.qp, ibv.CMParam{Data: []byte{byte(i)}}))
			case ibv.CMEstablished:
				up <- half{server[ev.ID], ev.ID}
			default:
				t.Errorf("listener: %v", ev.Type)
			}
		}
		close(up)
	}()
	for established := 0; established < n; {
		ev := ok[*ibv.CMEvent](t)(ch.Event(soon(t)))
		e := client[ev.ID]
		switch ev.Type {
		case ibv.CMAddrResolved:
			must(t, ev.ID.ResolveRoute(time.Second))
		case ibv.CMRouteResolved:
			steps(t, ev.ID, e, ibv.StateInit)
			must(t, ev.ID.Connect(e.qp, ibv.CMParam{RetryCount: 6, RNRRetryCount: 6}))
		case ibv.CMConnectResponse:
			steps(t, ev.ID, e, ibv.StateRTR, ibv.StateRTS)
			must(t, ev.ID.Establish())
			established++
		default:
			t.Fatalf("%v: %v", ev.Type, ev.Err())
		}
	}
	got := 0
	for h := range up {
		h.e.recv(1, 0, 8)
		got++
	}
	for _, e := range client {
		e.next(1, 0, 8).Send()
		e.post()
		e.done(1, ibv.WCSend)
	}
	if got != n {
		t.Errorf("%d established, want %d", got, n)
	}
}

func TestRejectCarriesItsReason(t *testing.T) {
	c, a, _ := cmEnds(t)
	lch, _, addr := listen(t, c)
	ch := cmChannel(t)
	id := dial(t, ch, addr)
	steps(t, id, a, ibv.StateInit)
	must(t, id.Connect(a.qp, ibv.CMParam{}))
	req := ok[*ibv.CMEvent](t)(lch.Expect(soon(t), ibv.CMConnectRequest))
	must(t, req.ID.Reject([]byte("no room")))
	must(t, req.ID.Close())
	ev, err := ch.Expect(soon(t), ibv.CMConnectResponse)
	wantErrno(t, err, syscall.ECONNREFUSED, "rejected", "by its program")
	if ev == nil || ev.Type != ibv.CMRejected || !bytes.HasPrefix(ev.Param.Data, []byte("no room\x00")) {
		t.Errorf("event %+v", ev)
	}
}

func TestPortWithoutListenerIsARejection(t *testing.T) {
	c, a, _ := cmEnds(t)
	ch := cmChannel(t)
	id := dial(t, ch, netip.AddrPortFrom(cmAddr(t, c), 1))
	steps(t, id, a, ibv.StateInit)
	must(t, id.Connect(a.qp, ibv.CMParam{}))
	_, err := ch.Expect(soon(t), ibv.CMConnectResponse)
	wantErrno(t, err, syscall.ECONNREFUSED, "nothing listens")
}

func TestClosingARequestRejectsIt(t *testing.T) {
	c, a, _ := cmEnds(t)
	lch, _, addr := listen(t, c)
	ch := cmChannel(t)
	id := dial(t, ch, addr)
	steps(t, id, a, ibv.StateInit)
	must(t, id.Connect(a.qp, ibv.CMParam{}))
	req := ok[*ibv.CMEvent](t)(lch.Expect(soon(t), ibv.CMConnectRequest))
	must(t, req.ID.Close())
	if _, err := ch.Expect(soon(t), ibv.CMConnectResponse); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want a rejection", err)
	}
}

func TestConnectionManagerMisuseIsAnError(t *testing.T) {
	_, a, _ := cmEnds(t)
	ch := cmChannel(t)
	id := ok[*ibv.CMID](t)(ch.NewID())
	wantErrno(t, id.Connect(a.qp, ibv.CMParam{Data: make([]byte, 57)}), syscall.EINVAL, "room for 56")
	wantErrno(t, id.Connect(a.qp, ibv.CMParam{RetryCount: 8}), syscall.EINVAL, "RetryCount")
	wantErrno(t, id.Reject(make([]byte, 149)), syscall.EINVAL, "room for 148")
	wantErrno(t, id.Connect(a.qp, ibv.CMParam{}), syscall.ENOTCONN, "ResolveAddr")
	wantErrno(t, id.Accept(a.qp, ibv.CMParam{}), syscall.ENOTCONN)
	wantErrno(t, id.Establish(), syscall.ENOTCONN)
	wantErrno(t, id.Disconnect(), syscall.ENOTCONN)
	for what, f := range map[string]func() error{
		"resolved a route without an address": func() error { return id.ResolveRoute(time.Second) },
		"stepped without a connection":        func() error { return id.Step(a.qp, ibv.StateInit, nil) },
		"rejected nothing":                    func() error { return id.Reject(nil) },
	} {
		if f() == nil {
			t.Error(what)
		}
	}
	if err := id.Bind(netip.MustParseAddrPort("203.0.113.77:0")); err == nil {
		t.Error("bound to an address of another machine")
	}
	wantErrno(t, ch.Close(), syscall.EBUSY, "1 connection manager id")
	must(t, id.Close())
	wantErrno(t, id.Listen(1), syscall.EBADF, "closed")
	must(t, id.Close())

	done := make(chan error, 1)
	go func() {
		_, err := ch.Event(context.Background())
		done <- err
	}()
	time.Sleep(10 * time.Millisecond)
	must(t, ch.Close())
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("waiting on a closed channel: %v", err)
	}
}

func TestAddressThatNoDeviceReaches(t *testing.T) {
	open(t)
	ch := cmChannel(t)
	id := closing[*ibv.CMID](t)(ch.NewID())
	err := id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("203.0.113.77:5"), 100*time.Millisecond)
	if err == nil {
		_, err = ch.Expect(soon(t), ibv.CMAddrResolved)
	}
	var e *ibv.Error
	if !errors.As(err, &e) {
		t.Errorf("got %v", err)
	}
	t.Log(err)
}
