//go:build linux

package hostile

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/attack"
	"github.com/bywash/bywash/session"
)

// flood is a message of the session's protocol that costs the receiver something, and whose answers the sender does not
// take.
type flood struct {
	name string
	make func(n uint64, region uint64, rng *rand.Rand) []byte
	lazy bool // the victim leaves it unexpected
}

// floods are all kinds of messages that a session handles. The first ones once took memory without limit.
var floods = []flood{
	{"RTR for an unknown message", func(n, _ uint64, _ *rand.Rand) []byte {
		const length, want = 1, 1
		return message(header{kind: msgRTR, tag: 1<<40 | n}, 0, n, 0, length, want)
	}, false},
	{"active message too long", func(n, _ uint64, _ *rand.Rand) []byte { return rtsOf(1<<32|n, 1<<40, flagActive) }, false},
	{"synchronous message", func(n, _ uint64, _ *rand.Rand) []byte { return message(header{kind: msgSync, tag: 3}, 8, n) }, false},
	{"rendezvous of no bytes", func(n, _ uint64, _ *rand.Rand) []byte { return rtsOf(1<<32|n, 0, 0) }, false},
	{"unexpected message of no bytes", func(_, _ uint64, _ *rand.Rand) []byte { return message(header{kind: msgEager, tag: 4}, 0) }, true},
	{"everything", anything, false},
	{"unexpected message", func(_, _ uint64, rng *rand.Rand) []byte {
		return message(header{kind: msgEager, tag: 4}, rng.IntN(4000))
	}, true},
	{"unexpected long message", func(n, _ uint64, _ *rand.Rand) []byte { return rtsOf(1<<32|n, 1<<30, 0) }, true},
	{"long active message", func(n, _ uint64, _ *rand.Rand) []byte { return rtsOf(1<<32|n, 100_000, flagActive) }, false},
	{"active message", func(_, _ uint64, rng *rand.Rand) []byte { return message(header{kind: msgAM, tag: 3}, rng.IntN(200)) }, false},
	{"get by message", func(n, region uint64, _ *rand.Rand) []byte { return opOf(n, region, 1, 4000, 0) }, false},
	{"put by message", func(n, region uint64, _ *rand.Rand) []byte { return opOf(n, region, 0, 100, 100) }, false},
	{"operation on an unknown region", func(n, region uint64, rng *rand.Rand) []byte {
		return opOf(n, region+99, uint8(rng.IntN(10)), 8, 0)
	}, false},
	{"hello", func(_, _ uint64, _ *rand.Rand) []byte {
		return message(header{kind: msgHello, extra: layoutVersion}, 28)
	}, false},
	{"grant", func(n, _ uint64, rng *rand.Rand) []byte { return grantOf(rng.Uint64()>>2, n, 1024+n%9000) }, false},
	{"pause", func(_, _ uint64, _ *rand.Rand) []byte { return message(header{kind: msgPause}, 0) }, false},
	{"leave", func(_, _ uint64, _ *rand.Rand) []byte { return message(header{kind: msgLeave}, 0) }, false},
}

// anything is a message of a random kind, whose parts make some sense.
func anything(n, region uint64, rng *rand.Rand) []byte {
	h := header{kind: uint8(2 + rng.IntN(17)), tag: 1<<32 | n%7, flags: uint8(rng.IntN(4))}
	for h.kind == msgBye || h.kind == msgLeave || h.kind == msgPause || h.kind == msgResume || h.kind == msgSeen {
		h.kind = uint8(2 + rng.IntN(17)) // they end the connection
	}
	switch h.kind {
	case msgRTS:
		return rtsOf(1<<32|n, uint64(rng.IntN(1<<rng.IntN(40))), h.flags)
	case msgOp:
		return opOf(n, region, 1, uint32(rng.IntN(4000)), 0) // an invalid operation would end the flood
	case msgSync:
		return message(h, 0, n)
	case msgEager, msgAM:
		h.tag = 3
		return message(h, rng.IntN(2000))
	case msgGrant:
		return grantOf(n, n, 1024)
	}
	return message(h, 0)
}

// flooderProgram connects, takes the connection from its session, and sends one kind of message as fast as it can.
func flooderProgram(in *json.Decoder, out *json.Encoder) error {
	var k task
	if err := in.Decode(&k); err != nil {
		return err
	}
	w, err := registerHijack()
	if err != nil {
		return err
	}
	s, err := join(k.Rails, nil)
	if err != nil {
		return err
	}
	if err := out.Encode(rename(s.Card(), hijackName, trueName)); err != nil {
		return err
	}
	g, err := s.Connect(context.Background(), rename(k.Card, trueName, hijackName))
	if err != nil {
		return err
	}
	key := make([]byte, 1000)
	n, err := g.Recv(context.Background(), 1, key)
	if err != nil {
		return err
	}
	region := binary.LittleEndian.Uint64(key[:n][4:])
	var f flood
	for _, f = range floods {
		if f.name == k.Kind {
			break
		}
	}
	raw := w.cut()
	time.Sleep(20 * time.Millisecond) // its session is cut off
	var sent uint64
	err = pour(raw, f, region, rand.New(rand.NewPCG(k.Seed, 9)), &sent, func() { _ = out.Encode(sent) })
	_ = out.Encode(sent)
	if err != nil {
		_ = out.Encode(err.Error()) // the victim has ended the connection
	}
	select {}
}

