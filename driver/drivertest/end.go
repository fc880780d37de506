package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// tb is what checks and roles report to.
type tb interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// end is one process in a check: the test itself, or a peer.
type end struct {
	tb
	cfg    *Config
	child  bool
	large  bool
	caps   driver.Capabilities
	parent *link           // of a peer process
	argv   json.RawMessage // of a role
	ctx    driver.Context  // see context

	idle *idlePeers // nil: each peer is a process of its own

	over  atomic.Bool // the check has ended
	mu    sync.Mutex
	peers []*peer
}

// lookup finds out what the driver can do.
func (e *end) lookup() {
	e.large = e.cfg.Hints.Track == driver.Large
	e.caps = e.query().Properties().Capabilities
}

// args decodes the arguments of the role.
func (e *end) args(v any) {
	e.Helper()
	if err := json.Unmarshal(e.argv, v); err != nil {
		e.Fatalf("decode arguments: %v", err)
	}
}

// rand returns the generator of this check, which differs with what.
func (e *end) rand(what uint64) *rand.Rand { return rand.New(rand.NewPCG(e.cfg.Seed, what)) }

func (e *end) cleanup(f func()) {
	if t, ok := e.tb.(*testing.T); ok {
		t.Cleanup(f)
	}
}

func (e *end) query() driver.NIC {
	e.Helper()
	d, err := driver.Lookup(e.cfg.Driver)
	if err != nil {
		e.Fatalf("look up driver: %v", err)
	}
	nic, err := d.Query(e.cfg.Hints)
	if err != nil {
		e.Fatalf("query: %v", err)
	}
	return nic
}

// open opens another context. It is closed with the test at the latest.
func (e *end) open() driver.Context {
	e.Helper()
	c, err := e.query().Open(e.cfg.Attributes)
	if err != nil {
		e.Fatalf("open: %v", err)
	}
	e.cleanup(func() { c.Close() })
	return c
}

// context is the context that the check uses.
func (e *end) context() driver.Context {
	e.Helper()
	if e.ctx == nil {
		e.ctx = e.open()
	}
	return e.ctx
}

// counters returns those of the context.
func (e *end) counters() (c driver.Counters) {
	e.context().Counters(&c)
	return c
}

// bound makes a context that ends when the limit is reached.
func (e *end) bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), e.cfg.limit)
}

func (e *end) addPeer(p *peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peers = append(e.peers, p)
}

// Errorf fails the check, unless the check is over: goroutines that it left behind cannot fail it afterwards.
func (e *end) Errorf(format string, args ...any) {
	if e.over.Load() {
		return
	}
	e.Helper()
	e.tb.Errorf(format, args...)
}

// Fatalf fails, and reports first what went wrong in peers, which is often the cause.
func (e *end) Fatalf(format string, args ...any) {
	if e.over.Load() {
		runtime.Goexit()
	}
	e.Helper()
	e.mu.Lock()
	peers := e.peers
	e.mu.Unlock()
	for _, p := range peers {
		select {
		case <-p.gone:
		case <-time.After(moment):
			continue
		}
		if p.failure != "" && !strings.Contains(fmt.Sprintf(format, args...), p.failure) {
			e.Logf("%s: %s", p.name, p.failure)
		}
	}
	e.tb.Fatalf(format, args...)
}

// dumpf fails with the goroutines of all processes.
func (e *end) dumpf(format string, args ...any) {
	e.Helper()
	b := make([]byte, 1<<18)
	b = b[:runtime.Stack(b, true)]
	if e.child {
		e.Logf("%s", b)
		e.Fatalf(format, args...)
	}
	e.mu.Lock()
	peers := e.peers
	e.mu.Unlock()
	for _, p := range peers {
		e.Logf("%s", p.dump())
	}
	e.Logf("--- the test\n%s", b)
	e.Fatalf(format, args...)
}

// until polls until f returns true. It fails when the limit is reached.
func (e *end) until(what string, f func() bool) {
	e.Helper()
	if !e.within(e.cfg.limit, f) {
		e.dumpf("%s: not within %v", what, e.cfg.limit)
	}
}

// spins is how often within yields before it pauses. It is small, because a
// process that only yields keeps the runtime from polling the network. naps is
// how often it then sleeps in the kernel for some 20 µs, for what takes a moment
// only: time.Sleep takes a millisecond in a process that has nothing else to do,
// as the runtime sleeps in epoll_wait, which counts in milliseconds.
const (
	spins = 200
	naps  = 50
)

// within polls f, first yielding and later with short pauses that leave the
// processor to the peers, and reports whether it returned true in time.
func (e *end) within(d time.Duration, f func() bool) bool {
	start := time.Now()
	for n := 0; !f(); n++ {
		if n < spins {
			runtime.Gosched()
			continue
		}
		if n < spins+naps {
			nap(20 * time.Microsecond)
		} else {
			time.Sleep(20 * time.Microsecond)
		}
		if time.Since(start) > d {
			return false
		}
	}
	return true
}

// wantErr checks that err is want; got nil is a failure as well.
func (e *end) wantErr(what string, err, want error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// noErr ends the check on an error.
func (e *end) noErr(what string, err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v", what, err)
	}
}
