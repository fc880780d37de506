//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// Moments at which rank 0, which serves the rendezvous, is killed.
const (
	beforeTheWord  = "before the word"
	beforeTheCard  = "before the card"
	beforeTheFence = "before the fence"
	afterTheFence  = "after the fence"
	connected      = "connected"
	whileClosing   = "while closing"
	closed         = "closed"
)

// heldJob stops rank 0 at a moment of its start.
type heldJob struct {
	*launch.Client
	moment string
}

// hold waits to be killed.
func hold() {
	fmt.Println("here")
	select {}
}

func (j heldJob) Agree(ctx context.Context, word []byte) (bool, error) {
	if j.moment == beforeTheWord {
		hold()
	}
	return j.Client.Agree(ctx, word)
}

func (j heldJob) Publish(ctx context.Context, card []byte) error {
	if j.moment == beforeTheCard {
		hold()
	}
	return j.Client.Publish(ctx, card)
}

func (j heldJob) Fence(ctx context.Context) error {
	if j.moment == beforeTheFence {
		hold()
	}
	err := j.Client.Fence(ctx)
	if j.moment == afterTheFence {
		hold()
	}
	return err
}

// servedRank is a rank of a job whose rank 0 serves the rendezvous, and dies. Its output is the outcome.
func servedRank() error {
	moment := os.Getenv(envMode)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	before := heldResources()
	job, err := launch.Find(ctx)
	if err != nil {
		return err
	}
	fmt.Println("found")
	reported := make(chan *session.Error, 2*launcherRanks)
	cfg := session.Config{Job: job, Rails: []session.Rail{{Driver: "shm"}}, OnError: func(e *session.Error) { reported <- e }}
	if job.Rank() == 0 {
		cfg.Job = heldJob{job, moment}
		if moment == whileClosing {
			cfg.OnClosed = func(*session.Gate) { hold() }
		}
	}
	err = serve(ctx, cfg, moment, reported)
	if c := job.Close(); c != nil {
		err = errors.Join(err, unlessServed(ctx, c))
	}
	return errors.Join(err, nothingLeft(before))
}

func serve(ctx context.Context, cfg session.Config, moment string, reported chan *session.Error) error {
	s, err := session.Join(ctx, cfg)
	if err != nil {
		fmt.Println("not joined")
		return unlessServed(ctx, err)
	}
	fmt.Println("joined")
	switch {
	case moment == afterTheFence:
		err = withoutRank0(ctx, s, reported)
	case moment == anyTime:
		for err == nil { // until it is noticed
			err = exchangeAll(ctx, s, 0)
		}
		err = unlessServed(ctx, err)
	default:
		err = exchangeAll(ctx, s, 0)
		if moment == whileClosing { // rank 0 does not know which ranks have received its messages
			err = unlessServed(ctx, err)
		}
		if err != nil {
			break
		}
		fmt.Println("connected")
		if s.Rank() == 0 && moment == connected {
			hold()
		}
		if moment == connected {
			err = checkRank0Lost(ctx, s, reported)
		}
		if s.Rank() != 0 && moment == closed {
			if err = launcherLost(ctx, reported); err == nil {
				err = exchangeAll(ctx, s, 1)
			}
		}
	}
	if err == nil {
		fmt.Println("went on")
	}
	if c := s.Close(ctx); c != nil {
		err = errors.Join(err, unlessServed(ctx, c))
	}
	if s.Rank() == 0 && moment == closed { // the others are not
		fmt.Println("here")
	}
	return err
}

// unlessServed returns nil for errors that follow from rank 0's death. Errors of the launcher must name rank 0.
func unlessServed(ctx context.Context, err error) error {
	if e := unlessLost(ctx, err); e != nil || !errors.Is(err, launch.ErrLauncher) {
		return e
	}
	var r *launch.RankError
	if !errors.As(err, &r) || r.Rank != 0 || !strings.Contains(err.Error(), "rank 0: served the rendezvous") {
		return fmt.Errorf("the error does not name rank 0: %w", err)
	}
	return nil
}

