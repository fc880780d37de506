// Package stat shows the counters of running processes. A process that calls
// [Serve] can be asked for the counters of its open contexts by processes of
// the same user, and by root; "bywash stat" does that.
package stat

import (
	"bytes"
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
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
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

// Process is what a process answers.
type Process struct {
	Version  int       `json:"version"`
	PID      int       `json:"pid"`
	Command  string    `json:"command"`
	Contexts []Context `json:"contexts"`
}

type server struct {
	l  *net.UnixListener
	wg sync.WaitGroup
}

// Serve answers for this process until it is closed. It listens on an abstract
// Unix socket, which leaves no file behind. Peers of other users, except root,
// get no answer. One call a process is enough; a second one serves the same
// counters once more.
func Serve() (io.Closer, error) {
	var r [8]byte
	if _, err := rand.Read(r[:]); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), hex.EncodeToString(r[:]))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("serve counters: %w", err)
	}
	s := &server{l: l}
	s.wg.Add(1)
	go s.serve()
	return s, nil
}

// Close stops answering and waits for the answer under way.
func (s *server) Close() error {
	err := s.l.Close()
	s.wg.Wait()
	return err
}

// serve answers one peer after the other: an answer is short and bounded in
// time, so nobody can hold up more than that.
func (s *server) serve() {
	defer s.wg.Done()
	for {
		c, err := s.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(50 * time.Millisecond) // out of descriptors: it passes
			continue
		}
		answer(c)
	}
}

func answer(c *net.UnixConn) {
	defer c.Close()
	cred, err := credentials(c)
	if err != nil || cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return
	}
	b, err := json.Marshal(Self())
	if err != nil || len(b) > maxAnswer {
		return
	}
	_ = c.SetDeadline(time.Now().Add(timeout))
	_, _ = c.Write(b)
}

func credentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, inner)
}

// maxContexts keeps an answer within its limit.
const maxContexts = 512

// Self is what this process would answer.
func Self() *Process {
	p := &Process{Version: version, PID: os.Getpid(), Command: filepath.Base(os.Args[0]), Contexts: []Context{}}
	for _, c := range driver.Contexts() {
		if len(p.Contexts) == maxContexts {
			break
		}
		props := c.Properties()
		x := Context{Driver: props.Driver, Device: props.Device, Track: props.Track.String(), URL: c.URL()}
		c.Counters(&x.Counters)
		p.Contexts = append(p.Contexts, x)
	}
	slices.SortFunc(p.Contexts, func(a, b Context) int {
		return strings.Compare(a.Driver+" "+a.Track+" "+a.URL, b.Driver+" "+b.Track+" "+b.URL)
	})
	return p
}

// Endpoint is where a process answers.
type Endpoint struct {
	PID  int // as the name says; Read checks it
	Name string
}

// List finds the processes that answer on this machine, in this network
// namespace, sorted by process id.
func List() ([]Endpoint, error) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return parseUnix(b), nil
}

// parseUnix finds our names in /proc/net/unix. Any process may bind any name,
// so what comes out is a claim.
func parseUnix(b []byte) []Endpoint {
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
		e := Endpoint{PID: int(pid), Name: name}
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Endpoint) int {
		if a.PID != b.PID {
			return a.PID - b.PID
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// ErrForeign: another process than its name says, or one of another user,
// answers at an endpoint.
var ErrForeign = errors.New("not the process that its name says")

// Read asks a process. Errors: ErrForeign; the kernel's if the process is gone
// meanwhile; one that says what is wrong with the answer.
func Read(e Endpoint) (*Process, error) {
	c, err := net.DialTimeout("unix", e.Name, timeout)
	if err != nil {
		return nil, fmt.Errorf("ask process %d: %w", e.PID, err)
	}
	defer c.Close()
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, ErrForeign
	}
	cred, err := credentials(u)
	if err != nil {
		return nil, fmt.Errorf("ask process %d: %w", e.PID, err)
	}
	if int(cred.Pid) != e.PID || os.Geteuid() != 0 && int(cred.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("ask process %d: %w", e.PID, ErrForeign)
	}
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

// parse checks an answer: what is printed later holds no control characters.
func parse(b []byte) (*Process, error) {
	switch {
	case len(b) == 0:
		return nil, errors.New("empty: is it of another user?")
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
	if len(p.Contexts) > maxContexts {
		return nil, fmt.Errorf("%d contexts", len(p.Contexts))
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
