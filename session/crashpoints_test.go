//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/rdv"
)

// crashPlan is what a rank does and when it crashes.
type crashPlan struct {
	Activity string // what the rank does beside traffic
	Mode     int    // forced, or none
	Arena    bool   // of one-sided operations
	Rails    []session.Rail
	Moment   string // the rank kills itself at occurrence Times of this moment
	Times    int64
}

const envCrash = "BYWASH_SESSION_TEST_CRASH"

// Activities of a rank beside traffic.
const (
	closing = "closing" // it disconnects again and again
	pausing = "pausing" // it quiesces again and again
	losing  = "losing"  // it loses a rail
)

// anyTime is the moment of a rank that the test kills after a random time.
const anyTime = "some time"

// crashScenario is traffic during which ranks crash, and the moments at which they do.
type crashScenario struct {
	name       string
	activity   string
	mode       int // forced, or none
	rails      int // the victim's
	unexpected int // the survivor's budget
	arena      bool
	times      int // the crash is at one of the first so many occurrences of the moment
	moments    []string
}

const anyMode = int(rdv.Modes)

// around are the moments around messages of these kinds.
func around(kinds ...string) (m []string) {
	for _, k := range kinds {
		m = append(m, k+" leaves", k+" left", k+" came")
	}
	return m
}

func moments(lists ...[]string) (m []string) {
	for _, l := range lists {
		m = append(m, l...)
	}
	return append(m, anyTime)
}

var (
	connecting = append([]string{"connect", "connecting", "connect wait", "connected"}, around("hello")...)
	messages   = append([]string{"handler"}, around("eager", "sync", "ack", "rts", "rtr", "am")...)
	chunks     = []string{"chunk posted", "chunk leaves", "chunk under way", "chunk sent", "chunk received"}
	onesided   = []string{"import", "put begins", "put under way", "get begins", "get under way", "atomic begins", "atomic under way", "operation done"}
)

// crashScenarios has the scenarios of each driver. Not all drivers have all of them: drivers differ in the rendezvous.
var crashScenarios = map[string][]crashScenario{
	"shm": {
		{name: "plain", mode: anyMode, times: 20, moments: moments(messages, chunks, around("op", "reply"))},
		{name: "one-sided", mode: anyMode, arena: true, times: 20, moments: moments(onesided)},
		{name: "connecting", mode: anyMode, times: 1, moments: moments(connecting)},
		{name: "null", mode: int(rdv.Null), times: 40, moments: moments(around("frag"))},
		{name: "put", mode: int(rdv.Put), times: 20, moments: moments(around("done"), onesided[:3])},
		{name: "get", mode: int(rdv.Get), times: 20, moments: moments(around("done"), onesided[3:5])},
		{name: "two rails", mode: anyMode, rails: 2, times: 10, moments: moments(around("seen", "done"), chunks)},
		{name: "a rail lost", activity: losing, mode: anyMode, rails: 2, times: 1, moments: moments(around("resume"))},
		{name: "closing", activity: closing, mode: anyMode, times: 5, moments: moments(around("bye"), []string{"disconnect"})},
		{name: "pausing", activity: pausing, mode: anyMode, times: 5, moments: moments(around("pause", "bye"))},
		{name: "little memory", mode: anyMode, unexpected: 4096, moments: moments()},
	},
	"afxdp": {
		{name: "plain", mode: anyMode, times: 20, moments: moments(messages, chunks, around("op", "reply"))},
		{name: "connecting", mode: anyMode, times: 1, moments: moments(connecting)},
		{name: "null", mode: int(rdv.Null), times: 40, moments: moments(around("frag"))},
		{name: "closing", activity: closing, mode: anyMode, times: 5, moments: moments(around("bye"), []string{"disconnect"})},
	},
}

