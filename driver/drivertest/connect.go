package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bywash/bywash/driver"
)

// moment is how long something that must not happen is waited for.
const moment = 20 * time.Millisecond

// bounded runs f, which must come back within the limit, and returns its error.
// As f may be left behind, it reports nothing itself.
func (e *end) bounded(what string, f func() error) error {
	e.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(e.cfg.limit):
		e.dumpf("%s: not back within %v", what, e.cfg.limit)
	}
	panic("unreachable")
}

// waitFor is ConnectWait bounded by d.
func waitFor(i driver.Instance, d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return i.ConnectWait(ctx)
}

// swap sends a message in both directions at once. Both sides call it.
func (c *conn) swap(n int, mine, theirs uint64) {
	c.e.Helper()
	out, in := packet(make([]byte, n)), packet(make([]byte, n+1))
	fill(out.IOV[0], mine)
	c.postRecv(in)
	c.postSend(out)
	c.endRecv(in)
	c.endSend(out)
	if in.N != n {
		c.e.Errorf("swap: received %d bytes, want %d", in.N, n)
	}
	if err := verify(in.IOV[0][:in.N], theirs); err != nil {
		c.e.Fatalf("swap: %v", err)
	}
}

// Seeds of the test's and the peer's messages in swaps.
const (
	ofTest = 1 << 32
	ofPeer = 2 << 32
)

// swaps is swap with seeds that differ with k, from either side.
func (c *conn) swaps(k int) {
	c.e.Helper()
	if c.e.child {
		c.swap(100, ofPeer+uint64(k), ofTest+uint64(k))
	} else {
		c.swap(100, ofTest+uint64(k), ofPeer+uint64(k))
	}
}

const orders = 3 // test first, peer first, at once

var roleOrder = role("connect-order", func(e *end) {
	var rounds int
	e.args(&rounds)
	connectOrders(e, e.parent, rounds)
})

func checkConnectOrder(e *end) {
	rounds := e.times(4, 2) * orders // which incarnation is higher is random
	p := e.peer(roleOrder, rounds)
	connectOrders(e, p.link, rounds)
	p.join()
}

func connectOrders(e *end, l *link, rounds int) {
	for k := range rounds {
		e.ctx = e.open()
		var url string
		l.sendNote("url", e.ctx.URL())
		l.recvNote("url", &url)
		second := k%orders == 0 == e.child && k%orders != 2
		if second {
			l.recvNote("first", nil)
		}
		i, err := e.ctx.Connect(url)
		e.noErr("connect", err)
		if k%orders != 2 && !second {
			if err := waitFor(i, moment); !errors.Is(err, context.DeadlineExceeded) {
				e.Fatalf("connect wait while the peer has not called connect: got %v, want its context's error", err)
			}
			l.sendNote("first", nil)
		}
		c := l.newConn(i)
		c.waitUp()
		if i.Peer() != url {
			e.Errorf("Peer() = %q, want the url that Connect was given, %q", i.Peer(), url)
		}
		c.swaps(k)
		l.sync()
		e.noErr("close", e.ctx.Close())
	}
}

func checkConnectMany(e *end) {
	peers, instances := 16, 3
	switch {
	case e.brief():
		peers, instances = 3, 6
	case raceEnabled:
		peers = 6
	}
	e.exchanges(peers, instances, 1)
}

var roleAbsent = role("connect-absent", func(e *end) {
	var n int
	e.args(&n)
	for range n {
		e.parent.sendNote("url", e.open().URL())
	}
	e.parent.recvNote("enough", nil)
})

func checkConnectAbsent(e *end) {
	const contexts = 6
	p := e.peer(roleAbsent, contexts)
	for range contexts {
		var url string
		p.recvNote("url", &url)
		var i driver.Instance
		nic := e.context()
		e.noErr("connect", e.bounded("connect to a peer that does not connect", func() (err error) {
			i, err = nic.Connect(url)
			return err
		}))
		for range 2 {
			err := e.bounded("connect wait", func() error { return waitFor(i, moment) })
			e.wantErr("connect wait", err, context.DeadlineExceeded)
		}
		e.noErr("disconnect of a connection that is being made", e.bounded("disconnect", i.Disconnect))
		e.wantErr("connect wait after disconnect", waitFor(i, moment), driver.ErrClosed)
		e.wantErr("second disconnect", i.Disconnect(), driver.ErrClosed)
	}
	p.sendNote("enough", nil)
	p.join()
}

var roleSwap = role("swap", func(e *end) {
	var n int
	e.args(&n)
	for k := range n {
		e.parent.connectPeer().swaps(k)
	}
	e.parent.sync()
})

