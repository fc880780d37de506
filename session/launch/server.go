package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/internal/handshake"
)

const (
	// The most connections that have not proved the secret. The oldest is closed to make room for the next: so a flood
	// must be faster than a genuine handshake to matter, and neither memory nor descriptors grow.
	maxUnauthenticated = 256
	// Limits of the whole handshake of an unauthenticated connection, and of one write to a rank that does not read.
	handshakeTime = 10 * time.Second
	writeTime     = 10 * time.Second
)

// keepAlive, and setUserTimeout, detect the death of a peer's host within hostDeadTime.
const hostDeadTime = 10 * time.Second

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: hostDeadTime / 2, Interval: time.Second, Count: 5}

// Server is the rendezvous of an embedded job.
type Server struct {
	ln        net.Listener
	secret    []byte
	key       *handshake.Key
	secretErr error // why the secret is invalid
	wg        sync.WaitGroup
	sends     sync.WaitGroup // pending sends, some of which may be the last frame to a rank

	mu              sync.Mutex
	state           *serverState
	ranks           []*serverConn
	unauthenticated []net.Conn    // oldest first
	handshakeSlots  chan struct{} // one for each goroutine of an unauthenticated connection, also of one that was closed to make room
	closed          bool
	reporting       bool       // reportSoon has been called
	idle            *sync.Cond // no rank is joined
	refusals        chan error
	abort           chan *RankError

	sent, received, refused atomic.Uint64
}

type serverConn struct {
	net.Conn
	frames *handshake.Conn
	mu     sync.Mutex // for sending
	queue  []post     // what is to be sent; Server.mu guards it
}

// Listen opens the port of a rendezvous: on the address, or on any port of the loopback interface when it is empty.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	if addr != "" {
		return lc.Listen(ctx, "tcp", addr)
	}
	ln, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		if ln6, err6 := lc.Listen(ctx, "tcp6", "[::1]:0"); err6 == nil {
			return ln6, nil
		}
	}
	return ln, err
}

// Serve answers the ranks of one job until Close. It takes the listener. With a secret of fewer than 16 bytes it
// refuses all; Refused returns why.
func Serve(ln net.Listener, size int, secret []byte) *Server {
	s := &Server{ln: ln, secret: secret, state: newServerState(size), ranks: make([]*serverConn, size), abort: make(chan *RankError, 1),
		handshakeSlots: make(chan struct{}, 2*maxUnauthenticated), refusals: make(chan error, 16)}
	s.key, s.secretErr = jobKey(secret)
	s.idle = sync.NewCond(&s.mu)
	s.wg.Go(s.accept)
	return s
}

// Addr returns the address at which ranks find the server.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Aborted returns a channel that receives, once, the rank that called Abort.
func (s *Server) Aborted() <-chan *RankError { return s.abort }

// Refused receives why connections were refused, with their addresses, as long as a caller reads the channel:
// connections that did not prove the secret, or have another version. It also receives, once, why a connection could not
// be accepted, as without a free descriptor; the server goes on trying.
func (s *Server) Refused() <-chan error { return s.refusals }

// Started informs the server that its caller starts the rank's process and will call Ended when the process ends: until
// then the server does not report the end of a rank whose connection is lost, because it will learn the exit status.
// Started ignores a rank that the job does not have.
func (s *Server) Started(rank int) {
	if checkRank(rank, len(s.state.ranks)) != nil {
		return
	}
	s.mu.Lock()
	s.state.ranks[rank].status = true
	s.mu.Unlock()
}

// Ended informs the server how a rank's process has ended, whether it had joined or not: fences that need the rank
// fail, and ranks that watch ends are notified (Client.WatchEnds). An end whose How is unknown, or whose Code is not
// from 0 to 255, counts as Lost: os.ProcessState.ExitCode is -1 for a process that a signal killed. Ended ignores a rank
// that the job does not have.
func (s *Server) Ended(e End) {
	if checkRank(e.Rank, len(s.state.ranks)) != nil {
		return
	}
	if e.How < Left || e.How > Lost || e.Code < 0 || e.Code > maxCode {
		e = End{Rank: e.Rank, How: Lost}
	}
	s.leave(e.Rank, e.Err().Why)
	s.addEnd(e)
}