// crashingRank is a rank that crashes as envCrash specifies.
func crashingRank(dir string) error {
	var d crashPlan
	if err := json.Unmarshal([]byte(os.Getenv(envCrash)), &d); err != nil {
		return err
	}
	f := &crashPoint{moment: d.Moment}
	f.times.Store(d.Times)
	inHandler = func() { f.at("handler") }
	if err := registerCrashing(f); err != nil {
		return err
	}
	for i := range d.Rails {
		d.Rails[i].Driver = crashingNames[d.Rails[i].Driver]
	}
	ctx := context.Background()
	s, err := session.Join(ctx, session.Config{
		Job: crashingJob{&folder{dir, 1, 3}}, Rails: d.Rails, Mode: modeOf(d.Mode),
	})
	if err != nil {
		return err
	}
	fmt.Println("joined")
	go func() {
		if err := runActivity(ctx, s, d.Activity); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	memory := make([]byte, 1<<20)
	if d.Arena {
		a, err := driver.NewArena(1 << 20)
		if err != nil {
			return err
		}
		memory = a.Bytes()
	}
	errs := traffic(ctx, s, 0, memory, closedOnly)
	fmt.Fprintln(os.Stderr, errors.Join(errs...))
	crash("an early end")
	return nil
}

// closedOnly: a rank that is disconnected in order tries again.
func closedOnly(err error) bool {
	if !errors.Is(err, session.ErrClosed) || errors.Is(err, session.ErrBroken) {
		return false
	}
	runtime.Gosched()
	return true
}

// runActivity runs a rank's activity beside traffic.
func runActivity(ctx context.Context, s *session.Session, activity string) error {
	g := s.Gate(0)
	if activity == "" {
		return nil
	}
	if err := g.ConnectWait(ctx); err != nil {
		return err
	}
	for start := received(s); activity == losing; runtime.Gosched() {
		if received(s)-start > 3<<20 { // much is under way
			s.CloseRail(0)
			return nil
		}
	}
	for ctx.Err() == nil {
		switch activity {
		case closing:
			if err := g.SendMsg(ctx, &session.Out{Tag: 5, Buf: make([]byte, 8)}); err != nil && !closedOnly(err) {
				return err
			}
			g.Disconnect()
		case pausing:
			if err := s.Quiesce(ctx); err != nil {
				return err
			}
			if err := s.Resume(); err != nil {
				return err
			}
		}
		for before := received(s); received(s) == before && ctx.Err() == nil; { // there is traffic between
			runtime.Gosched()
		}
	}
	return ctx.Err()
}

// survivors are two ranks whose third rank crashes again and again.
type survivors struct {
	crashScenario
	dir       string
	s         *session.Session
	third     *session.Session
	lost      chan *session.Error
	rail      []session.Rail // the victim's
	memory    []byte
	base      resources // after the first death
	crashedAt map[string]int
}

// When a rank crashes, at any moment of the protocol, every rank that is connected to it is notified: everything
// pending ends with ErrBroken and names the rank, and its memory comes back. Nothing is left behind, other gates go
// on, and the rank can be started again.
func TestRanksCrashInEveryState(t *testing.T) {
	soak := os.Getenv("BYWASH_SOAK") != ""
	rng := rand.New(rand.NewPCG(seed(t), 5))
	for _, way := range []struct {
		driver string
		rails  func(t *testing.T) [2][]session.Rail
		deaths int // of each scene, in make soak: 503 in all
	}{
		{"shm", func(*testing.T) [2][]session.Rail {
			return both(session.Rail{Driver: "shm"}, session.Rail{Driver: "shm", Options: map[string]string{"path": "cma"}})
		}, 33},
		{"afxdp", func(t *testing.T) [2][]session.Rail {
			r := afxdpRails(t)
			r[0] = append(r[0], session.Rail{Driver: "shm"}) // to the aide
			return r
		}, 35},
	} {
		t.Run(way.driver, func(t *testing.T) {
			rails := way.rails(t)
			for i, sc := range crashScenarios[way.driver] {
				deaths := 1
				if soak {
					deaths = way.deaths
				} else if testing.Short() && i%2 == 1 {
					continue // in the long form
				}
				t.Run(sc.name, func(t *testing.T) { sc.run(t, rails, rng, deaths) })
			}
		})
	}
}

// run crashes ranks in a scenario.
func (sc crashScenario) run(t *testing.T, rails [2][]session.Rail, rng *rand.Rand, deaths int) {
	v := &survivors{crashScenario: sc, dir: t.TempDir(), lost: make(chan *session.Error, 1000), crashedAt: map[string]int{}}
	v.rail = rails[1][:max(sc.rails, 1)]
	v.memory = make([]byte, 1<<20)
	if sc.arena {
		a, err := driver.NewArena(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		v.memory = a.Bytes()
	}
	if r, w, err := os.Pipe(); err == nil { // this starts the runtime's poller, which would be counted otherwise
		_, _ = r.Close(), w.Close()
	}
	before := heldResources()
	v.join(t, rails[0])
	order := rng.Perm(len(sc.moments))
	for i := range deaths {
		d := crashPlan{Activity: sc.activity, Mode: sc.mode, Arena: sc.arena, Rails: v.rail, Moment: sc.moments[order[i%len(order)]]}
		d.Times = int64(1 + rng.IntN(max(sc.times, 1)))
		after := time.Duration(rng.IntN(30_000)) * time.Microsecond
		v.crashOne(t, d, after)
		if t.Failed() {
			t.Fatalf("death %d: %+v, %v", i, d, after)
		}
	}
	t.Logf("crashed at %v", v.crashedAt)
	ctx := deadline(t)
	for _, s := range []*session.Session{v.s, v.third} {
		go func() { _ = s.Close(ctx) }()
	}
	checkReleased(t, "after the survivors have closed", before)
}

// join joins the survivors.
func (v *survivors) join(t *testing.T, rails []session.Rail) {
	if err := os.WriteFile(filepath.Join(v.dir, "1"), []byte("nobody yet"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx := deadline(t)
	join := func(rank int, c session.Config) *session.Session {
		c.Job = &folder{v.dir, rank, 3}
		s, err := session.Join(ctx, c)
		if err != nil {
			t.Error(err)
		}
		return s
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		v.s = join(0, session.Config{
			Rails: rails, Mode: modeOf(v.mode), Unexpected: v.unexpected, OnError: func(e *session.Error) { v.lost <- e },
		})
	})
	wg.Go(func() { v.third = join(2, session.Config{Rails: []session.Rail{{Driver: "shm"}}}) })
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// crashOne starts a rank, has it crash, and checks what is left of it.
func (v *survivors) crashOne(t *testing.T, d crashPlan, after time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*testTime)
	defer cancel()
	stuck := time.AfterFunc(3*testTime-time.Second, func() { _ = v.s.Dump(os.Stderr) })
	defer stuck.Stop()
	child, output := v.start(t, d)
	var stop atomic.Bool
	var turns [2]atomic.Int64
	var others sync.WaitGroup
	others.Go(func() { v.exchange(ctx, t, v.third, &stop, &turns[0]) })
	others.Go(func() { v.exchange(ctx, t, v.s, &stop, &turns[1]) })
	if d.Moment == anyTime { // at some of these times nothing moves
		time.AfterFunc(after, func() { _ = child.Process.Kill() })
	}
	errs := traffic(ctx, v.s, 1, v.memory, func(err error) bool { return closedOnly(err) && ctx.Err() == nil })
	rest, _ := io.ReadAll(output)
	_ = child.Wait()
	at := strings.TrimSpace(string(rest))
	if at == "" {
		at = anyTime
	}
	v.crashedAt[at]++
	if at != d.Moment {
		t.Logf("crashed at %q, not at %q for the %d. time: %v", at, d.Moment, d.Times, child.Stderr)
	}
	for k, err := range errs {
		checkBroken(t, fmt.Sprintf("loop %d", k), err)
	}
	_, err := v.s.Gate(1).Isend(1, []byte{1})
	checkBroken(t, "a send to the crashed rank", err)
	v.checkReported(ctx, t)
	for i := range turns {
		turn := turns[i].Load()
		eventually(t, "other gates go on", func() bool { return turns[i].Load() > turn+1 })
	}
	stop.Store(true)
	others.Wait()
	v.checkNothingLeft(t)
}

// start starts the victim, and waits until it has joined.
func (v *survivors) start(t *testing.T, d crashPlan) (*exec.Cmd, io.Reader) {
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	child, _ := rankCommand(t, v.dir, envRole+"=crashing", envCrash+"="+string(b))
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill() })
	output := bufio.NewReader(out)
	if line, err := output.ReadString('\n'); err != nil || line != "joined\n" {
		_ = child.Wait()
		t.Fatalf("the victim does not live: %q, %v, %v", line, err, child.Stderr)
	}
	return child, output
}

// checkBroken checks that an error is ErrBroken and names the crashed rank.
func checkBroken(t *testing.T, what string, err error) {
	t.Helper()
	var e *session.Error
	if !errors.Is(err, session.ErrBroken) || !errors.As(err, &e) || e.Peer != 1 {
		t.Errorf("%s ended with %v, want broken by rank 1", what, err)
	}
}

// checkReported checks that OnError has reported the crashed rank, once.
func (v *survivors) checkReported(ctx context.Context, t *testing.T) {
	for fatal := false; !fatal; {
		select {
		case e := <-v.lost:
			if e.Peer != 1 {
				t.Errorf("the error names rank %d: %v", e.Peer, e)
			}
			fatal = !e.NonFatal
		case <-ctx.Done():
			t.Fatal("no error was reported")
		}
	}
	select {
	case e := <-v.lost:
		t.Errorf("another error was reported: %v", e)
	default:
	}
}

// exchange exchanges messages with the other survivor.
func (v *survivors) exchange(ctx context.Context, t *testing.T, with *session.Session, stop *atomic.Bool, turns *atomic.Int64) {
	src, dst := pattern(50_000, 1), make([]byte, 50_000)
	tag := uint64(1<<50 + with.Rank())
	for !stop.Load() {
		r, err := with.Gate(0).Irecv(tag, dst)
		if err == nil {
			err = v.s.Gate(with.Rank()).Send(ctx, tag, src)
		}
		if err == nil {
			_, err = r.Wait(ctx)
		}
		if err != nil || !bytes.Equal(src, dst) {
			t.Errorf("a message to rank %d, which is alive: %v, equal %v", with.Rank(), err, bytes.Equal(src, dst))
			turns.Add(1 << 30)
			return
		}
		clear(dst)
		turns.Add(1)
	}
}

// checkNothingLeft checks that nothing is left of the crashed rank but short messages, which can still be received,
// and makes its gate usable for the next process.
func (v *survivors) checkNothingLeft(t *testing.T) {
	g := v.s.Gate(1)
	ctx := deadline(t)
	for b := make([]byte, 1<<16); ; {
		m, ok := v.s.Improbe(session.Match{From: g, Ignore: ^uint64(0)})
		if !ok {
			break
		}
		if _, err := m.Recv(ctx, b); err != nil {
			t.Errorf("an unexpected message: %v", err)
		}
	}
	var rest string
	for end := time.Now().Add(testTime); ; runtime.Gosched() {
		v.s.Progress()
		if rest = v.s.Pending(); rest == "" {
			break
		}
		if time.Now().After(end) {
			t.Errorf("still there: %s", rest)
			_ = v.s.Dump(os.Stderr)
			return
		}
	}
	g.Disconnect()
	if p := g.Path(); p != "idle" {
		t.Errorf("the gate is %s", p)
	}
	if v.base.fds == 0 {
		v.base = heldResources()
	}
	checkReleased(t, "after another death", v.base)
}

// resources counts what can leak.
type resources struct{ fds, maps, locked, goroutines int }

func heldResources() (h resources) {
	fds, _ := os.ReadDir("/proc/self/fd")
	maps, _ := os.ReadFile("/proc/self/maps")
	status, _ := os.ReadFile("/proc/self/status")
	h.fds, h.goroutines = len(fds), runtime.NumGoroutine()
	for line := range bytes.Lines(maps) {
		if bytes.Contains(line, []byte("memfd:")) || bytes.Contains(line, []byte("/dev/shm")) {
			h.maps++
		}
	}
	for line := range bytes.Lines(status) {
		var n int
		for _, name := range []string{"VmLck:", "VmPin:"} {
			if _, err := fmt.Sscanf(string(line), name+"%d", &n); err == nil {
				h.locked += n
			}
		}
	}
	return h
}

// checkReleased checks that no more resources are in use than before.
func checkReleased(t *testing.T, when string, before resources) {
	t.Helper()
	var now resources
	for end := time.Now().Add(testTime); time.Now().Before(end); runtime.Gosched() {
		now = heldResources()
		if now.fds <= before.fds && now.maps <= before.maps && now.locked <= before.locked && now.goroutines <= before.goroutines {
			return
		}
	}
	b := make([]byte, 1<<16)
	t.Errorf("%s resources in use: %+v, want at most %+v\n%s", when, now, before, b[:runtime.Stack(b, true)])
}
