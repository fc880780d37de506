// Package stat shows counters and frames of running processes. A process that calls [Serve], as sessions do, can be
// asked by processes of the same user and by root: for the counters of its open contexts ([Read], which "bywash stat"
// calls) and for the frames that its NICs send and receive past the kernel ([Capture], which "bywash capture" calls).
package stat

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/rights"
)

const (
	prefix    = "@bywash-stat-"
	maxAnswer = 1 << 20
	timeout   = 2 * time.Second
	version   = 1
)

// Context is one open context of a process.
type Context struct {
	Driver   string          `json:"driver"`
	Device   string          `json:"device"`
	Track    string          `json:"track"`
	URL      string          `json:"url"`
	Counters driver.Counters `json:"counters"`
}

// Process is the answer of a process to Read.
type Process struct {
	Version  int       `json:"version"`
	PID      int       `json:"pid"`
	Command  string    `json:"command"`
	Contexts []Context `json:"contexts"`
	Omitted  int       `json:"omitted,omitempty"` // contexts for which an answer has no room
}

type server struct {
	stats    *net.UnixListener
	captures *net.UnixListener
	ctx      context.Context // until Close
	cancel   context.CancelFunc
	slots    chan struct{} // captures under way
	wg       sync.WaitGroup
}

// Env is a variable of the environment: where it is "off", sessions do not call Serve.
const Env = "BYWASH_STAT"

// shared is this process's server, for all callers of Serve.
var shared struct {
	sync.Mutex
	users  int
	server *server
}

// Serve answers for this process until it is closed: with its counters, and to processes that capture, with the frames
// of its NICs (see [Capture]). It listens on abstract Unix sockets, which take two descriptors and leave no file
// behind. Peers of other users, except root, get no answer. All callers in a process share one server; the last one
// that closes it ends it.
func Serve() (io.Closer, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.users == 0 {
		s, err := serve()
		if err != nil {
			return nil, err
		}
		shared.server = s
	}
	shared.users++
	return &use{}, nil
}

// use is one caller's share in the server.
type use struct{ closed atomic.Bool }

// Close ends the caller's use. The last one stops answering and waits for the answers under way; captures get what
// their NICs have shown so far, within 2 s.
func (u *use) Close() error {
	if u.closed.Swap(true) {
		return net.ErrClosed
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.users--; shared.users > 0 {
		return nil
	}
	return shared.server.close()
}

func serve() (*server, error) {
	var r [8]byte
	if _, err := rand.Read(r[:]); err != nil {
		return nil, err
	}
	s := &server{slots: make(chan struct{}, maxCaptures)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	if s.stats, err = listen(prefix, r); err != nil {
		return nil, fmt.Errorf("serve counters: %w", err)
	}
	if s.captures, err = listen(capturePrefix, r); err != nil {
		s.stats.Close()
		return nil, fmt.Errorf("serve captures: %w", err)
	}
	// Counters are answered one peer after the other: an answer is short and bounded
	// in time, so no client can block more than that.
	s.wg.Go(func() { s.accept(s.stats, answer) })
	s.wg.Go(func() { s.accept(s.captures, s.capture) })
	return s, nil
}

func listen(prefix string, r [8]byte) (*net.UnixListener, error) {
	name := fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), hex.EncodeToString(r[:]))
	c := net.ListenConfig{Control: rights.Refuse} // any process in this network namespace can send there
	l, err := c.Listen(context.Background(), "unix", name)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

func (s *server) close() error {
	err := errors.Join(s.stats.Close(), s.captures.Close())
	s.cancel()
	s.wg.Wait()
	return err
}

// accept takes peers that may ask.
func (s *server) accept(l *net.UnixListener, serve func(*net.UnixConn)) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(50 * time.Millisecond) // out of descriptors: it passes
			continue
		}
		if cred, err := rights.Peer(c); err != nil || cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
			rights.Close(c) // with what lies in its queue, which can block (before Linux 6.16)
			continue
		}
		serve(c)
	}
}

// capture serves one in a goroutine of its own, if there are not too many.
func (s *server) capture(c *net.UnixConn) {
	select {
	case s.slots <- struct{}{}:
	default:
		c.Close()
		return
	}
	s.wg.Go(func() {
		defer func() { <-s.slots }()
		defer c.Close()
		// A peer that does not read shall not hold up Close.
		defer context.AfterFunc(s.ctx, func() { _ = c.SetWriteDeadline(time.Now().Add(timeout)) })()
		serveCapture(s.ctx, c)
	})
}

func answer(c *net.UnixConn) {
	defer c.Close()
	b, err := json.Marshal(self())
	if err != nil || len(b) > maxAnswer {
		return
	}
	_ = c.SetDeadline(time.Now().Add(timeout))
	_, _ = c.Write(b)
}

// maxContexts keeps an answer within its limit.
const maxContexts = 512