// refused calls Connect with a url that must not work; want is nil when any
// error, at once or out of ConnectWait, is in order.
func (e *end) refused(what, url string, want error) {
	e.Helper()
	i, err := e.context().Connect(url)
	switch {
	case want != nil:
		if err == nil {
			e.Errorf("connect to %s %q: no error, want %v", what, url, want)
			i.Disconnect()
			return
		}
		e.wantErr("connect to "+what, err, want)
		e.namesDriver("connect to "+what, err)
	case err == nil:
		if err := waitFor(i, moment); err == nil {
			e.Errorf("connect to %s %q is established", what, url)
		}
		i.Disconnect()
	}
}

// namesDriver checks that a failure names what failed.
func (e *end) namesDriver(what string, err error) {
	e.Helper()
	var d *driver.Error
	if !errors.As(err, &d) {
		e.Errorf("%s: error %q is no *driver.Error", what, err)
		return
	}
	if d.Driver != e.cfg.Driver || d.Op == "" || strings.Contains(err.Error(), "\n") {
		e.Errorf("%s: error %q does not name driver and operation in one line", what, err)
	}
}

func checkConnectForeign(e *end) {
	p := e.peer(roleEarly, nil)
	var url string
	p.sendNote("url", e.context().URL())
	p.recvNote("url", &url)
	u, err := driver.ParseURL(url, driver.MaxURL)
	e.noErr("parse url", err)
	for _, bad := range []string{"", ":", "x", u.Driver, u.Driver + ":", u.Driver + "::", url + " ", url + "\t", "\x00" + url, url[:len(u.Driver)+4],
		strings.Replace(url, ":", "", 1), u.Driver + ":x:" + url, strings.ToUpper(url), url + strings.Repeat("x", driver.MaxURL)} {
		e.refused("a malformed url", bad, driver.ErrInvalid)
	}
	foreign, version, incarnation := u, u, u
	foreign.Driver = "nosuchdriver"
	version.Version++
	incarnation.Incarnation++
	e.refused("a foreign url", foreign.String(), driver.ErrInvalid)
	e.refused("a url of another version", version.String(), driver.ErrVersion)
	e.refused("another incarnation", incarnation.String(), nil)
	head := len(url) - len(u.Rest)
	for k := range u.Rest {
		b := []byte(url)
		if b[head+k] ^= 1; b[head+k] <= ' ' || b[head+k] > '~' {
			continue
		}
		i, err := e.context().Connect(string(b))
		if err == nil { // it may even reach the peer; it must not harm
			_ = waitFor(i, time.Millisecond)
			_ = i.Disconnect()
		}
	}
	i, err := e.context().Connect(url)
	e.noErr("connect", err)
	p.sendNote("go", nil)
	c := p.newConn(i)
	c.waitUp()
	c.swaps(0)
	p.sync()
	p.join()
}

func checkConnectSelf(e *end) {
	for k := range 2 {
		c := e.self()
		c.swap(100, uint64(k), uint64(k))
		c.swap(min(e.caps.MaxMessage, 1<<20), uint64(k), uint64(k))
		defer c.leave()
	}
}

var roleTwice = role("connect-twice", func(e *end) {
	for round := range 2 {
		connectTwice(e, e.parent, round)
	}
})

func checkConnectTwice(e *end) {
	p := e.peer(roleTwice, nil)
	for round := range 2 {
		connectTwice(e, p.link, round)
	}
	p.join()
}

// connectTwice calls Connect twice on one side, and then twice on the other.
func connectTwice(e *end, l *link, round int) {
	var url string
	l.sendNote("url", e.context().URL())
	l.recvNote("url", &url)
	second := (round == 0) == e.child
	if second {
		l.recvNote("first", nil)
	}
	var cs [2]*conn
	for k := range cs {
		i, err := e.context().Connect(url)
		e.noErr("connect", err)
		cs[k] = l.newConn(i)
	}
	if !second {
		l.sendNote("first", nil)
	}
	cs[1].waitUp()
	cs[0].waitUp()
	cs[0].swaps(0)
	cs[1].swaps(1)
	if second {
		cs[0].leave()
	}
	cs[1].swaps(2)
	l.sync()
	cs[1].leave()
	if !second {
		cs[0].leave()
	}
}

