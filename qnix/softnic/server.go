//go:build linux

package softnic

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/kmod/ncp"
	"github.com/bywash/bywash/qnix/internal/abi"
)

// Server is a running softnic.
type Server struct {
	config Config
	soft   *ncp.Soft
	udp    *net.UDPConn

	nics    []*served
	engine  sync.WaitGroup // the thread that runs the NICs
	accepts sync.WaitGroup
	clients sync.WaitGroup

	mu      sync.Mutex
	conns   map[*client]struct{}
	byUser  map[int]int // connections
	closing bool
	idle    *time.Timer
	done    chan struct{} // closed when it has ended
	once    sync.Once

	waits    waits
	refusing atomic.Int32
}

// served is one NIC with its socket and its process table.
type served struct {
	place    int
	number   uint16
	listener *listener

	mu     sync.Mutex
	free   []uint16 // indices; taken from the end
	byUser map[int]int
}

// Supported returns nil if this program can run a softnic, and an error that matches errors.ErrUnsupported if it was
// built without cgo.
func Supported() error {
	if err := ncp.SoftSupported(); err != nil {
		return fmt.Errorf("softnic: %w", err)
	}
	return nil
}

// Start starts a softnic in this process and returns when programs can connect. Errors name the remedy. It fails with
// ErrRunning if another softnic serves one of the sockets.
func Start(c Config) (*Server, error) {
	if err := c.defaults(); err != nil {
		return nil, fmt.Errorf("softnic: %w", err)
	}
	s := &Server{config: c, conns: map[*client]struct{}{}, byUser: map[int]int{}, done: make(chan struct{})}
	if err := s.start(); err != nil {
		return nil, fmt.Errorf("softnic: %w", err)
	}
	return s, nil
}

func (s *Server) start() (err error) {
	defer func() {
		if err != nil {
			s.closeListeners()
			if s.udp != nil {
				s.udp.Close()
			}
			if s.soft != nil {
				s.soft.Close()
			}
		}
	}()
	c := &s.config
	numbers := make([]uint16, c.NICs)
	for i := range numbers {
		numbers[i] = uint16(c.First + i)
		l, err := listen(c.Sockets[i], len(c.AllowUIDs) > 0)
		if err != nil {
			return err
		}
		n := &served{place: i, number: numbers[i], listener: l, byUser: map[int]int{}}
		for k := c.MaxProcesses - 1; k >= 0; k-- {
			n.free = append(n.free, uint16(k))
		}
		s.nics = append(s.nics, n)
	}
	if err := s.makeNICs(numbers); err != nil {
		return err
	}
	s.engine.Go(func() { s.soft.Run(s.waits.rung) })
	for _, n := range s.nics {
		s.accepts.Go(func() { s.accept(n) })
	}
	if c.Idle > 0 {
		s.mu.Lock()
		s.idle = time.AfterFunc(c.Idle, s.endIdle)
		s.mu.Unlock()
	}
	return nil
}

// endIdle ends the softnic, unless a client has come when the timer had fired already: its end starts the timer again.
func (s *Server) endIdle() {
	s.mu.Lock()
	s.closing = s.closing || len(s.conns) == 0
	closing := s.closing
	s.mu.Unlock()
	if closing {
		_ = s.Close()
	}
}

// polls is how often the thread that runs the NICs polls for work before it sleeps: some tens of microseconds.
const polls = 50

func (s *Server) makeNICs(numbers []uint16) error {
	c := &s.config
	config := ncp.SoftConfig{
		NICs: numbers, Processes: c.MaxProcesses, Names: 4 * c.MaxProcesses, Groups: 1024, Cluster: maxCluster,
		PacketSize: c.PacketSize, LocalMemory: c.LocalMemory, Translations: c.MaxTranslations,
		Polls: polls, UDP: -1, DeadTime: c.DeadTime,
	}
	if c.Listen != "" {
		a, err := resolve(c.Listen)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		if s.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(a)); err != nil {
			return err
		}
		_ = s.udp.SetReadBuffer(1 << 20) // as much as the kernel admits
		_ = s.udp.SetWriteBuffer(1 << 20)
		config.Key = *c.Key
		raw, err := s.udp.SyscallConn()
		if err != nil {
			return err
		}
		// The descriptor stays open as long as s.udp, which outlives the NICs.
		if err := raw.Control(func(fd uintptr) { config.UDP = int(fd) }); err != nil {
			return err
		}
	}
	var err error
	if s.soft, err = ncp.NewSoft(config); err != nil {
		return err
	}
	for _, p := range c.Peers {
		a, err := resolve(p)
		if err == nil {
			err = s.soft.AddPeer(a)
		}
		if err != nil {
			return fmt.Errorf("peer %s: %w", p, err)
		}
	}
	return nil
}