// exchangeAll exchanges a message with each rank from the first on.
func exchangeAll(ctx context.Context, s *session.Session, first int) error {
	var wg sync.WaitGroup
	errs := make([]error, 2*s.Size())
	for r := first; r < s.Size(); r++ {
		wg.Go(func() { errs[2*r] = s.Gate(r).Send(ctx, 1, make([]byte, 100_000)) })
		wg.Go(func() { _, errs[2*r+1] = s.Gate(r).Recv(ctx, 1, make([]byte, 100_000)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// launcherLost waits until the loss of the launcher is reported.
func launcherLost(ctx context.Context, reported chan *session.Error) error {
	for {
		select {
		case e := <-reported:
			if e.Peer < 0 && e.NonFatal && errors.Is(e, launch.ErrLauncher) {
				return unlessServed(ctx, e)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// withoutRank0 is a rank without connections when rank 0 dies: its operations with others fail with the cause.
func withoutRank0(ctx context.Context, s *session.Session, reported chan *session.Error) error {
	if err := launcherLost(ctx, reported); err != nil {
		return err
	}
	for r := range s.Size() {
		if r == s.Rank() {
			continue
		}
		err := s.Gate(r).Send(ctx, 1, make([]byte, 8))
		if !errors.Is(err, launch.ErrLauncher) {
			return fmt.Errorf("a send to rank %d, whose card is lost, ends with %w", r, err)
		}
		if err := unlessServed(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// checkRank0Lost checks a rank that is connected to all when rank 0 dies: the loss is reported to it, and it goes on
// with the others.
func checkRank0Lost(ctx context.Context, s *session.Session, reported chan *session.Error) error {
	for lost, broken := false, false; !lost || !broken; {
		select {
		case e := <-reported:
			switch {
			case e.Peer < 0 && e.NonFatal:
				if err := unlessServed(ctx, e); err != nil {
					return err
				}
				lost = true
			case e.Peer == 0 && !e.NonFatal && errors.Is(e, session.ErrBroken):
				broken = true
			default:
				return fmt.Errorf("rank %d gets %w", s.Rank(), e)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var e *session.Error
	if err := s.Gate(0).Send(ctx, 1, make([]byte, 8)); !errors.Is(err, session.ErrBroken) || !errors.As(err, &e) || e.Peer != 0 {
		return fmt.Errorf("a send to rank 0 ends with %w", err)
	}
	return exchangeAll(ctx, s, 1)
}

// nothingLeft waits until no more resources are in use than before.
func nothingLeft(before resources) error {
	var now resources
	for end := time.Now().Add(testTime); time.Now().Before(end); runtime.Gosched() {
		now = heldResources()
		if now.fds <= before.fds && now.maps <= before.maps && now.locked <= before.locked && now.goroutines <= before.goroutines {
			return nil
		}
	}
	return fmt.Errorf("resources in use: %+v, want at most %+v", now, before)
}

// Rank 0 serves the rendezvous, and is killed. Ranks that have not joined report that it was rank 0; ranks that have go
// on with those to which they are connected. No rank hangs, and nothing is left behind.
func TestRanksOutliveServingRank0(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed(t), 7))
	for _, moment := range []string{beforeTheWord, beforeTheCard, beforeTheFence, afterTheFence, connected, whileClosing, closed} {
		t.Run(moment, func(t *testing.T) { rank0Dies(t, moment, 0) })
	}
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		after := time.Duration(rng.IntN(20_000)) * time.Microsecond
		t.Run(fmt.Sprintf("%s/%v", anyTime, after), func(t *testing.T) { rank0Dies(t, anyTime, after) })
	}
}

func rank0Dies(t *testing.T, moment string, after time.Duration) {
	// An address of this test alone: the port stays free until rank 0 has it.
	addr := fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	ln, err := launch.Listen(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	addr = ln.Addr().String()
	_ = ln.Close()
	secret := launch.NewSecret()
	var ranks []*process
	for r := range launcherRanks {
		ranks = append(ranks, startProcess(t, "served", append(launch.RankEnv("rank0@"+addr, r, launcherRanks, secret), envMode+"="+moment)))
	}
	output := make([][]string, launcherRanks)
	until := func(r int, want string) {
		for got := ""; got != want; {
			if got = ranks[r].line(); got == "" {
				t.Fatalf("rank %d printed %q and not %q, %v", r, output[r], want, ranks[r].log)
			}
			output[r] = append(output[r], got)
		}
	}
	for r := range ranks {
		until(r, "found")
	}
	if moment == anyTime {
		time.Sleep(after) // it is a moment in time: at some nothing moves
	} else {
		until(0, "here")
	}
	if moment == connected || moment == closed {
		for r := range ranks[1:] {
			until(1+r, "connected")
		}
	}
	ranks[0].kill()
	for r, p := range ranks[1:] {
		for s := p.line(); s != ""; s = p.line() {
			output[1+r] = append(output[1+r], s)
		}
		if err := p.Wait(); err != nil {
			t.Errorf("rank %d ends with %v: %q, %v", 1+r, err, output[1+r], p.log)
		}
		t.Logf("rank %d: %q", 1+r, output[1+r])
	}
	for r, s := range output[1:] {
		var want string
		switch moment {
		case beforeTheWord, beforeTheCard, beforeTheFence:
			want = "not joined"
		case connected, closed:
			want = "went on"
		default:
			continue // others are as far as they are
		}
		if !strings.Contains(strings.Join(s, "\n"), want) {
			t.Errorf("rank %d printed %q, and not %q", 1+r, s, want)
		}
	}
}
