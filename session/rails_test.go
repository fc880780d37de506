//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/rdv"
)

func twoRails(_ int, c *session.Config) {
	c.Rails = []session.Rail{{Driver: "shm"}, {Driver: "shm", Options: map[string]string{"path": "cma"}}}
}

func TestLongMessagesShareTheirRails(t *testing.T) {
	s := joinAll(t, 2, twoRails)
	for _, n := range append(sizes, 40<<20) {
		transfer(t, s[0], s[1], n)
		transfer(t, s[1], s[0], n)
	}
	if got := s[0].Gate(1).Explain(); len(got) != 2 || !got[0].Taken || !got[1].Taken {
		t.Errorf("rails: %+v", got)
	}
	if n := received(s[0]); n < 40<<20 {
		t.Errorf("counted %d bytes", n)
	}
	transfer(t, s[0], s[0], 5<<20)
}

// received is how many bytes have come to a rank.
func received(s *session.Session) uint64 {
	var c driver.Counters
	s.Counters(&c)
	return c.BytesReceived
}

// Either rail is lost in the middle of long and short messages, at either end: they come over
// the other, once, whole and in order, and so do later ones.
func TestMessagesGoOnWhenARailIsLost(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed(t), 2))
	for _, tt := range []struct {
		name   string
		mode   *rdv.Mode
		rails  func(int, *session.Config)
		rounds int
	}{
		{"auto", nil, twoRails, 30},
		{"put", modeOf(int(rdv.Put)), twoRails, 8},
		{"get", modeOf(int(rdv.Get)), twoRails, 8},
		{"get in chunks", modeOf(int(rdv.Get)), func(rank int, c *session.Config) { twoRails(rank, c); c.Chunk = 256 << 10 }, 8},
		{"get, then by messages", modeOf(int(rdv.Get)), shortRail, 4},
	} {
		switch {
		case testing.Short():
			tt.rounds = max(1, tt.rounds/10)
		case os.Getenv("BYWASH_SOAK") == "": // either rail at either end; each is another moment
			tt.rounds = max(4, tt.rounds/3)
		}
		t.Run(tt.name, func(t *testing.T) { railsLost(t, tt.mode, tt.rails, tt.rounds, rng) })
	}
}

// A driver like shm without a large track.
type shortDriver struct{ driver.Driver }

func (shortDriver) Name() string { return "short" }

func (d shortDriver) Query(h driver.Hints) (driver.NIC, error) {
	if h.Track == driver.Large {
		return nil, driver.ErrUnsupported
	}
	return d.Driver.Query(h)
}

var registerShort = sync.OnceFunc(func() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(shortDriver{d})
})

// shortRail is a rail with a large track, and one without.
func shortRail(_ int, c *session.Config) {
	registerShort()
	c.Rails = []session.Rail{{Driver: "shm"}, {Driver: "short"}}
}

// railsLost has a rail be lost at either end, again and again.
func railsLost(t *testing.T, mode *rdv.Mode, rails func(int, *session.Config), rounds int, rng *rand.Rand) {
	for i := range rounds {
		// In the modes that are one-sided drivers count no bytes: after so many messages, and some time.
		l := railLoss{rank: i % 2, rail: i / 2 % 2, moment: rng.Uint64N(lossMessages * lossSize)}
		if mode != nil {
			l.after, l.later = 1+rng.Int32N(lossMessages-1), time.Duration(rng.IntN(3000))*time.Microsecond
		}
		if !t.Run(fmt.Sprintf("%d", i), func(t *testing.T) {
			l.run(t, joinAll(t, 2, func(rank int, c *session.Config) { rails(rank, c); c.Mode = mode }), lossMessages, 5000)
		}) {
			t.Fatalf("%+v", l)
		}
	}
}

const lossMessages = 12

// railLoss is which rank loses which rail after how many bytes have arrived at rank 1; or, if after is not 0, some
// time after so many messages.
type railLoss struct {
	rank, rail int
	moment     uint64
	after      int32
	later      time.Duration
}

// reached returns a function that reports whether it is time for the loss.
func (l railLoss) reached(s *session.Session, came *atomic.Int32) func() bool {
	if l.after == 0 {
		start := received(s)
		return func() bool { return received(s)-start >= l.moment }
	}
	var since time.Time
	return func() bool {
		if since.IsZero() && came.Load() >= l.after {
			since = time.Now()
		}
		return !since.IsZero() && time.Since(since) >= l.later
	}
}

