//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// The program of a process that tests start as a rank: a name of rankPrograms.
const envProgram = "BYWASH_TEST_PROGRAM"

// TestMain lets the test binary be a rank.
func TestMain(m *testing.M) {
	if p := os.Getenv(envProgram); p != "" {
		os.Exit(rankMain(p))
	}
	os.Exit(m.Run())
}

var rankPrograms = map[string]func(context.Context) error{
	"exchange": exchangeProgram,
	"hang":     hangProgram,
	"die":      crashProgram,
	"abort":    abortProgram,
	"abort0":   abort0Program,
	"twice":    twiceProgram,
	"barrier":  barrierProgram,
	"find":     findProgram,
	"agree":    agreeProgram,
}

func init() { rankPrograms["launcher"] = launcherProgram }

// launcherProgram starts ranks as bywash run does, with the least it takes.
func launcherProgram(ctx context.Context) error {
	n, secret := envInt("BYWASH_TEST_RANKS", 1), NewSecret()
	ln, err := Listen(ctx, "")
	if err != nil {
		return err
	}
	s := Serve(ln, n, secret)
	codes := make(chan int, n)
	for r := range n {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), envProgram+"="+os.Getenv("BYWASH_TEST_RANK_PROGRAM"))
		cmd.Env = append(cmd.Env, RankEnv(s.Addr(), r, n, secret)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() {
			cmd.Wait()
			s.Ended(End{Rank: r, How: Lost})
			codes <- cmd.ProcessState.ExitCode()
		}()
	}
	bad := 0
	for range n {
		if c := <-codes; bad == 0 {
			bad = c
		}
	}
	select {
	case a := <-s.Aborted():
		bad = a.Code
	default:
	}
	if os.Getenv("BYWASH_TEST_TOTAL") != "" {
		t := s.Traffic()
		fmt.Printf("total %d %d\n", t.Sent, t.Received)
	}
	s.Close()
	if bad != 0 {
		os.Exit(bad)
	}
	return nil
}

func rankMain(name string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := rankPrograms[name](ctx); err != nil {
		fmt.Printf("failed: %v\n", err)
		return 7
	}
	return 0
}

