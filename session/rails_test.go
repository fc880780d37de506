package session_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
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
	rounds := 30
	if testing.Short() {
		rounds = 6
	}
	rng := rand.New(rand.NewPCG(seed(t), 2))
	for i := range rounds {
		l := railLoss{who: i % 2, rail: i / 2 % 2, moment: rng.Uint64N(lossMessages * lossSize)}
		if !t.Run(fmt.Sprintf("%d", i), func(t *testing.T) { l.run(t, joinAll(t, 2, twoRails), lossMessages, 5000) }) {
			t.Fatalf("%+v", l)
		}
	}
}

const lossMessages, lossSize = 12, 6 << 20

// railLoss is who loses which rail after how many bytes have come to rank 1.
type railLoss struct {
	who, rail int
	moment    uint64
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
	wg.Go(func() {
		for start := received(s[1]); received(s[1])-start < l.moment && ctx.Err() == nil; {
			runtime.Gosched()
		}
		s[l.who].CloseRail(l.rail)
	})
	for from := range s { // both ways
		wg.Go(func() { sendShorts(t, s[from], 1-from, shorts) })
		wg.Go(func() { receiveShorts(t, s[from], 1-from, shorts) })
	}
	for k := range messages {
		dst := make([]byte, lossSize)
		got, err := s[1].Gate(0).Recv(ctx, uint64(k), dst)
		if err != nil || !bytes.Equal(dst[:got], src[k:]) {
			t.Fatalf("message %d: %d bytes, %v, equal %v", k, got, err, bytes.Equal(dst[:got], src[k:]))
		}
	}
	wg.Wait()
	transfer(t, s[1], s[0], 3<<20)
}

// sendShorts sends messages whose order tells whether one was lost or came twice: some are
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
