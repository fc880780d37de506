//go:build linux

package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/attack"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"

	_ "github.com/bywash/bywash/afxdp"
	_ "github.com/bywash/bywash/qnix"
	_ "github.com/bywash/bywash/shm"
	_ "github.com/bywash/bywash/tcp"
)

// loneJob is the job of a process that is a session of its own: the others reach it by its card.
type loneJob struct{ launch.Job }

func (loneJob) Name() string   { return "lone" }
func (loneJob) Secret() []byte { return bytes.Repeat([]byte{6}, launch.SecretSize) }

// task is what a session of another process is told.
type task struct {
	Rails []session.Rail
	Card  []byte // of whom to connect to
	Seed  uint64
	Kind  string // kind of work, by role
	Mine  int    // which of the two ends of a workload it is
	Arena bool   // messages lie in an arena
}

// join opens a session of this process.
func join(rails []session.Rail, more func(*session.Config)) (*session.Session, error) {
	ctx, cancel := context.WithTimeout(context.Background(), attack.MaxWait)
	defer cancel()
	cfg := session.Config{Job: loneJob{launch.Alone()}, Rails: rails}
	if more != nil {
		more(&cfg)
	}
	return session.Join(ctx, cfg)
}

// workload is validated transfers between two sessions: both draw the same lengths and bytes from a seed.
type workload struct {
	g    *session.Gate
	rng  *rand.Rand
	mine int // 0 sends first
	mem  [2][]byte
	n    atomic.Int64 // rounds that were right
}

const longest = 600 << 10

func newWorkload(g *session.Gate, k task) (*workload, error) {
	w := &workload{g: g, rng: rand.New(rand.NewPCG(k.Seed, 7)), mine: k.Mine}
	for i := range w.mem {
		w.mem[i] = make([]byte, longest)
		if k.Arena {
			a, err := driver.NewArena(longest)
			if err != nil {
				return nil, err
			}
			w.mem[i] = a.Bytes()
		}
	}
	return w, nil
}

// errWrong means that a message had other bytes than were sent.
var errWrong = errors.New("message is not what was sent")

// round sends a message each way. Every byte is checked.
func (w *workload) round(ctx context.Context) error {
	for way := range 2 {
		n := []int{0, 8, 1 + w.rng.IntN(300), w.rng.IntN(8 << 10), w.rng.IntN(60 << 10), w.rng.IntN(longest)}[w.rng.IntN(6)]
		key := w.rng.Uint64()
		if way == w.mine {
			fill(w.mem[0][:n], key)
			if err := w.g.Send(ctx, 5, w.mem[0][:n]); err != nil {
				return err
			}
			continue
		}
		clear(w.mem[1])
		got, err := w.g.Recv(ctx, 5, w.mem[1])
		if err != nil {
			return err
		}
		fill(w.mem[0][:n], key)
		if got != n || !bytes.Equal(w.mem[1][:n], w.mem[0][:n]) {
			return fmt.Errorf("round %d: %w: %d bytes, want %d", w.n.Load(), errWrong, got, n)
		}
	}
	w.n.Add(1)
	return nil
}

// run does rounds until the context ends or something fails, with a pause after each.
func (w *workload) run(ctx context.Context, pause time.Duration) error {
	for ctx.Err() == nil {
		if err := w.round(ctx); err != nil {
			return err
		}
		if pause > 0 {
			time.Sleep(pause)
		}
	}
	return ctx.Err()
}

// fill writes bytes that depend on the key.
func fill(b []byte, key uint64) {
	var word [8]byte
	for i := 0; i < len(b); i += 8 {
		key = key*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(word[:], key)
		copy(b[i:], word[:])
	}
}

// peerProgram is an honest peer: it runs the workload with whom it is told, until it is killed or the other side
// leaves.
func peerProgram(in *json.Decoder, out *json.Encoder) error {
	var k task
	if err := in.Decode(&k); err != nil {
		return err
	}
	s, g, err := k.connect(out, nil)
	if err != nil {
		return err
	}
	w, err := newWorkload(g, k)
	if err != nil {
		return err
	}
	err = w.run(context.Background(), 0)
	if errors.Is(err, errWrong) {
		return err
	}
	return s.Close(context.Background())
}

// connect joins, says its card, and has the gate to whom it was told.
func (k *task) connect(out *json.Encoder, more func(*session.Config)) (*session.Session, *session.Gate, error) {
	s, err := join(k.Rails, more)
	if err != nil {
		return nil, nil, err
	}
	if err := out.Encode(s.Card()); err != nil {
		return nil, nil, err
	}
	g, err := s.Connect(context.Background(), k.Card)
	if err != nil {
		return nil, nil, err
	}
	return s, g, nil
}