// How long ends are collected before they are reported, so that a job that ends needs few messages, and how long the
// server waits for the exit status of a rank whose connection is lost.
const (
	collectTime = 2 * time.Millisecond
	statusTime  = 500 * time.Millisecond
)

// addEnd records an end, and has it reported to the ranks that watch.
func (s *Server) addEnd(e End) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.addEnd(e) {
		s.reportSoon()
	}
}

// lost has the loss of a rank's connection reported after statusTime, unless Ended reports the rank's end first, or
// will.
func (s *Server) lost(rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.ranks[rank].status {
		time.AfterFunc(statusTime, func() { s.addEnd(End{Rank: rank, How: Lost}) })
	}
}

// reportSoon has ends reported after collectTime. s.mu is held.
func (s *Server) reportSoon() {
	if s.reporting || s.closed {
		return
	}
	s.reporting = true
	time.AfterFunc(collectTime, func() {
		s.mu.Lock()
		s.reporting = false
		s.deliver(s.state.reportEnds())
	})
}

// Traffic returns the bytes that all ranks together exchanged with the server; Requests counts refused connections.
func (s *Server) Traffic() Traffic {
	return Traffic{Sent: s.sent.Load(), Received: s.received.Load(), Requests: s.refused.Load()}
}

// wait returns when no rank is joined, or with the error of ctx.
func (s *Server) wait(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.idle.Broadcast()
	})()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.state.live > 0 && !s.closed {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.idle.Wait()
	}
	return nil
}

// Close ends all connections and blocks until the goroutines that served them have ended. Ranks that are still joined
// lose their launcher; what was sent to them before arrives. Close may be called again.
func (s *Server) Close() (err error) {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.idle.Broadcast()
		err = s.ln.Close()
	}
	s.mu.Unlock()
	s.sends.Wait()
	s.mu.Lock()
	for _, c := range s.unauthenticated {
		c.Close()
	}
	for _, c := range s.ranks {
		if c != nil {
			c.Close()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

func (s *Server) accept() {
	for reported := false; ; {
		c, err := s.ln.Accept()
		if err != nil {
			s.mu.Lock()
			if !s.closed && len(s.unauthenticated) > 0 {
				s.unauthenticated[0].Close() // the process may have run out of descriptors
			}
			closed := s.closed
			s.mu.Unlock()
			if closed || errors.Is(err, net.ErrClosed) {
				return
			}
			if !reported {
				reported = true
				s.refuse(err)
			}
			time.Sleep(5 * time.Millisecond) // the listener's queue holds connections that arrive meanwhile
			continue
		}
		setUserTimeout(c)
		s.handshakeSlots <- struct{}{} // waits for goroutines whose connections were closed to make room
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			c.Close()
			<-s.handshakeSlots
			return
		}
		if len(s.unauthenticated) == maxUnauthenticated {
			s.unauthenticated[0].Close()
			s.unauthenticated = slices.Delete(s.unauthenticated, 0, 1)
		}
		s.unauthenticated = append(s.unauthenticated, c)
		s.wg.Go(func() { s.serve(c) })
		s.mu.Unlock()
	}
}

// refuse reports an error to the reader of Refused, if there is one that reads.
func (s *Server) refuse(err error) {
	select {
	case s.refusals <- err:
	default:
	}
}

// removeUnauthenticated removes a connection from s.unauthenticated. It returns false if the connection was closed to
// make room.
func (s *Server) removeUnauthenticated(c net.Conn) bool {
	i := slices.Index(s.unauthenticated, c)
	if i >= 0 {
		s.unauthenticated = slices.Delete(s.unauthenticated, i, i+1)
	}
	return i >= 0
}

func (s *Server) serve(conn net.Conn) {
	c, rank, err := s.handshake(conn)
	if err != nil {
		s.refused.Add(1)
		s.mu.Lock()
		if s.removeUnauthenticated(conn) && !s.closed { // else it was closed here
			s.refuse(fmt.Errorf("%s: %w", conn.RemoteAddr(), err))
		}
		s.mu.Unlock()
		conn.Close()
		<-s.handshakeSlots // last: the goroutine counts as long as it runs
		return
	}
	<-s.handshakeSlots
	defer conn.Close()
	for {
		k, body, err := receiveFrame(c.frames)
		if err == nil {
			s.received.Add(uint64(frameSize(len(body))))
			s.mu.Lock()
			var posts []post
			aborted := s.state.abort != nil
			posts, err = s.state.handle(rank, k, body)
			if s.state.abort != nil && !aborted {
				s.abort <- s.state.abort
			}
			if k == kindBye {
				s.reportSoon()
			}
			s.deliver(posts)
			s.send(c) // the rank makes no more requests than it reads answers
		}
		if err != nil {
			break
		}
		if k == kindBye {
			return
		}
	}
	s.leave(rank, "died")
	s.lost(rank)
}

// handshake authenticates and admits a rank: frames are handled only afterwards.
func (s *Server) handshake(conn net.Conn) (*serverConn, int, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return nil, 0, err
	}
	if s.secretErr != nil {
		return nil, 0, s.secretErr
	}
	frames, claim, err := handshake.Accept(buffered(conn), s.key.Find, &frameConfig)
	if err != nil {
		return nil, 0, launchError(err)
	}
	h, err := parseHello(claim)
	if errors.Is(err, ErrVersion) {
		_ = frames.Send(putWelcome(statusVersion))
	}
	if err != nil {
		return nil, 0, err
	}
	c := &serverConn{Conn: conn, frames: frames}
	return c, int(h.rank), s.admit(c, &h)
}