// Addr returns the UDP address of Config.Listen with its port, or nil without one.
func (s *Server) Addr() net.Addr {
	if s.udp == nil {
		return nil
	}
	return s.udp.LocalAddr()
}

// Sockets returns the paths at which the NICs listen.
func (s *Server) Sockets() []string { return slices.Clone(s.config.Sockets) }

// Counters returns the counters of all NICs together.
func (s *Server) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return Counters{}
	}
	return s.soft.Counters()
}

// Counters counts events since the softnic was started.
type Counters = ncp.SoftCounters

func (s *Server) accept(n *served) {
	for {
		conn, err := n.listener.AcceptUnix()
		switch {
		case err == nil:
			s.admit(n, conn)
		case s.ends():
			return
		default: // for example no descriptor: others may be closed later
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func (s *Server) ends() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// idleHandles is how many connections a user may have besides those of registered processes.
const idleHandles = 64

// admit serves a connection if its user may connect.
func (s *Server) admit(n *served, conn *net.UnixConn) {
	peer, err := rights.Peer(conn)
	if err != nil || int(peer.Uid) != os.Geteuid() && !slices.Contains(s.config.AllowUIDs, int(peer.Uid)) {
		rights.Close(conn)
		return
	}
	user := int(peer.Uid)
	s.mu.Lock()
	why := unix.Errno(0)
	switch {
	case s.closing:
		why = unix.ESHUTDOWN
	case rights.Stuck(peer.Uid) != nil:
		why = unix.EBUSY
	case s.byUser[user] >= s.config.NICs*s.config.MaxPerUser+idleHandles:
		why = unix.EUSERS
	default:
		s.byUser[user]++
	}
	s.mu.Unlock()
	if why != 0 {
		s.refuse(conn, why)
		return
	}
	cred, err := credentialsOf(conn)
	c := &client{server: s, nic: n, conn: conn, cred: cred, waiting: map[uint32]chan struct{}{}, over: make(chan struct{})}
	s.mu.Lock()
	allowed := err == nil && !s.closing
	if allowed {
		s.conns[c] = struct{}{}
		s.clients.Add(1)
		if s.idle != nil {
			s.idle.Stop()
		}
	} else {
		s.gone(user)
	}
	s.mu.Unlock()
	if !allowed {
		rights.Close(conn)
		c.closePidfd()
		return
	}
	go func() {
		defer s.clients.Done()
		c.serve()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gone(user)
		delete(s.conns, c)
		if s.idle != nil && len(s.conns) == 0 && !s.closing {
			s.idle.Reset(s.config.Idle)
		}
	}()
}

// gone uncounts a connection of a user. The caller holds mu.
func (s *Server) gone(user int) {
	if s.byUser[user]--; s.byUser[user] == 0 {
		delete(s.byUser, user)
	}
}

// refusals is how many refused connections get an answer at a time. refusalTime is how long they may take to send a
// request.
const (
	refusals    = 64
	refusalTime = time.Second
)

// refuse answers the first request with an errno and hangs up.
func (s *Server) refuse(conn *net.UnixConn, why unix.Errno) {
	if s.refusing.Add(1) > refusals {
		s.refusing.Add(-1)
		rights.Close(conn)
		return
	}
	go func() {
		defer s.refusing.Add(-1)
		defer rights.Close(conn)
		_ = conn.SetDeadline(time.Now().Add(refusalTime))
		b, _, err := abi.Receive(conn, 0)
		if err != nil {
			return
		}
		if h, _, err := abi.ParseRequest(b); err == nil {
			a := abi.Answer{ID: h.ID, Errno: int32(why)}
			_ = abi.Send(conn, abi.Bytes(&a))
		}
	}()
}

func (s *Server) closeListeners() {
	for _, n := range s.nics {
		n.listener.close()
	}
}

// Close ends the softnic: its clients find it gone, and other hosts are notified. It blocks until that is done, also
// when it is called again.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.mu.Lock()
		s.closing = true
		if s.idle != nil {
			s.idle.Stop()
		}
		for c := range s.conns {
			// It does not hang up: a client that sees the end takes its memory back, and the NIC may be at work there.
			rights.Interrupt(c.conn) // serve closes it
		}
		s.mu.Unlock()
		for _, n := range s.nics {
			n.listener.interrupt()
		}
		s.accepts.Wait()
		s.closeListeners()
		s.clients.Wait()
		s.soft.Stop()
		s.engine.Wait()
		s.soft.Close()
		if s.udp != nil {
			s.udp.Close()
		}
		close(s.done)
	})
	<-s.done
	return nil
}

// Wait blocks until the softnic has ended, because it had no clients (Config.Idle) or by Close. When the context ends,
// Wait closes the softnic and returns the context's cause.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		_ = s.Close()
		return context.Cause(ctx)
	}
}
