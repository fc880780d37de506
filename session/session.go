package session

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/internal/stat"
	"github.com/bywash/bywash/session/internal/credit"
	"github.com/bywash/bywash/session/internal/match"
	"github.com/bywash/bywash/session/launch"
)

// Session is this process's place in a job, with its connections. Its methods, and those of gates, requests, messages
// and regions, may be called from any goroutine.
type Session struct {
	cfg      Config
	rank     int
	size     int
	launcher launcher
	host     host
	secret   []byte         // secret that admits processes
	key      *handshake.Key // derived from secret
	card     *card
	nics     []*nic
	unopened []Choice // drivers that the job does not need, or that have to be named
	eager    int      // longest packet of the small track, in bytes, that every rail carries

	ctx            context.Context // ends when the session closes
	stop           context.CancelFunc
	tasks          sync.WaitGroup
	wanted         chan struct{}   // receives when a driver reports a connect request
	requestSockets *requestSockets // nil: every driver reports connect requests itself

	mu        lock // guards the rest
	progress  progress
	callers   callers
	closed    bool
	closing   bool    // Close was called: connect requests are not answered
	quiesced  bool    // Quiesce was called
	era       uint32  // how often Resume was called
	dials     uint64  // number of connections that gates have begun
	gates     []*Gate // by source number of the match table: ranks, then foreign ones
	links     map[driver.Instance]*link
	table     *match.Table
	transfers transfers
	oneSided  oneSided
	active    actives
	credit    struct {
		pool  credit.Pool // memory of unexpected messages, stored or granted to peers
		short []*Gate     // gates for whose peers other peers have left no memory
	}
	heldBytes  int      // memory charged to all gates; see quota.go
	busy       []*Gate  // gates with messages that have not left
	unreleased []*link  // dead links that drivers still use
	calls      []func() // to be called without the lock
	called     []func() // memory for the next ones
	calling    int      // calls of callPending under way
	reports    []func() // calls of Config.OnError and OnClosed, in their order
	reporting  bool     // a goroutine is in callReports
	spare      spare

	watch programWatch
	stat  io.Closer // nil: bywash stat does not see this process
	stats Stats
}

// spare are free records, and memory.
type spare struct {
	msgs            *outMsg
	msgBytes        int // bytes of all outgoing messages, in use or free, beyond outMsg.room
	requests        *Request
	unexpected      [unexpectedClasses + 1]*unexpected // by class; the last have no memory
	unexpectedBytes int                                // bytes of memory in unexpected
	outs            *outgoing
	ins             *incoming
	pieces          *piece
	ops             *Op
}

// transfers are the messages under way that both ends know by an id.
type transfers struct {
	syncs  slab[*Request]
	outs   slab[*outgoing]
	ins    slab[*incoming]
	pieces []*piece // posted on large tracks, or waiting for room there
}

// nic is a rail of this process.
type nic struct {
	Rail
	s        *Session
	index    int
	small    driver.Context
	large    driver.Context // nil: the rail has no large track
	caps     *driver.Capabilities
	lcaps    *driver.Capabilities
	longFrom int           // bytes from which the large track is faster; 0: as fast
	prober   driver.Prober // nil: instances are asked in turn
	reg      driver.Registrar
	idle     *sleeper // of watch

	waiting bool          // counted in progress.waiting
	pause   time.Duration // of watch, while callers poll
}

// Join makes this process part of a session: it opens the drivers that the job can need, publishes the business card
// and waits until all ranks of the job have done so. It does not connect: the first message to a rank does. Errors name
// the launcher or driver and what is missing. When ctx ends first, Join fails; ctx has no effect afterwards.
func Join(ctx context.Context, cfg Config) (*Session, error) {
	if err := cfg.check(); err != nil {
		return nil, &Error{Peer: -1, Op: "join", Err: err}
	}
	job, own := cfg.Job, false
	if job == nil {
		var err error
		if job, err = launch.Find(ctx); err != nil {
			return nil, &Error{Peer: -1, Op: "join", Err: err}
		}
		own = true
	}
	s := &Session{
		cfg: cfg, launcher: launcher{job: job, own: own}, rank: job.Rank(), size: job.Size(),
		links: make(map[driver.Instance]*link), table: match.New(), wanted: make(chan struct{}, 1),
		oneSided: oneSided{regions: make(map[uint64]*Region), revoked: make(map[*Region]struct{})},
		active:   actives{budget: cfg.Unexpected},
		callers:  callers{batch: minBatch},
	}
	s.credit.pool = credit.Pool{Bytes: cfg.Unexpected, Messages: maxUnexpected, PeerMessages: maxUnexpectedOfPeer}
	s.gates = make([]*Gate, s.size)
	s.findLocal(os.Getenv)
	s.ctx, s.stop = context.WithCancel(context.Background())
	if s.secret = cfg.Secret; s.secret == nil {
		s.secret = job.Secret()
	}
	var err error
	if s.key, err = handshake.OptionalKey(s.secret); err != nil {
		err = fmt.Errorf("%w: session secret: %w", ErrInvalid, err)
	}
	if err == nil {
		err = s.open(ctx)
	}
	if err == nil && s.size > 1 {
		err = enoughFiles()
	}
	if err == nil {
		err = s.publish(ctx)
	}
	if err != nil {
		s.release()
		_ = s.leaveJob(ctx)
		return nil, &Error{Peer: -1, Op: "join", Err: err}
	}
	s.start()
	if os.Getenv(stat.Env) != "off" {
		s.stat, _ = stat.Serve() // without it, bywash stat does not see this process
	}
	return s, nil
}