// victim is this process: a session that is attacked while it exchanges messages with an honest peer.
type victim struct {
	tb     testing.TB
	s      *session.Session
	honest *workload
	peer   *attack.Program
	stop   context.CancelFunc
	beside chan error // how the honest workload ended
	before attack.Holdings
}

// newVictim opens the session, with an honest peer beside. Both go on until close.
func newVictim(t testing.TB, rails []session.Rail, rng *rand.Rand, more func(*session.Config)) *victim {
	t.Helper()
	return newVictims(t, rails, rails, rng, more)
}

// newVictims is newVictim where the peer has other rails.
func newVictims(t testing.TB, rails, theirs []session.Rail, rng *rand.Rand, more func(*session.Config)) *victim {
	t.Helper()
	s, err := join(rails, more)
	if err != nil {
		skipUnavailable(t, err)
		t.Fatal(err)
	}
	v := &victim{tb: t, s: s, beside: make(chan error, 1)}
	k := task{Rails: theirs, Card: s.Card(), Seed: rng.Uint64(), Mine: 1}
	v.peer = attack.Start(t, "peer", k)
	g := v.connect(v.peer)
	k.Mine = 0
	if v.honest, err = newWorkload(g, k); err != nil {
		t.Fatal(err)
	}
	if err := v.honest.round(attack.Soon(t)); err != nil { // everything of the connection is there from now on
		t.Fatal(err)
	}
	v.mark()
	ctx, stop := context.WithCancel(context.Background())
	v.stop = stop
	go func() { v.beside <- v.honest.run(ctx, time.Millisecond) }()
	return v
}

// mark takes what there is now for what has to be left after the attack.
func (v *victim) mark() { v.before = attack.Settled() }

// skipUnavailable skips where the driver says that the machine has no such NIC.
func skipUnavailable(t testing.TB, err error) {
	t.Helper()
	var gone *driver.UnavailableError
	if errors.As(err, &gone) {
		t.Skip(gone)
	}
}

// connect makes the gate to a program that says its card.
func (v *victim) connect(p *attack.Program) *session.Gate {
	v.tb.Helper()
	var card []byte
	p.Receive(&card)
	g, err := v.s.Connect(attack.Soon(v.tb), card)
	if err != nil {
		v.tb.Fatal(err)
	}
	return g
}

// goesOn checks that the transfers with the honest peer are right and proceed.
func (v *victim) goesOn(what string) {
	v.tb.Helper()
	n := v.honest.n.Load()
	attack.Await(v.tb, "the honest peer's transfers go on "+what, func() bool {
		select {
		case err := <-v.beside:
			v.tb.Fatalf("the honest peer's transfers ended %s: %v", what, err)
		default:
		}
		return v.honest.n.Load() > n+1
	})
}

// close ends the honest workload and the session, in time, and checks that nothing is left.
func (v *victim) close() {
	v.tb.Helper()
	v.goesOn("after the attack")
	attack.Left(v.tb, "after the attack", v.before)
	v.stop()
	if err := <-v.beside; !errors.Is(err, context.Canceled) {
		v.tb.Errorf("the honest peer's transfers: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), attack.MaxWait)
	defer cancel()
	if err := v.s.Close(ctx); err != nil { // the peer sees it, and leaves
		v.tb.Errorf("close: %v", err)
	}
	v.peer.Kill()
	v.tb.Logf("%d rounds with the honest peer", v.honest.n.Load())
}

// ended checks that what was begun with an attacker has come to an end that the contract has.
func ended(tb testing.TB, what string, err error) {
	tb.Helper()
	for _, e := range []error{nil, session.ErrBroken, session.ErrClosed, session.ErrCanceled, session.ErrTruncated, session.ErrBusy,
		driver.ErrTooLong, driver.ErrInvalid, driver.ErrRemoteKey, driver.ErrBounds, driver.ErrAccess,
		context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			return
		}
	}
	tb.Errorf("%s ended with %v, which is no clear error", what, err)
}

// containsPath reports whether a card names a socket.
func containsPath(card, name string) bool {
	return strings.Contains(card, name) || strings.Contains(card, url.PathEscape(name))
}

// envOf gives a program further variables.
func envOf(vars []string) func(*attack.Program) {
	return func(p *attack.Program) { p.Cmd.Env = append(p.Cmd.Env, vars...) }
}
