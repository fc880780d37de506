//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// envFlood names the flood that floodingRank sends.
const envFlood = "BYWASH_SESSION_TEST_FLOOD"

// flood is one kind of message that a peer which reads nothing sends as fast as it can.
type flood struct {
	name string
	next func(k uint64, region uint64) []byte // message number k
	// serve is called again and again for the victim's program during the flood.
	serve func(t *testing.T, v *victim)
	ends  bool // the gate ends with session.ErrLimit; otherwise the session stays within its bounds without that
}

// victim is the session that is flooded.
type victim struct {
	s      *session.Session
	g      *session.Gate
	posted int
}

// receives keeps n receives of any message of the peer posted.
func receives(n int) func(*testing.T, *victim) {
	return func(t *testing.T, v *victim) {
		for v.s.Posted() < n && v.g.Path() != "broken" {
			in := session.In{Match: session.Match{From: v.g, Ignore: ^uint64(0)}, Buf: make([]byte, 16), Then: func(session.Status, error) {}}
			if _, err := v.s.IrecvMsg(&in); err != nil {
				t.Fatal(err)
			}
			v.posted++
		}
	}
}

// longLength is that of a message by rendezvous.
const longLength = 100_000

// sendTen sends ten long messages, once.
func sendTen(t *testing.T, v *victim) {
	for ; v.posted < 10; v.posted++ {
		if _, err := v.g.Isend(5, make([]byte, longLength)); err != nil {
			t.Fatal(err)
		}
	}
}

func operation(what uint8) func(k, region uint64) []byte {
	return func(k, region uint64) []byte {
		return forged(header.Op, 0, func(b []byte) {
			o := header.Operation{ID: k + 1, Region: region, What: what, Size: 8, Length: 8}
			if what == 0 || what > 1 {
				o.Length = 0
			}
			o.Put(b)
		})
	}
}

func sublayout(kind header.Kind, p header.Part) func(k, region uint64) []byte {
	return func(k, _ uint64) []byte {
		return forged(kind, firstID+k%3, func(b []byte) { p.Put(b) })
	}
}

