//go:build linux

package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/attack"
	"github.com/bywash/bywash/session"
)

// randomWriterProgram is a peer that has the secret: it exchanges messages until all ways are mapped, and then
// writes what it likes into everything that it shares with the victim, while its messages go on.
func randomWriterProgram(in *json.Decoder, out *json.Encoder) error {
	var k task
	if err := in.Decode(&k); err != nil {
		return err
	}
	_, g, err := k.connect(out, nil)
	if err != nil {
		return err
	}
	w, err := newWorkload(g, k)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(k.Seed, 8))
	for range 1 + rng.IntN(5) {
		if err := w.round(context.Background()); err != nil {
			return err
		}
	}
	areas, err := sharedMemory(w.mem[0], w.mem[1])
	if err != nil {
		return err
	}
	if err := out.Encode(len(areas)); err != nil {
		return err
	}
	go func() {
		for {
			_ = w.round(context.Background()) // its own session may break at any moment
		}
	}()
	writeRandomly(areas, rng)
	return nil
}

// sharedMemory is all memory of this process that other processes have mapped, too, but what it lends for its own
// messages.
func sharedMemory(mine ...[]byte) (areas [][]byte, err error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var lo, hi uintptr
		var perm string
		if _, err := fmt.Sscanf(s.Text(), "%x-%x %s", &lo, &hi, &perm); err != nil || perm != "rw-s" || !strings.Contains(s.Text(), "memfd:") {
			continue
		}
		own := false
		for _, b := range mine {
			at := uintptr(unsafe.Pointer(&b[0]))
			own = own || lo <= at && at < hi
		}
		if own {
			continue
		}
		// A second mapping, which stays when its session, which finds out as the victim does, takes the first away.
		p, err := unix.MremapPtr(*(*unsafe.Pointer)(unsafe.Pointer(&lo)), 0, nil, hi-lo, unix.MREMAP_MAYMOVE)
		if err == nil { // else it has gone meanwhile
			areas = append(areas, unsafe.Slice((*byte)(p), hi-lo))
		}
	}
	return areas, nil
}

// writeRandomly writes until this process is killed. Each life has a style of its own, as what is found out at once hides
// the rest: one area or all, words anywhere or at the beginning of cache lines, new words or such that keep the upper
// bits of the old ones, which say what a word is.
func writeRandomly(areas [][]byte, rng *rand.Rand) {
	if rng.IntN(4) > 0 {
		k := rng.IntN(len(areas))
		for len(areas[k]) < 32<<10 && rng.IntN(4) > 0 { // a doorbell has little to say
			k = rng.IntN(len(areas))
		}
		areas = areas[k : k+1]
	}
	step, keep, front := []int{8, 64}[rng.IntN(2)], rng.IntN(3), rng.IntN(2) == 0
	for {
		b := areas[rng.IntN(len(areas))]
		at := rng.IntN(len(b))
		if front && rng.IntN(2) == 0 {
			at = rng.IntN(min(len(b), 8<<10))
		}
		at -= at % step
		for range []int{1, 1, 1, 8, 64}[rng.IntN(5)] {
			w := (*uint64)(unsafe.Pointer(&b[at]))
			old := atomic.LoadUint64(w)
			atomic.StoreUint64(w, odd(b, old, keep, rng))
			at = (at + step) % (len(b) &^ 63)
		}
		if rng.IntN(20) == 0 {
			time.Sleep(time.Duration(rng.IntN(100)) * time.Microsecond) // so that something makes sense for a while
		}
	}
}

// odd is a word to put in the place of an old one.
func odd(b []byte, old uint64, keep int, rng *rand.Rand) uint64 {
	if keep > 0 && rng.IntN(3) < keep {
		low := uint64(1)<<(1+rng.IntN(48)) - 1
		return old&^low | rng.Uint64()&low
	}
	elsewhere := *(*uint64)(unsafe.Pointer(&b[rng.IntN(len(b))&^7]))
	return []uint64{0, 1, ^uint64(0), 1 << 63, rng.Uint64(), uint64(rng.IntN(1 << 20)), old + 1, old << 8, elsewhere}[rng.IntN(9)]
}

// guarded is a buffer with canaries on each side.
type guarded struct {
	before, b, behind []byte
	arena             *driver.Arena
}

const canary = 0xa5

