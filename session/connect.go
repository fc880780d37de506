package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/descriptors"
	"github.com/bywash/bywash/session/internal/header"
)

// dialFiles is how many files are open at most while a gate connects: sockets, the peer's process and memory. It is
// more than the drivers of this module need (6).
const dialFiles = 10

// dialing is what a gate remembers of its attempts to connect, and of the connections that they have made.
type dialing struct {
	cancel      func()   // cancels the attempt under way
	cancelled   bool     // it was cancelled for a pause
	later       bool     // it begins when unreleased is 0
	unreleased  int      // links of earlier connections that drivers still use
	waiters     int      // callers blocked in ConnectWait
	begun       uint64   // Session.dials when the last connection was begun here
	established uint64   // number of connections established so far
	card        *card    // the peer's, of the last established connection
	byPeer      uint64   // the peer's begun, as of that one
	peerEra     uint32   // how often the peer had called Resume, as of that one
	why         []Choice // of its rails
}

// connect begins a connection. The caller holds the lock.
func (g *Gate) connect() {
	if g.s.quiesced {
		return // Resume does
	}
	g.state = gateConnecting
	g.s.dials++
	g.dialing.begun = g.s.dials
	if g.dialing.unreleased == 0 {
		g.beginDial()
		return
	}
	g.dialing.later = true
	g.dialing.cancel = func() {
		g.dialing.later = false
		g.dialFailed(context.Canceled, true)
	}
}

// beginDial begins a connection when nothing is left of the one before.
func (g *Gate) beginDial() {
	ctx, stop := context.WithCancel(g.s.ctx)
	g.dialing.cancel = stop
	if g.s.launcher.err != nil {
		g.cancelDialLater()
	}
	g.s.tasks.Go(func() {
		defer stop()
		g.dial(ctx)
		g.takeHello()
	})
}

// dial looks up the peer, chooses rails and connects all of them.
func (g *Gate) dial(ctx context.Context) {
	s := g.s
	s.mu.lock()
	number := g.dialing.begun
	s.mu.unlock()
	links, why, err := g.dialLinks(ctx, number)
	s.mu.lock()
	defer s.leave()
	if why != nil {
		g.dialing.why = why
	}
	wanted := g.state == gateConnecting && !s.closed
	if !wanted || g.close.forgotten || err != nil {
		for _, l := range links {
			s.releaseLink(l)
		}
	}
	switch {
	case !wanted:
	case g.close.forgotten:
		g.remove()
	case err != nil:
		g.dialFailed(err, ctx.Err() != nil)
	default:
		g.dialing.cancelled = false
		g.up(links)
	}
}