// floods are all kinds of messages.
var floods = []flood{
	{name: "rtr of nothing", ends: true, next: func(k, _ uint64) []byte {
		return forged(header.RTR, 1<<40+k, func(b []byte) { (&header.Ready{ID: k}).Put(b) })
	}},
	{name: "rtr of a message", ends: true, serve: sendTen, next: func(k, _ uint64) []byte {
		b := forged(header.RTR, firstID+k%10, func(b []byte) {
			(&header.Ready{ID: 1, Want: longLength, Length: longLength, Chunk: uint32(k / 10), Mode: uint8(rdv.Null)}).Put(b)
		})
		h := header.Header{Kind: header.RTR, Tag: firstID + k%10, Length: 900}
		h.Put(b)
		return append(b, make([]byte, 900)...)
	}},
	{name: "long active message", ends: true, next: func(k, _ uint64) []byte {
		b := forged(header.RTS, 1, func(b []byte) { (&header.Request{ID: k, Total: 1 << 40}).Put(b) })
		b[1] = 1 << 1 // active
		return b
	}},
	{name: "sync", ends: true, serve: receives(1000), next: func(k, _ uint64) []byte {
		return forged(header.Sync, k, func(b []byte) { binary.LittleEndian.PutUint64(b, k) })
	}},
	{name: "rts of no bytes", ends: true, serve: receives(1000), next: func(k, _ uint64) []byte {
		return forged(header.RTS, k, func(b []byte) { (&header.Request{ID: k}).Put(b) })
	}},
	{name: "rts", ends: true, serve: receives(1000), next: func(k, _ uint64) []byte {
		return forged(header.RTS, k, func(b []byte) { (&header.Request{ID: k, Total: 16, Modes: 1}).Put(b) })
	}},
	{name: "rts beyond all memory", ends: true, next: func(k, _ uint64) []byte {
		return forged(header.RTS, k, func(b []byte) { (&header.Request{ID: k, Total: 1 << 60, Modes: 1}).Put(b) })
	}},
	{name: "rts and withdrawal", ends: true, serve: receives(10), next: func(k, _ uint64) []byte {
		if k%2 == 0 {
			return forged(header.RTS, k, func(b []byte) { (&header.Request{ID: k, Total: 16, Modes: 1}).Put(b) })
		}
		return forged(header.Done, k-1, func(b []byte) { (&header.Part{Status: 2, All: true}).Put(b) })
	}},
	{name: "empty eager", ends: true, next: func(k, _ uint64) []byte { return forged(header.Eager, k, nil) }},
	{name: "unexpected sync", ends: true, next: func(k, _ uint64) []byte {
		return forged(header.Sync, k, func(b []byte) { binary.LittleEndian.PutUint64(b, k) })
	}},
	{name: "unexpected rts", ends: true, next: func(k, _ uint64) []byte {
		return forged(header.RTS, k, func(b []byte) { (&header.Request{ID: k, Total: 16, Modes: 1}).Put(b) })
	}},
	{name: "put", ends: true, next: operation(0)},
	{name: "get", ends: true, next: operation(1)},
	{name: "atomic", ends: true, next: operation(2)},
	{name: "op of no region", ends: true, next: func(k, _ uint64) []byte { return operation(1)(k, 1) }},
	{name: "ack", next: func(k, _ uint64) []byte { return forged(header.Ack, 1<<40+k, nil) }},
	{name: "reply", next: func(k, _ uint64) []byte { return forged(header.Reply, 1<<40+k, nil) }},
	{name: "frag", next: func(k, _ uint64) []byte { return forged(header.Frag, 1<<40+k, nil) }},
	{name: "cookie", next: sublayout(header.Cookie, header.Part{ToSender: true})},
	{name: "done", next: sublayout(header.Done, header.Part{ToSender: true, All: true})},
	{name: "done of a chunk", next: sublayout(header.Done, header.Part{})},
	{name: "withdrawal", next: sublayout(header.Done, header.Part{Status: 2, All: true})},
	{name: "active message", next: func(k, _ uint64) []byte { return forged(header.AM, k%256, nil) }},
	{name: "leave soon", next: func(_, _ uint64) []byte {
		b := forged(header.Leave, 0, nil)
		b[1] = 1
		return b
	}},
	{name: "pause", next: func(_, _ uint64) []byte { return forged(header.Pause, 0, nil) }},
	{name: "bye", next: func(_, _ uint64) []byte { return forged(header.Bye, 0, nil) }},
	{name: "leave", next: func(_, _ uint64) []byte { return forged(header.Leave, 0, nil) }},
}

// floodingRank floods rank 0, and receives nothing.
func floodingRank(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	defer cancel()
	s, err := session.Join(ctx, session.Config{
		Job: &folder{dir, 1, 3}, Rails: []session.Rail{{Driver: "shm"}}, Progress: session.Explicit,
	})
	if err != nil {
		return err
	}
	g := s.Gate(0)
	if err := g.Send(ctx, 1, nil); err != nil {
		return err
	}
	key := make([]byte, 8)
	if _, err := g.Recv(ctx, 1, key); err != nil {
		return err
	}
	region := binary.LittleEndian.Uint64(key)
	for _, f := range floods {
		for k := uint64(0); f.name == os.Getenv(envFlood) && ctx.Err() == nil; k++ {
			for b := f.next(k, region); !g.PostUnpaid(b); {
				if g.Path() == "broken" {
					return nil
				}
				runtime.Gosched()
			}
		}
	}
	return ctx.Err()
}