// publish publishes the card and waits until all ranks have published theirs.
func (s *Session) publish(ctx context.Context) error {
	var b [8]byte
	_, _ = rand.Read(b[:])
	s.card = &card{rank: uint32(s.rank), size: uint32(s.size), incarnation: binary.LittleEndian.Uint64(b[:]) | 1}
	for _, n := range s.nics {
		p := &n.small.Properties().Profile
		r := cardRail{driver: n.name(), small: n.small.URL(), exclusivity: p.Exclusivity, bandwidth: uint64(p.Bandwidth)}
		if n.large != nil {
			r.large = n.large.URL()
			r.bandwidth = uint64(n.large.Properties().Profile.Bandwidth)
		}
		s.card.rails = append(s.card.rails, r)
	}
	for _, n := range s.nics {
		if _, ok := n.small.(driver.ConnectRequestReceiver); !ok && s.requestSockets == nil {
			s.requestSockets, s.card.addresses = listenForRequests(s.card.incarnation)
		}
	}
	if err := s.launcher.job.Publish(ctx, s.Card()); err != nil {
		return err
	}
	return s.launcher.job.Fence(ctx)
}

// Rank returns this process's number in its job, from 0.
func (s *Session) Rank() int { return s.rank }

// Size returns the number of processes of the job.
func (s *Session) Size() int { return s.size }

// Card returns this process's business card. A process of another session that has the card and the same secret can
// connect over the drivers that this session has opened: see Connect and Config.AllDrivers.
func (s *Session) Card() []byte { return s.card.sealed(s.key) }

// MaxHeader is the longest user header of a message in bytes.
const MaxHeader = 256

// Gate returns the gate to a rank; this process's own rank is allowed. An unused gate costs nothing. Gate panics if
// rank does not exist.
func (s *Session) Gate(rank int) *Gate {
	if rank < 0 || rank >= s.size {
		panic(fmt.Sprintf("session: rank %d of %d", rank, s.size))
	}
	s.mu.lock()
	defer s.mu.unlock()
	return s.gate(rank)
}

// Gates returns the gates of the session: those to ranks that were asked for or have sent something, by rank, and
// those to processes of other sessions that were not forgotten.
func (s *Session) Gates() []*Gate {
	s.mu.lock()
	defer s.mu.unlock()
	var all []*Gate
	for _, g := range s.gates {
		if g != nil && !g.close.forgotten {
			all = append(all, g)
		}
	}
	return all
}

func (s *Session) gate(rank int) *Gate {
	if s.gates[rank] == nil {
		s.gates[rank] = s.newGate(rank)
	}
	return s.gates[rank]
}

func (s *Session) newGate(rank int) *Gate {
	return &Gate{s: s, rank: rank, index: uint32(rank)}
}

// leave gives up the lock, and then calls the pending callbacks.
func (s *Session) leave() {
	switch {
	case len(s.calls) == 0:
		s.unlock()
	case s.calling >= maxCalling:
		s.wakeMover()
		s.unlock()
	default:
		s.callPending()
	}
}

// unlock gives up the lock, but not before the awaiters whose condition holds are woken.
func (s *Session) unlock() {
	if len(s.callers.awaiters) > 0 {
		if s.wakeAwaiters(); len(s.calls) > 0 { // their conditions have failed a gate, or completed receives
			s.wakeMover()
		}
	}
	s.mu.unlock()
}

// maxCalling bounds how deep callbacks nest: one that begins an operation which is done at once causes the next. The mover
// calls those beyond.
const maxCalling = 1000

// callPending gives up the lock, and calls the pending callbacks.
func (s *Session) callPending() {
	calls := s.calls
	s.calls, s.called, s.active.called = s.called[:0], nil, false
	s.active.running++ // Close waits for it
	s.calling++
	s.unlock()
	for _, f := range calls {
		f()
	}
	clear(calls)
	s.mu.lock()
	s.called = calls
	s.calling--
	s.active.running--
	s.unlock()
}