// takeHello waits some time for the first message of a new connection, Hello, which grants credit for the messages that
// wait. A program with explicit progress may make no call for long.
func (g *Gate) takeHello() {
	const shortest, longest = 5 * time.Microsecond, time.Second
	s := g.s
	s.mu.lock()
	first := g.lead
	s.leave()
	for pause := shortest; first != nil && pause < longest; pause *= 2 {
		s.mu.lock()
		if g.lead == first && !first.helloReceived {
			first.take()
		}
		waits := g.lead == first && !first.helloReceived
		if g.lead == first && !waits {
			g.push()
		}
		s.leave()
		if !waits {
			return
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// dialFailed ends an attempt to connect.
func (g *Gate) dialFailed(err error, givenUp bool) {
	if g.dialing.cancelled { // waiting messages go over another one
		g.state, g.dialing.cancelled = gateIdle, false
		if g.wanted() {
			g.connect()
		} else {
			g.close.asked = false // Disconnect was for the connection that there will not be
			g.s.kickAnswerer()    // the peer may have requested one meanwhile
		}
		return
	}
	if givenUp {
		if why := g.unreachable(); why != nil {
			err = why
		}
	}
	if g.close.peerLeft && errors.Is(err, ErrBroken) {
		err = fmt.Errorf("%w: the peer has closed its session", ErrClosed)
	}
	g.fail(g.fault("connect", err))
}

func (g *Gate) dialLinks(ctx context.Context, number uint64) (links []*link, why []Choice, err error) {
	s := g.s
	theirs, err := g.lookup(ctx)
	if err != nil {
		return nil, nil, err
	}
	if g.rank >= 0 && (int(theirs.rank) != g.rank || int(theirs.size) != s.size) {
		return nil, nil, fmt.Errorf("%w: the card of rank %d is that of rank %d of %d", ErrInvalid, g.rank, theirs.rank, theirs.size)
	}
	pairs, why, own := choose(s.card, theirs, func(my, their int) error { return s.nics[my].reaches(&theirs.rails[their]) })
	for k, i := range own {
		if i >= 0 {
			why[k].Device = s.nics[i].Device
		}
	}
	if g.foreign != nil {
		why = append(why, s.unopened...)
	}
	if len(pairs) == 0 {
		return nil, why, fmt.Errorf("%w: no driver of this process reaches the peer (%v)", driver.ErrUnsupported, why)
	}
	if err := enoughFiles(); err != nil {
		return nil, why, err
	}
	for k, p := range pairs {
		l := &link{g: g, nic: s.nics[p[0]], card: theirs, rail: uint8(k), peer: uint8(p[1])}
		links = append(links, l)
		if err := l.connect(&theirs.rails[p[1]]); err != nil {
			return links, why, err
		}
	}
	if s.requestSockets != nil && g.rank != s.rank && !requestedByDriver(links) {
		requesting, stop := context.WithCancel(ctx)
		defer stop()
		s.tasks.Go(func() { s.requestConnection(requesting, theirs, number) })
	}
	for _, l := range links {
		if err := l.small.ConnectWait(ctx); err != nil {
			return links, why, err
		}
		if l.large != nil {
			if err := l.large.ConnectWait(ctx); err != nil {
				return links, why, err
			}
		}
	}
	return links, why, nil
}

// enoughFiles returns an error if this process cannot open the files for a connection. It is asked before a connection
// begins: one that lacks a descriptor in the middle leaves a peer that has done its part, and waits.
func enoughFiles() error {
	if free, limit := descriptors.Free(); free < dialFiles {
		return fmt.Errorf("%w: connecting may take %d more, and this process has %d of %d left (raise the limit: ulimit -n)",
			syscall.EMFILE, dialFiles, free, limit)
	}
	return nil
}

// requestedByDriver reports whether a driver itself sends the peer a connect request.
func requestedByDriver(links []*link) bool {
	return slices.ContainsFunc(links, func(l *link) bool {
		_, ok := l.nic.small.(driver.ConnectRequestReceiver)
		return ok
	})
}

// connect begins the connections of a rail.
func (l *link) connect(to *cardRail) error {
	small, err := l.nic.small.Connect(to.small)
	if err != nil {
		return err
	}
	var ok bool
	if l.small, ok = small.(driver.BufferReceiver); !ok {
		return fmt.Errorf("%w: driver %s has no buffer receives", driver.ErrUnsupported, l.nic.Driver)
	}
	l.eager = l.nic.packet()
	l.one, _ = small.(driver.OneSided)
	if l.nic.large != nil && to.large != "" {
		if l.large, err = l.nic.large.Connect(to.large); err != nil {
			return err
		}
		l.fetcher, _ = l.large.(driver.Prefetcher)
		if one, ok := l.large.(driver.OneSided); ok {
			l.one = one
		}
	}
	return nil
}

// up completes the establishment of a connection. The first message on it, Hello, identifies this process.
func (g *Gate) up(links []*link) {
	s := g.s
	g.links, g.lead, g.state, g.err, g.dialing.card = links, links[0], gateUp, nil, links[0].card
	g.close.peerLeft, g.active.watch.reported, g.in.prefetchMissed = false, false, false
	g.dialing.established++
	g.relay.begin(len(links))
	shortest := links[0].eager
	for _, l := range links {
		s.links[l.small] = l
		shortest = min(shortest, l.eager)
	}
	for _, l := range links {
		l.eager = shortest // another rail may have to carry a message of this one
	}
	g.beginCredit(shortest)
	s.stats.Connects++
	g.explainUp()
	g.markBusy()
	if g.pausing.kept = false; g.pausing.state == paused {
		g.keep()
	}
	g.resumePostponed()
	g.push()
	g.tryClose()
	// A probe may have reported the instance before it was in s.links, and does not report it again before a message
	// is received. They are taken by who makes progress: handlers are not called from here.
	g.resume()
}

// takeArrived takes a batch of messages from each rail, and has the rest taken later: else it would go on for as long as
// the peer sends.
func (g *Gate) takeArrived() (moved bool) {
	again := false
	for _, l := range g.links {
		taken := 0
		for taken < takeBatch && l.take() {
			taken++
		}
		moved = moved || taken > 0
		again = again || taken == takeBatch
	}
	if again {
		g.resume()
	}
	return moved
}

// checkHello checks the first message of a connection.
func (l *link) checkHello(h *header.Header, b []byte) error {
	if h.Kind != header.Hello {
		return fmt.Errorf("%w: the connection begins with %v", ErrBroken, h.Kind)
	}
	if h.Extra != header.Version {
		return fmt.Errorf("%w: the peer's session speaks version %d, this one %d: use the same release everywhere", ErrVersion, h.Extra, header.Version)
	}
	var hello header.Greeting
	_, data := h.Data(b)
	if err := hello.Parse(h.Body(b), data); err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if g := l.g; g.rank >= 0 && (int(hello.Rank) != g.rank || int(hello.Size) != g.s.size) {
		return fmt.Errorf("%w: rank %d of %d answers instead of rank %d of %d", ErrBroken, hello.Rank, hello.Size, g.rank, g.s.size)
	}
	first := !slices.ContainsFunc(l.g.links, func(x *link) bool { return x.helloReceived })
	l.helloReceived = true
	l.g.dialing.byPeer, l.g.dialing.peerEra = h.Tag, hello.Era
	for _, x := range l.g.links {
		x.eager = min(x.eager, int(hello.Grant.Unasked))
	}
	l.g.granted(&hello.Grant)
	if first && l.g.pausing.kept && h.Flags&flagKept == 0 {
		l.g.loseKept()
	}
	return nil
}

// Connect returns a connected gate to the process of another session whose business card is given. That process calls
// Connect with this process's card; the order of the two calls does not matter. Both sessions need the same secret and
// a common driver that reaches the other (see Config.AllDrivers). Connect blocks until the gate is connected or ctx
// ends. It fails with driver.ErrAuth if the card was changed or belongs to a session with another secret, with
// driver.ErrVersion if it is of another version, with the error of a gate that broke or was closed meanwhile, or with
// that of ctx. The gate's rank is -1; its messages are received through the gate or with any source. After Disconnect or a
// pause, the next message of either side connects both again. Config.OnError and OnClosed report when the peer has gone.
// Gate.Forget removes the gate.
func (s *Session) Connect(ctx context.Context, businessCard []byte) (*Gate, error) {
	c, err := parseCard(businessCard, s.key)
	if err != nil {
		return nil, &Error{Peer: -1, Op: "connect", Err: err}
	}
	s.mu.lock()
	at := s.place()
	g := &Gate{s: s, rank: -1, index: uint32(at), foreign: c}
	s.gates[at] = g
	s.mu.unlock()
	if err := g.ConnectWait(ctx); err != nil {
		_ = g.Forget()
		return nil, err
	}
	return g, nil
}

// answerer connects to peers whose drivers report a connect request.
func (s *Session) answerer() {
	var incarnations []uint64
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wanted:
		}
		for _, n := range s.nics {
			if k, ok := n.small.(driver.ConnectRequestReceiver); ok {
				s.mu.lock()
				as := s.dials
				s.mu.unlock()
				incarnations = k.ConnectRequests(incarnations[:0])
				for _, inc := range incarnations {
					s.answer(inc, as)
				}
			}
		}
	}
}

// answer connects to the peer with that incarnation. If it is a rank of this job, the rank's card confirms the
// incarnation: a forged one costs a lookup. The peer was named when as connections had been begun here: a later one to
// the same peer has answered it, and may have been closed since.
func (s *Session) answer(incarnation, as uint64) {
	if s.card.knows(incarnation) {
		return
	}
	s.answerPeer(driver.RankOf(incarnation), func(g *Gate) bool { return g.dialing.begun <= as }, func(c *card) bool { return c.knows(incarnation) })
}

// answerPeer connects to a peer, that of another session whose card is the right one, or a rank of this job, if it still
// wants that.
func (s *Session) answerPeer(rank int, wanted func(*Gate) bool, is func(*card) bool) {
	idle := func(g *Gate) bool {
		usable := g.state == gateIdle || g.state == gateBroken && g.close.halfway
		return !s.closed && !s.closing && !s.quiesced && usable && wanted(g)
	}
	s.mu.lock()
	others := s.gates[s.size:]
	if i := slices.IndexFunc(others, func(g *Gate) bool { return g != nil && is(g.foreign) }); i >= 0 || rank >= s.size {
		if i >= 0 && idle(others[i]) {
			others[i].connect()
		}
		s.leave()
		return
	}
	g := s.gates[rank]
	if g == nil {
		g = s.newGate(rank) // not among the gates before the card confirms that the rank has asked
	}
	ok := idle(g)
	s.mu.unlock()
	if !ok {
		return // once the gate is idle the answerer looks again
	}
	c, err := g.lookup(s.ctx)
	if err != nil || !is(c) {
		return
	}
	s.mu.lock()
	defer s.leave()
	if g = s.gate(rank); idle(g) {
		g.connect()
	}
}

func (s *Session) kickAnswerer() {
	select {
	case s.wanted <- struct{}{}:
	default:
	}
}