func checkConnectRestarted(e *end) {
	for range 2 { // which incarnation is higher is random
		p, c := e.pair(roleSwap, 2)
		old := c.i.Peer()
		c.swaps(0)
		p.kill()
		_ = c.i.Disconnect()
		q, d := e.pair(roleSwap, 1)
		if d.i.Peer() == old {
			e.Fatalf("a restarted peer has the old url %q", old)
		}
		i, err := e.context().Connect(old)
		if err == nil {
			err = waitFor(i, 2*moment)
			i.Disconnect()
		}
		if err == nil {
			e.Errorf("connection to the old url %q is established", old)
		} else if !errors.Is(err, driver.ErrBroken) && !errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("connect to the old url: got %v, want %v, or nothing until the context ends", err, driver.ErrBroken)
		}
		d.swaps(0)
		q.sync()
		q.join()
	}
}

var roleSecret = role("connect-secret", func(e *end) {
	var secrets [][]byte
	e.args(&secrets)
	for _, s := range secrets {
		trySecret(e, e.parent, s)
	}
})

func checkConnectSecret(e *end) {
	refuseShortSecrets(e)
	one, two, other := []byte("secret number one"), []byte("secret number two"), []byte("secret number one, and more")
	pairs := [][2][]byte{{one, two}, {nil, two}, {one, nil}, {one, one}, {one, other}}
	var theirs [][]byte
	for _, s := range pairs {
		theirs = append(theirs, s[1])
	}
	p := e.peer(roleSecret, theirs)
	for _, s := range pairs {
		got := trySecret(e, p.link, s[0])
		want := "no"
		if string(s[0]) == string(s[1]) {
			want = "yes"
		}
		if got != want {
			e.Errorf("secrets %q and %q: connected: %s, want %s", s[0], s[1], got, want)
		}
	}
	p.join()
}

// refuseShortSecrets: a secret that can be guessed is no secret.
func refuseShortSecrets(e *end) {
	for _, n := range []int{1, 15} {
		a := e.cfg.Attributes
		a.Secret = make([]byte, n)
		c, err := e.query().Open(a)
		if err == nil {
			_ = c.Close()
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "use 16 random bytes or more") {
			e.Errorf("open with a secret of %d bytes: got %v, want %v: use 16 random bytes or more", n, err, driver.ErrInvalid)
		}
	}
}

// trySecret tries to connect until both sides have, or one has failed. It reports
// yes, no, or what else happened.
func trySecret(e *end, l *link, secret []byte) string {
	cfg := *e.cfg // which other checks use as well
	cfg.Attributes.Secret = secret
	e.cfg = &cfg
	e.ctx = e.open()
	c := l.begin()
	var err error
	var theirs string
	received := false
	e.until("connect", func() bool {
		err = waitFor(c.i, moment)
		if n, ok := l.try(0); ok {
			l.expect(n, "outcome", &theirs)
			received = true
		}
		return received && theirs != "yes" || !errors.Is(err, context.DeadlineExceeded)
	})
	mine := ""
	switch {
	case err == nil:
		mine = "yes"
	case errors.Is(err, driver.ErrAuth):
		mine = "auth"
	case errors.Is(err, context.DeadlineExceeded):
		mine = "waits"
	default:
		mine = err.Error()
	}
	l.sendNote("outcome", mine)
	if !received {
		l.recvNote("outcome", &theirs)
	}
	e.noErr("close", e.ctx.Close())
	switch {
	case mine == "yes" && theirs == "yes":
		return "yes"
	case mine == "auth" && theirs != "yes", theirs == "auth" && mine != "yes":
		return "no"
	}
	return fmt.Sprintf("here %s, there %s", mine, theirs)
}

var roleEarly = role("early-post", func(e *end) {
	var url string
	e.parent.sendNote("url", e.context().URL())
	e.parent.recvNote("url", &url)
	e.parent.recvNote("go", nil)
	i, err := e.context().Connect(url)
	e.noErr("connect", err)
	c := e.parent.newConn(i)
	c.waitUp()
	c.swaps(0)
	e.parent.sync()
})

func checkEarlyPost(e *end) {
	p := e.peer(roleEarly, nil)
	c := p.begin()
	posts := func(when string) {
		e.wantErr("receive post "+when, c.i.RecvPost(packet(make([]byte, 8))), driver.ErrInvalid)
		e.wantErr("send post "+when, c.i.SendPost(packet(make([]byte, 8))), driver.ErrInvalid)
		if b, ok := c.i.(driver.BufferSender); ok {
			e.wantErr("buffer "+when, b.SendBufGet(&driver.Packet{}), driver.ErrInvalid)
		}
	}
	posts("before the peer connects")
	p.sendNote("go", nil)
	posts("before connect wait")
	c.waitUp()
	c.swaps(0)
	p.sync()
	p.join()
}