// self returns the answer of this process.
func self() *Process {
	name, err := os.Executable() // os.Args[0] may be /proc/self/exe
	if err != nil {
		name = os.Args[0]
	}
	p := &Process{Version: version, PID: os.Getpid(), Command: filepath.Base(name), Contexts: []Context{}}
	for _, c := range driver.Contexts() {
		props := c.Properties()
		x := Context{Driver: props.Driver, Device: props.Device, Track: props.Track.String(), URL: c.URL()}
		c.Counters(&x.Counters)
		p.Contexts = append(p.Contexts, x)
	}
	slices.SortFunc(p.Contexts, func(a, b Context) int {
		return strings.Compare(a.Driver+" "+a.Track+" "+a.URL, b.Driver+" "+b.Track+" "+b.URL)
	})
	p.Omitted = max(0, len(p.Contexts)-maxContexts)
	p.Contexts = p.Contexts[:len(p.Contexts)-p.Omitted]
	return p
}

// Endpoint is the address at which a process answers.
type Endpoint struct {
	PID  int // taken from the name; Read checks it
	name string
}

// List returns the processes that answer in this network namespace of this machine, sorted by process id.
func List() ([]Endpoint, error) { return list(prefix) }

func list(prefix string) ([]Endpoint, error) {
	// The sockets of this thread's network namespace, in which dial connects: /proc/net shows the main thread's, which
	// may be in another one.
	b, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return parseUnix(b, prefix), nil
}

// parseUnix finds our names in the kernel's list of Unix sockets. Any process may bind any name,
// so the result is not verified.
func parseUnix(b []byte, prefix string) []Endpoint {
	var out []Endpoint
	for line := range bytes.Lines(b) {
		i := bytes.IndexByte(line, '@')
		if i < 0 {
			continue
		}
		name := string(bytes.TrimSuffix(line[i:], []byte("\n")))
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok || len(name) > 107 {
			continue
		}
		num, tail, ok := strings.Cut(rest, "-")
		pid, err := strconv.ParseUint(num, 10, 31)
		if !ok || err != nil || pid == 0 || strconv.FormatUint(pid, 10) != num {
			continue
		}
		if raw, err := hex.DecodeString(tail); err != nil || len(raw) != 8 {
			continue
		}
		out = append(out, Endpoint{PID: int(pid), name: name})
	}
	slices.SortFunc(out, func(a, b Endpoint) int {
		if a.PID != b.PID {
			return a.PID - b.PID
		}
		return strings.Compare(a.name, b.name)
	})
	return slices.Compact(out)
}

// Errors of an endpoint.
var (
	// ErrForeign means that it is not of the process whose id its name contains.
	ErrForeign = errors.New("another process uses the name of its socket (one in another pid namespace?)")
	// ErrUser means that only the process's user and root may ask it.
	ErrUser = errors.New("it is of another user: ask as that user, or as root")
)

// dial connects to an endpoint and checks the process and user that answer.
func dial(e Endpoint) (*net.UnixConn, error) {
	x, err := net.DialTimeout("unix", e.name, timeout)
	if err != nil {
		return nil, err
	}
	c, ok := x.(*net.UnixConn)
	if !ok {
		x.Close()
		return nil, ErrForeign
	}
	cred, err := rights.Peer(c)
	switch {
	case err != nil:
	case int(cred.Pid) != e.PID:
		err = ErrForeign
	case os.Geteuid() != 0 && int(cred.Uid) != os.Geteuid():
		err = ErrUser
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Read asks a process for its counters, and blocks until it answers. It fails with ErrForeign or ErrUser, with the kernel's error
// if the process is gone, and with a description of the defect if the answer is malformed.
func Read(e Endpoint) (*Process, error) {
	c, err := dial(e)
	if err != nil {
		return nil, fmt.Errorf("ask process %d: %w", e.PID, err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(timeout))
	b, err := io.ReadAll(io.LimitReader(c, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("ask process %d: %w", e.PID, err)
	}
	p, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("answer of process %d: %w", e.PID, err)
	}
	p.PID = e.PID
	return p, nil
}

// parse checks an answer: strings that are printed later hold no control characters.
func parse(b []byte) (*Process, error) {
	switch {
	case len(b) == 0:
		return nil, errors.New("empty reply (process of another user?)")
	case len(b) > maxAnswer:
		return nil, fmt.Errorf("longer than %d bytes", maxAnswer)
	}
	p := &Process{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("malformed: %w", err)
	}
	if p.Version != version {
		return nil, fmt.Errorf("version %d, this program knows %d", p.Version, version)
	}
	if len(p.Contexts) > maxContexts || p.Omitted < 0 {
		return nil, fmt.Errorf("%d contexts, %d omitted", len(p.Contexts), p.Omitted)
	}
	if p.Contexts == nil {
		p.Contexts = []Context{}
	}
	p.Command = printable(p.Command)
	for i := range p.Contexts {
		x := &p.Contexts[i]
		x.Driver, x.Device, x.Track, x.URL = printable(x.Driver), printable(x.Device), printable(x.Track), printable(x.URL)
	}
	return p, nil
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}