// run has long messages under way from rank 0 to 1, and short ones both ways, when the rail is lost.
func (l railLoss) run(t *testing.T, s []*session.Session, messages, shorts int) {
	ctx := deadline(t)
	stuck := time.AfterFunc(testTime+5*time.Second, func() {
		for _, x := range s {
			_ = x.Dump(os.Stderr)
		}
	})
	defer stuck.Stop()
	transfer(t, s[0], s[1], 1000)
	src := pattern(lossSize, 6)
	var wg sync.WaitGroup
	wg.Go(func() {
		for k := range messages {
			if err := s[0].Gate(1).Send(ctx, uint64(k), src[k:]); err != nil {
				t.Errorf("send %d: %v", k, err)
				return
			}
		}
	})
	var came atomic.Int32
	reached := l.reached(s[1], &came)
	wg.Go(func() {
		for !reached() && ctx.Err() == nil {
			runtime.Gosched()
		}
		s[l.rank].CloseRail(l.rail)
	})
	for from := range s { // both ways
		wg.Go(func() { sendShorts(t, s[from], 1-from, shorts) })
		wg.Go(func() { receiveShorts(t, s[from], 1-from, shorts) })
	}
	for k := range messages {
		dst := make([]byte, lossSize)
		got, err := s[1].Gate(0).Recv(ctx, uint64(k), dst)
		came.Add(1)
		if err != nil || !bytes.Equal(dst[:got], src[k:]) {
			t.Fatalf("message %d: %d bytes, %v, equal %v", k, got, err, bytes.Equal(dst[:got], src[k:]))
		}
	}
	wg.Wait()
	transfer(t, s[1], s[0], 3<<20)
}

// sendShorts sends messages whose order reports whether one was lost or came twice: some are
// copied, some are not, some want to be acknowledged.
func sendShorts(t *testing.T, s *session.Session, to, n int) {
	ctx, g := deadline(t), s.Gate(to)
	b := make([]byte, 3000)
	for k := range n {
		binary.LittleEndian.PutUint32(b, uint32(k))
		o := session.Out{Tag: shortTag, Buf: b[:4+k*7%2900], Sync: k%50 == 0}
		if err := g.SendMsg(ctx, &o); err != nil {
			t.Errorf("short message %d: %v", k, err)
			return
		}
	}
}

const shortTag = 1 << 40

func receiveShorts(t *testing.T, s *session.Session, from, count int) {
	ctx, g := deadline(t), s.Gate(from)
	b := make([]byte, 3000)
	for k := range count {
		n, err := g.Recv(ctx, shortTag, b)
		if err != nil {
			t.Errorf("short message %d: %v", k, err)
			return
		}
		if got := binary.LittleEndian.Uint32(b); got != uint32(k) || n != 4+k*7%2900 {
			t.Errorf("message %d of %d bytes came, want %d", got, n, k)
			return
		}
	}
}

// A put whose rail is lost is not repeated over another one before the peer has marked that rail as lost: the first
// put might still arrive there and overwrite newer data.
func TestPutIsRepeatedAfterRailLoss(t *testing.T) {
	s := joinAll(t, 2, func(rank int, c *session.Config) {
		twoRails(rank, c)
		c.Progress = session.Explicit // the peer gives up nothing before this test lets it
	})
	ctx := deadline(t)
	arena, err := driver.NewArena(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	region, err := s[1].Register(arena.Bytes(), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	g := s[0].Gate(1)
	r, err := g.Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s[1].Gate(0).Send(ctx, 1, []byte{1}); err != nil { // and its hello: the rails' numbers are known
			t.Error(err)
		}
	})
	if _, err := g.Recv(ctx, 1, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := g.Put(ctx, r, 0, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if got := arena.Bytes()[0]; got != 1 {
		t.Fatalf("the first put has put %d", got)
	}
	goOn := s[1].Stop() // also its background, which may not have noticed yet that no caller sleeps any more
	s[0].CloseRail(0)
	put, err := g.Iput(r, 0, []byte{2})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		s[0].Progress()
	}
	if got := arena.Bytes()[0]; got != 1 {
		t.Errorf("it is repeated before the peer knows of the loss: %d", got)
	}
	goOn()
	var stop atomic.Bool
	wg.Go(func() {
		for !stop.Load() {
			s[1].Progress()
			runtime.Gosched()
		}
	})
	if _, err := put.Wait(ctx); err != nil {
		t.Error(err)
	}
	stop.Store(true)
	wg.Wait()
	if got := arena.Bytes()[0]; got != 2 {
		t.Errorf("the repeated put has put %d", got)
	}
}