// heapNow is how many bytes of the heap are in use.
func heapNow() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// flooded joins a job of three: the victim in this process, the flooding peer in another process, and a third rank
// that must be served.
func flooded(t *testing.T, f *flood, cfg session.Config) (v *victim, other *session.Session, begin func()) {
	t.Helper()
	dir := t.TempDir()
	ctx := deadline(t)
	cfg.Job, cfg.Rails = &folder{dir, 0, 3}, []session.Rail{{Driver: "shm"}}
	flooder, log := rankCommand(t, dir, envRole+"=flooding", envFlood+"="+f.name)
	if err := flooder.Start(); err != nil {
		t.Fatal(err)
	}
	v = &victim{}
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() { other, errs[0] = session.Join(ctx, session.Config{Job: &folder{dir, 2, 3}, Rails: cfg.Rails}) })
	v.s, errs[1] = session.Join(ctx, cfg)
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = flooder.Process.Kill() // Close would wait for it
		if t.Failed() {
			_ = v.s.Dump(os.Stderr)
			t.Log(log.String())
		}
		_ = flooder.Wait()
		wg.Go(func() { _ = other.Close(ctx) })
		_ = v.s.Close(ctx)
		wg.Wait()
	})
	region, err := v.s.Register(make([]byte, 1<<12), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	v.g = v.s.Gate(1)
	if _, err := v.g.Recv(ctx, 1, nil); err != nil {
		t.Fatal(err, log.String())
	}
	if _, err := other.Gate(0).Isend(2, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := v.s.Gate(2).Recv(ctx, 2, nil); err != nil {
		t.Fatal(err)
	}
	return v, other, func() {
		if f.serve != nil {
			f.serve(t, v)
		}
		if err := v.g.Send(ctx, 1, region.Key()[8:16]); err != nil {
			t.Fatal(err)
		}
	}
}

// A peer that reads no answers, and sends messages of one kind as fast as it can, costs no more memory than the
// documented bounds: it is blocked, or its gate ends with an error that names the limit. Another peer is served during
// the flood.
func TestPeerThatDoesNotReadIsBounded(t *testing.T) {
	unexpected, peerMemory := 8<<20, 16<<20
	if os.Getenv("BYWASH_SOAK") == "" {
		unexpected, peerMemory = 2<<20, 4<<20
	}
	for _, f := range floods {
		t.Run(f.name, func(t *testing.T) {
			ctx := deadline(t)
			v, other, begin := flooded(t, &f, session.Config{Unexpected: unexpected, PeerMemory: peerMemory})
			base, peak, most := heapNow(), 0, 0
			begin()
			end, look := time.Now().Add(150*time.Millisecond), time.Now()
			for v.g.Path() != "broken" && (f.ends || time.Now().Before(end)) && ctx.Err() == nil {
				if f.serve != nil {
					f.serve(t, v)
				}
				v.s.Progress()
				if most = max(most, v.g.Waiting()); time.Since(look) > 30*time.Millisecond {
					peak, look = max(peak, heapNow()-base), time.Now()
				}
			}
			peak = max(peak, heapNow()-base)
			t.Logf("the heap grows by %.1f MiB, %d answers wait; %+v", float64(peak)/(1<<20), most, v.s.Stats())
			bound := 1 << 20 // such messages leave nothing behind
			if f.ends {
				bound = unexpected + peerMemory + v.posted*512 + 2<<20 // with the program's own receives
			}
			if peak > bound {
				t.Errorf("the heap grows by %d bytes, more than %d", peak, bound)
			}
			if most > peerMemory/100 {
				t.Errorf("%d messages wait for the peer", most)
			}
			if f.ends {
				_, err := v.g.Recv(ctx, 1<<50, nil)
				if !errors.Is(err, session.ErrLimit) || !errors.Is(err, session.ErrBroken) || !strings.Contains(err.Error(), "option") && !strings.Contains(err.Error(), "Config.") {
					t.Errorf("the gate ends with %v, want one that names the limit", err)
				}
			} else if v.g.Path() == "broken" {
				t.Error("the gate has ended")
			}
			if err := other.Gate(0).Send(ctx, 2, nil); err != nil {
				t.Error(err)
			}
			if _, err := v.s.Gate(2).Recv(ctx, 2, nil); err != nil {
				t.Errorf("another peer is not served: %v", err)
			}
		})
	}
}