// report has f, which calls Config.OnError or OnClosed, be called after the reports before it.
func (s *Session) report(f func()) {
	s.reports = append(s.reports, f)
	s.calls = append(s.calls, s.callReports)
}

// reportError has Config.OnError be called.
func (s *Session) reportError(e *Error) {
	if f := s.cfg.OnError; f != nil {
		s.report(func() { f(e) })
	}
}

// callReports calls the reports, unless a caller is there already, which then calls the new ones, too.
func (s *Session) callReports() {
	s.mu.lock()
	if s.reporting {
		s.mu.unlock()
		return
	}
	s.reporting = true
	for len(s.reports) > 0 {
		reports := s.reports
		s.reports = nil
		s.mu.unlock()
		for _, f := range reports {
			f()
		}
		s.mu.lock()
	}
	s.reporting = false
	s.mu.unlock()
}

// Close ends the session. It first closes connected gates in order and delivers all messages that were sent, until ctx
// ends. Pending operations then fail with ErrClosed. An operation whose memory the driver cannot give back at once,
// because a living peer accesses it, fails as soon as the driver can. Messages that have arrived and were not received
// are lost. Close also waits for running handlers and callbacks, even after ctx has ended, as it frees the memory that
// handlers read; none of them may call it. If rank 0 serves the rendezvous, its Close blocks until the other ranks have
// closed or ctx ends. A second call fails with ErrClosed, also while the first one waits.
func (s *Session) Close(ctx context.Context) error {
	s.mu.lock()
	if s.closed || s.closing {
		s.mu.unlock()
		return &Error{Peer: -1, Op: "close", Err: ErrClosed}
	}
	if s.quiesced { // what was sent meanwhile is delivered
		s.resume()
	}
	s.closing = true
	gates := slices.Clone(s.gates)
	s.mu.unlock()
	for _, g := range gates {
		if g != nil {
			g.Disconnect()
		}
	}
	err := s.await(ctx, func() bool {
		for _, g := range gates {
			if g != nil && g.state != gateIdle && g.state != gateBroken {
				return false
			}
		}
		return true
	})
	s.mu.lock()
	s.closed = true
	for _, g := range s.gates {
		if g != nil {
			g.drop(g.fault("close", errSessionClosed))
		}
	}
	if s.watch.timer != nil {
		s.watch.timer.Stop()
	}
	s.table.CancelAll(func(r *match.Receive) {
		s.complete(r.User.(*Request), &Error{Peer: -1, Op: r.User.(*Request).op, Err: errSessionClosed})
	})
	s.leave()
	_ = s.await(context.Background(), func() bool { return s.active.running == 0 && len(s.calls) == 0 })
	s.release()
	if !s.awaitDrivers(ctx.Done()) {
		go s.awaitDrivers(nil)
	}
	if left := s.leaveJob(ctx); err == nil {
		err = left
	}
	if err != nil {
		return &Error{Peer: -1, Op: "close", Err: err}
	}
	return nil
}

// release closes drivers and sockets and ends the goroutines.
func (s *Session) release() {
	if s.stat != nil {
		_ = s.stat.Close()
	}
	s.stop()
	s.requestSockets.quit()
	for _, n := range s.nics {
		if k, ok := n.small.(driver.ConnectRequestReceiver); ok {
			k.OnConnectRequest(nil)
		}
		n.close()
	}
	s.tasks.Wait()
	s.requestSockets.close()
}

// leaveJob leaves a job that Join has found. Where this rank serves the rendezvous of all, that waits for the
// others until ctx ends.
func (s *Session) leaveJob(ctx context.Context) error {
	if !s.launcher.own {
		return nil
	}
	if l, ok := s.launcher.job.(interface {
		Leave(ctx context.Context) error
	}); ok {
		if err := l.Leave(ctx); ctx.Err() != nil {
			return err
		}
		return nil
	}
	_ = s.launcher.job.Close()
	return nil
}

// Stats counts events since the session was joined.
type Stats struct {
	Sent, Received   uint64 // messages of programs, active ones included
	Unexpected       uint64 // messages that arrived before a receive
	Stalls           uint64 // times that stored messages left a peer without credit
	Long             uint64 // messages by rendezvous, received
	Fragmented       uint64 // those of them that came in fragments on the small track
	Prefetched       uint64 // sends and receives whose memory drivers began to register before the post
	Unfetched        uint64 // those of them that were not posted
	Bad              uint64 // invalid messages of the session's protocol
	Connects, Broken uint64
}

// Stats returns the counts since Join.
func (s *Session) Stats() Stats {
	s.mu.lock()
	defer s.mu.unlock()
	return s.stats
}

// Counters adds the counters of the session's drivers to sum.
func (s *Session) Counters(sum *driver.Counters) {
	for _, n := range s.nics {
		n.small.Counters(sum)
		if n.large != nil {
			n.large.Counters(sum)
		}
	}
}
