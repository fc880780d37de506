//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/lab/attack"
)

// fakeQP is a queue pair that remembers what was done to it, and fails when
// that is out of order.
type fakeQP struct {
	num   uint32
	mu    sync.Mutex
	steps []string
	path  Path
	block chan struct{} // if not nil, the step stops waits for it
	stops string        // "" means RTR
	fail  string        // step that fails
	busy  atomic.Bool
}

func (q *fakeQP) Num() uint32 { return q.num }

func (q *fakeQP) step(name string, p *Path) error {
	if q.busy.Swap(true) {
		panic("two steps of one queue pair at once")
	}
	defer q.busy.Store(false)
	q.mu.Lock()
	q.steps = append(q.steps, name)
	q.path = *p
	q.mu.Unlock()
	if q.block != nil && name == cmp.Or(q.stops, "RTR") {
		<-q.block
	}
	if name == q.fail {
		return errTimedOut
	}
	return nil
}

func (q *fakeQP) Init(p *Path) error { return q.step("INIT", p) }
func (q *fakeQP) RTR(p *Path) error  { return q.step("RTR", p) }
func (q *fakeQP) RTS(p *Path) error  { return q.step("RTS", p) }

// did returns the steps so far, joined by a space, and the last path.
func (q *fakeQP) did() (string, Path) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return strings.Join(q.steps, " "), q.path
}

const (
	allSteps    = "INIT RTR RTS"
	errTimedOut = syscall.ETIMEDOUT
)

var (
	lastInc atomic.Uint64
	lastQP  atomic.Uint32
)

func aPort(name string) *Port {
	p := &Port{Device: name, Num: 1, LinkLayer: Ethernet, GIDType: GIDRoCEv2, GID: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}, GIDIndex: 1,
		MTU: 1024, MaxResponder: 16, MaxInitiator: 16, Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	if device != nil {
		device.describe(p)
	}
	return p
}

// With device set, hosts are on that device and connected by rdmacm; else by oob over the loopback
// interface.
var device *testDevice

func managerName() string {
	if device != nil {
		return "rdmacm"
	}
	return "oob"
}

// scaled is d, or longer on an emulated device.
func scaled(d time.Duration) time.Duration {
	if device != nil {
		return 4 * d
	}
	return d
}

// inShortVM: the machine is an emulated one of hack/vm, many times slower, and
// there for what needs its device.
func inShortVM() bool { return testing.Short() && os.Getenv("VM_ADDR") != "" }

// onHost skips, in an emulated machine, a test that its device adds nothing to.
func onHost(t testing.TB) {
	t.Helper()
	if inShortVM() {
		t.Skip("needs no RDMA device: runs on the host")
	}
}

// eachManager runs f with hosts that are connected by oob, and by rdmacm where there is a device.
func eachManager(t *testing.T, f func(t *testing.T)) {
	t.Run("oob", func(t *testing.T) {
		onHost(t)
		f(t)
	})
	t.Run("rdmacm", func(t *testing.T) {
		onDevice(t)
		f(t)
	})
}

// onDevice puts the hosts of a test on a device, until what the test cleans up is cleaned up.
func onDevice(t *testing.T) {
	t.Helper()
	d := openDevice(t)
	t.Cleanup(func() {
		device = nil
		d.close(t)
	})
	device = d
}

// host is one context on a port.
type host struct {
	t   testing.TB
	inc uint64
	m   *Managers
}

func testConfig(inc uint64) Config {
	return Config{Incarnation: inc, Secret: []byte("the secret of the session"), Timeout: scaled(2 * time.Second), Include: []string{managerName()}}
}

func aHost(t testing.TB, change func(*Config, *Port)) *host {
	t.Helper()
	inc := lastInc.Add(1)
	cfg := testConfig(inc)
	port := aPort(fmt.Sprintf("fake%d", inc))
	if change != nil {
		change(&cfg, port)
	}
	m, err := Open(cfg, port)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, inc: cfg.Incarnation, m: m}
	t.Cleanup(h.close)
	return h
}