func guard(n int, arena bool) guarded {
	const margin = 8 << 10
	if arena { // its peer may write the whole of it: canaries there would be wrong
		a, err := driver.NewArena(n)
		if err != nil {
			panic(err)
		}
		return guarded{b: a.Bytes()[:n], arena: a}
	}
	all := bytes.Repeat([]byte{canary}, n+2*margin)
	return guarded{all[:margin], all[margin : margin+n : margin+n], all[margin+n:], nil}
}

// check reports whether the canaries were written to.
func (g *guarded) check() error {
	for _, b := range [][]byte{g.before, g.behind} {
		if bytes.Count(b, []byte{canary}) != len(b) {
			return fmt.Errorf("bytes beside a buffer of %d that was posted have changed: %#x", len(g.b), b)
		}
	}
	return nil
}

// A peer that writes whatever it likes into everything that it shares with us, over each way of shm: this process
// lives, writes nowhere but into what was posted for that peer, and exchanges messages with others; when the peer dies
// everything of it ends, and nothing of it is left.
func TestRandomWriter(t *testing.T) {
	for _, way := range []struct {
		path  string
		arena bool
	}{{"arena", true}, {"cma", false}, {"ring", false}} {
		t.Run(way.path, func(t *testing.T) {
			rng := attack.Seed(t)
			rails := []session.Rail{{Driver: "shm", Options: map[string]string{"dir": t.TempDir(), "path": way.path}}}
			v := newVictim(t, rails, rng, nil)
			fields := make([][]byte, 32) // never posted
			for i := range fields {
				fields[i] = bytes.Repeat([]byte{canary}, 16<<10)
			}
			secret, err := driver.NewArena(1 << 20) // never shown
			if err != nil {
				t.Fatal(err)
			}
			defer secret.Close()
			v.mark()
			rounds := 0
			for end := time.Now().Add(attack.Duration(t)); time.Now().Before(end) && !t.Failed(); rounds += 2 {
				var wg sync.WaitGroup
				for range 2 {
					k := rng.Uint64()
					wg.Go(func() { v.writtenRandomly(rails, way.arena, rand.New(rand.NewPCG(k, 14))) })
				}
				wg.Wait()
				for i := range fields {
					if bytes.Count(fields[i], []byte{canary}) != len(fields[i]) {
						t.Fatalf("memory that was never posted has changed: %#x", fields[i])
					}
				}
				for i, c := range secret.Bytes() {
					if c != 0 {
						t.Fatalf("byte %d of an arena that no peer was shown is %#x", i, c)
					}
				}
			}
			t.Logf("%d writers", rounds)
			v.close()
		})
	}
}

// writtenRandomly lets one random writer live and die beside the honest peer.
func (v *victim) writtenRandomly(rails []session.Rail, arena bool, rng *rand.Rand) {
	t := v.tb
	k := task{Rails: rails, Card: v.s.Card(), Seed: rng.Uint64(), Mine: 1, Arena: arena}
	p := attack.Start(t, "random writer", k)
	defer p.Kill()
	g := v.connect(p)
	k.Mine = 0
	w, err := newWorkload(g, task{Seed: k.Seed})
	if err != nil {
		t.Fatal(err)
	}
	in, out := guard(longest, arena), guard(longest, arena)
	w.mem = [2][]byte{out.b, in.b}
	ctx, cancel := context.WithTimeout(context.Background(), attack.MaxWait)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.run(ctx, 0) }()
	var areas int
	p.Receive(&areas)
	if areas == 0 {
		t.Fatal("the attacker shares nothing with the victim: nothing is tested")
	}
	time.Sleep(time.Duration(20+rng.IntN(80)) * time.Millisecond) // the attack
	v.goesOn("beside the random writer")
	p.Kill()
	cancel()
	select {
	case err := <-done:
		if err != nil && !strings.Contains(err.Error(), errWrong.Error()) { // data of a hostile peer may be wrong
			ended(t, "what was under way with the random writer", err)
		}
	case <-time.After(attack.MaxWait):
		t.Fatalf("what was under way with a dead peer has not ended within %v", attack.MaxWait)
	}
	for _, b := range []guarded{in, out} {
		if err := b.check(); err != nil {
			t.Error(err)
		}
	}
	if err := g.Forget(); err != nil {
		t.Error(err)
	}
	for _, b := range []guarded{in, out} {
		if b.arena != nil { // nobody else is in it
			attack.Await(t, "an arena of a dead peer's messages can be closed", func() bool { return b.arena.Close() == nil })
		}
	}
}