// pour sends until the connection ends, and says how far it is.
func pour(raw driver.Instance, f flood, region uint64, rng *rand.Rand, sent *uint64, say func()) error {
	packets := make([]driver.Packet, 32)
	posted := make([]bool, len(packets))
	for next := time.Now(); ; runtime.Gosched() {
		for i := range packets {
			p := &packets[i]
			if posted[i] {
				done, err := raw.SendPoll(p)
				if err != nil {
					return err
				}
				if posted[i] = !done; !done {
					continue
				}
			}
			p.IOV = [][]byte{f.make(*sent, region, rng)}
			switch err := raw.SendPost(p); err {
			case nil:
				posted[i] = true
				*sent++
			case driver.ErrBusy:
			default:
				return err
			}
		}
		if *sent > 0 && time.Now().After(next) {
			next = time.Now().Add(50 * time.Millisecond)
			say()
		}
	}
}

// A peer that sends one kind of message after the other, as fast as it can, and takes no answer, costs this process no
// more than bounds that do not depend on how long it goes on; others are served meanwhile; and when it is gone nothing
// is left.
func TestFlooder(t *testing.T) {
	kinds, each := floods, attack.Duration(t)
	if each <= attack.Brief {
		kinds, each = floods[:6], each*2/3
	} else {
		each /= time.Duration(len(floods))
	}
	for _, f := range kinds {
		t.Run(f.name, func(t *testing.T) {
			rng := attack.Seed(t)
			rails := []session.Rail{{Driver: trueName, Options: map[string]string{"dir": t.TempDir()}}}
			v := newVictim(t, rails, rng, func(c *session.Config) { c.Unexpected = 1 << 20 })
			v.s.Handle(3, func(g *session.Gate, _ *session.Active) { _ = g.AMNow(9, nil, []byte("an answer")) })
			v.flooded(f, rails[0].Options, each, rng)
			v.close()
		})
	}
}

// flooded is the life of one flooder.
func (v *victim) flooded(f flood, options map[string]string, each time.Duration, rng *rand.Rand) {
	t := v.tb
	r, err := v.s.Register(make([]byte, 4096), driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	v.mark()
	p := attack.Start(t, "flooder", task{
		Rails: []session.Rail{{Driver: hijackName, Options: options}}, Card: rename(v.s.Card(), trueName, trueName), Seed: rng.Uint64(), Kind: f.name,
	})
	defer p.Kill()
	g := v.connect(p)
	if err := g.Send(attack.Soon(t), 1, r.Key()); err != nil {
		t.Fatal(err)
	}
	over, stop := context.WithCancel(context.Background())
	taken := make(chan error, 1)
	go func() { taken <- takeAll(over, g, f.lazy) }()
	before := attack.Settled()
	var sent uint64
	p.Receive(&sent)
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		for p.Out.Decode(&sent) == nil {
		}
	}()
	most := attack.Peak(func() {
		time.Sleep(each)
		v.goesOn("beside the flood")
	})
	most.Within(t, before, attack.Holdings{Heap: 32, Goroutines: 8, FDs: 4, Threads: 16})
	_ = p.Cmd.Process.Kill()
	<-printed
	p.Kill()
	stop()
	if err := <-taken; err != nil && !strings.Contains(err.Error(), "canceled") {
		ended(t, "receiving from the flooder", err)
		t.Logf("the gate ended: %v", err)
	}
	t.Logf("%d messages; at most %+v, before it %+v", sent, most, before)
	if sent == 0 {
		t.Error("the flooder has sent nothing")
	}
	if err := g.Forget(); err != nil {
		t.Error(err)
	}
	if err := r.Deregister(); err != nil {
		t.Error(fmt.Errorf("deregister: %w", err))
	}
}

// takeAll receives what comes from a gate; with lazy only what never comes.
func takeAll(ctx context.Context, g *session.Gate, lazy bool) error {
	m := session.Match{From: g, Tag: 3}
	if lazy {
		m.Tag = 99
	}
	b := make([]byte, 64<<10)
	for {
		if _, err := g.Session().Recv(ctx, m, b); err != nil {
			return err
		}
	}
}