func (s *Server) admit(c *serverConn, h *hello) error {
	s.mu.Lock()
	if !s.removeUnauthenticated(c.Conn) || s.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	st, posts := s.state.join(h)
	if st == statusOK {
		s.ranks[h.rank] = c
	}
	c.mu.Lock() // the welcome goes before everything else
	s.mu.Unlock()
	err := c.frames.Send(putWelcome(st))
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	c.mu.Unlock()
	if st != statusOK {
		return errFrame
	}
	s.sent.Add(uint64(serverBytes))
	s.received.Add(uint64(clientBytes))
	s.mu.Lock()
	s.deliver(posts)
	if err != nil {
		s.leave(int(h.rank), "died")
	}
	return err
}

func (s *Server) leave(rank int, why string) {
	s.mu.Lock()
	s.deliver(s.state.leave(rank, rankDied, why))
}

// deliver queues the posts and unlocks s.mu. Each rank has its sender, so that no rank blocks another.
func (s *Server) deliver(posts []post) {
	if s.state.live == 0 {
		s.idle.Broadcast()
	}
	for _, p := range posts {
		c := s.ranks[p.to]
		if s.closed {
			continue
		}
		if c.queue = append(c.queue, p); len(c.queue) == 1 { // else a sender is about to take it
			s.sends.Go(func() { s.send(c) })
		}
	}
	s.mu.Unlock()
}

// send sends what is queued, in order.
func (s *Server) send(c *serverConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		s.mu.Lock()
		posts := c.queue
		c.queue = nil
		s.mu.Unlock()
		if len(posts) == 0 {
			return
		}
		for _, p := range posts {
			c.SetWriteDeadline(time.Now().Add(writeTime))
			if err := sendFrame(c.frames, p.kind, p.body); err != nil {
				c.Close() // its reader notices
				return
			}
			s.sent.Add(uint64(frameSize(len(p.body))))
		}
	}
}