func (h *host) close() {
	if err := h.m.Close(); err != nil {
		h.t.Errorf("close: %v", err)
	}
}

func (h *host) hub() *hub { return h.m.hubs[0] }

func (h *host) rdmacm() *rdmacm { return h.hub().carrier.(*rdmacm) }

// ends is an endpoint with its queue pairs.
type testEnd struct {
	*Endpoint
	qps   []*fakeQP
	woken chan struct{}
	user  []byte // the peer's user data, unless the test has its own Prepare
}

func (h *host) endpoint(peer *host, change func(*EndpointConfig)) *testEnd {
	h.t.Helper()
	return h.endpointTo(peer.inc, peer.m.Card(), change)
}

func (h *host) endpointTo(inc uint64, card string, change func(*EndpointConfig)) *testEnd {
	h.t.Helper()
	e := &testEnd{woken: make(chan struct{}, 1)}
	cfg := EndpointConfig{PeerIncarnation: inc, PeerCard: card, QPs: []QP{&fakeQP{num: lastQP.Add(1)}}, Wake: func() {
		select {
		case e.woken <- struct{}{}:
		default:
		}
	}}
	cfg.UserData = fmt.Appendf(nil, "from %d to %d", h.inc, inc)
	cfg.Prepare = func(peer []byte) error { e.user = peer; return nil }
	if change != nil {
		change(&cfg)
	}
	for _, q := range cfg.QPs {
		if f, ok := q.(*fakeQP); ok {
			e.qps = append(e.qps, f)
		}
	}
	ep, err := h.m.NewEndpoint(&cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	e.Endpoint = ep
	return e
}

// await sleeps by Wake until the state is at least s.
func (e *testEnd) await(t testing.TB, s State) {
	t.Helper()
	limit := time.After(scaled(20 * time.Second))
	for e.State() < s {
		select {
		case <-e.woken:
		case <-limit:
			t.Fatalf("endpoint is still %v after 20 s, want %v", e.State(), s)
		}
	}
}

func (e *testEnd) mustConnect(t testing.TB) {
	t.Helper()
	e.await(t, Ready)
	if e.State() != Ready || e.Err() != nil {
		t.Fatalf("endpoint is %v: %v, want ready", e.State(), e.Err())
	}
}

// mustFail waits until the endpoint is in that state with that cause.
func (e *testEnd) mustFail(t testing.TB, s State, cause error) {
	t.Helper()
	e.await(t, Failed)
	var x *Error
	if err := e.Err(); e.State() != s || !errors.Is(err, cause) || !errors.As(err, &x) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("endpoint is %v: %v; want %v with %v in one line", e.State(), err, s, cause)
	}
}

func (e *testEnd) finalize(t testing.TB) {
	t.Helper()
	e.Finalize()
	select {
	case <-e.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("not done 20 s after Finalize")
	}
	if e.State() != Finalized {
		t.Fatalf("endpoint is %v after Finalize", e.State())
	}
}

// held is what this process holds.
func held() (fds, goroutines int) {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list), runtime.NumGoroutine()
}

// TestMain looks for what the tests leave behind.
func TestMain(m *testing.M) {
	attack.RunIfStarted(nil)
	if role := os.Getenv("CONNECT_TEST_ROLE"); role != "" {
		os.Exit(actRole(role))
	}
	fds, goroutines := held()
	code := m.Run()
	if code == 0 && !released(fds+4, goroutines+2) { // the poller's own, and the test's timers
		buf := make([]byte, 1<<20)
		f, g := held()
		fmt.Printf("FAIL: %d descriptors and %d goroutines are left, %d and %d before\n%s", f, g, fds, goroutines, buf[:runtime.Stack(buf, true)])
		code = 1
	}
	os.Exit(code)
}

func released(fds, goroutines int) bool {
	for range 300 {
		if f, g := held(); f <= fds && g <= goroutines {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}