func envInt(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// card is what a rank of a job publishes: other bytes for other ranks, jobs and sizes.
func card(id string, rank, size int) []byte {
	seed := sha256.Sum256(binary.BigEndian.AppendUint32([]byte(id), uint32(rank)))
	return bytes.Repeat(seed[:], (size+len(seed)-1)/len(seed))[:size]
}

// exchange publishes a card, fences, and looks up the ranks after this one: as many as peers.
func exchange(ctx context.Context, j Job, cardSize, peers int) error {
	if err := j.Publish(ctx, card(j.ID(), j.Rank(), cardSize)); err != nil {
		return err
	}
	if err := j.Fence(ctx); err != nil {
		return err
	}
	for i := range peers {
		r := (j.Rank() + 1 + i) % j.Size()
		c, err := j.Lookup(ctx, r)
		if err != nil {
			return err
		}
		if !bytes.Equal(c, card(j.ID(), r, cardSize)) {
			return fmt.Errorf("card of rank %d differs: %d bytes", r, len(c))
		}
	}
	return nil
}

func exchangeProgram(ctx context.Context) error {
	j, err := Find(ctx)
	if err != nil {
		return err
	}
	if same, err := j.Agree(ctx, make([]byte, scaleWord)); err != nil {
		return fmt.Errorf("agree: %w", err)
	} else if !same {
		return errors.New("the ranks of one host did not agree on one word")
	}
	if err := exchange(ctx, j, envInt("BYWASH_TEST_CARD", 300), min(envInt("BYWASH_TEST_PEERS", j.Size()), j.Size())); err != nil {
		return err
	}
	t := j.Traffic()
	fmt.Printf("ok %s %d %d %s %d %d %d\n", j.Name(), j.Rank(), j.Size(), j.ID(), t.Sent, t.Received, t.Requests)
	return j.Close()
}

// hangProgram joins, reports that, and waits for a fence that rank 0 never enters. Rank 0 only watches.
func hangProgram(ctx context.Context) error {
	j, err := Find(ctx)
	if err != nil {
		return err
	}
	if err := j.Publish(ctx, []byte("card")); err != nil {
		return err
	}
	fmt.Printf("joined %d %d %d\n", j.Rank(), os.Getpid(), os.Getppid())
	if j.Rank() == 0 {
		select {
		case <-j.Lost():
		case <-ctx.Done():
		}
		return j.Err()
	}
	return j.Fence(ctx)
}

// crashProgram exits, as rank 1, without closing before the fence.
func crashProgram(ctx context.Context) error {
	j, err := Find(ctx)
	if err != nil {
		return err
	}
	if j.Rank() == 1 {
		os.Exit(3)
	}
	return withoutRank1(ctx, j)
}

// withoutRank1 checks that a rank fails without rank 1: in the fence or, if the launcher leaves dead ranks out of it,
// in the look-up.
func withoutRank1(ctx context.Context, j Job) error {
	if err := j.Publish(ctx, []byte("card")); err != nil {
		return err
	}
	if err := j.Fence(ctx); err != nil {
		return err
	}
	if _, err := j.Lookup(ctx, 1); err != nil {
		return err
	}
	fmt.Println("found a dead rank")
	return nil
}

func abortProgram(ctx context.Context) error {
	j, err := Find(ctx)
	if err != nil {
		return err
	}
	if j.Rank() == 1 {
		j.Abort(42, "had enough")
		os.Exit(42)
	}
	return withoutRank1(ctx, j)
}

func abort0Program(ctx context.Context) error {
	j, err := Find(ctx)
	if err != nil {
		return err
	}
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	j.Abort(42, "had enough")
	os.Exit(42)
	return nil
}

// barrierProgram: rank 0 enters the fence late, and makes a file right before. The others must find it. Then all ranks
// exchange data, twice.
func barrierProgram(ctx context.Context) error {
	file := os.Getenv("BYWASH_TEST_FILE")
	j, err := Find(ctx)
	if err != nil {
		return err
	}
	if err := j.Publish(ctx, []byte("card")); err != nil {
		return err
	}
	for i := range 3 {
		name := file + strconv.Itoa(i)
		if j.Rank() == 0 {
			time.Sleep(20 * time.Millisecond) // so that a fence that does not wait is noticed
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				return err
			}
		}
		if err := j.Fence(ctx); err != nil {
			return err
		}
		if _, err := os.Stat(name); err != nil {
			return err
		}
	}
	for _, size := range []int{0, 3000} {
		given, err := j.Exchange(ctx, card("data", j.Rank(), size))
		if err != nil {
			return err
		}
		for r := range j.Size() {
			if !bytes.Equal(given[r], card("data", r, size)) {
				return fmt.Errorf("rank %d gave %d bytes, want %d of its own", r, len(given[r]), size)
			}
		}
	}
	fmt.Println("ok")
	return j.Close()
}

// twiceProgram joins again after it has joined, which must fail and leave the first intact.
func twiceProgram(ctx context.Context) error {
	j, err := Find(ctx)
	if err != nil {
		return err
	}
	if again, err := Find(ctx); !errors.Is(err, ErrInvalid) {
		return fmt.Errorf("second Find: %v, %v", again, err)
	}
	if err := exchange(ctx, j, 10, j.Size()); err != nil {
		return err
	}
	fmt.Println("ok")
	return j.Close()
}

func findProgram(ctx context.Context) error {
	j, err := Find(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("found %s %d %d\n", j.Name(), j.Rank(), j.Size())
	return j.Close()
}

// agreeProgram calls Agree with the same word in all ranks, unless the environment names a rank that has another word,
// or dies first.
func agreeProgram(ctx context.Context) error {
	j, err := Find(ctx)
	if err != nil {
		return err
	}
	word := []byte("word")
	switch j.Rank() {
	case envInt("BYWASH_TEST_DIFFERS", -1):
		word = []byte("another")
	case envInt("BYWASH_TEST_DIES", -1):
		os.Exit(3)
	}
	same, err := j.Agree(ctx, word)
	if err != nil {
		return err
	}
	fmt.Printf("agreed %v\n", same)
	if err := exchange(ctx, j, 100, j.Size()); err != nil {
		return err
	}
	return j.Close()
}
