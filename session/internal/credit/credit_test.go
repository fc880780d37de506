package credit_test

import (
	"math/rand/v2"
	"testing"

	"github.com/bywash/bywash/session/internal/credit"
)

// A packet costs the memory that stores it, in classes of powers of two up to 64 KiB, and the overhead.
func TestCost(t *testing.T) {
	for _, tt := range []struct{ n, want int }{
		{0, 64}, {1, 64}, {64, 64}, {65, 128}, {4096, 4096}, {4097, 8192}, {1 << 16, 1 << 16}, {1<<16 + 1, 1<<16 + 1}, {1 << 20, 1 << 20},
	} {
		if got := credit.Cost(tt.n); got != credit.Overhead+tt.want {
			t.Errorf("Cost(%d) = %d, want %d", tt.n, got, credit.Overhead+tt.want)
		}
	}
}

// pair is one peer: its end and ours.
type pair struct {
	credit.Sender
	credit.Receiver
	granted []credit.Amount // on their way
	packet  int
	packets []int // on their way
	kept    []int // costs of stored messages
	on      bool
}

// Whatever the order in which grants, messages and receives come: a sender that keeps to its credit never exceeds it,
// no more is reserved than the pool and a packet for each peer, a peer of which nothing is stored can send, and nothing
// stays reserved at the end.
func TestManyPeersShareOnePool(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		pool := &credit.Pool{Bytes: 1 << (12 + r.IntN(14)), Messages: 1 << (4 + r.IntN(10)), Peers: 1 + r.IntN(8)}
		pool.PeerMessages = max(pool.Messages/(1+r.IntN(4)), 1)
		peers := make([]*pair, pool.Peers)
		beyond := 0
		for i := range peers {
			peers[i] = &pair{packet: 64 << r.IntN(8)}
			beyond += credit.Cost(peers[i].packet)
		}
		extend := func(p *pair) {
			if more, _ := p.Extend(pool); more {
				p.granted = append(p.granted, p.Grant())
			}
		}
		release := func(p *pair) {
			p.Release(pool, p.kept[0])
			if p.kept = p.kept[1:]; p.Low() {
				extend(p)
			}
		}
		arrive := func(p *pair) {
			c := credit.Cost(p.packets[0])
			p.packets = p.packets[1:]
			if low := p.Arrived(pool, c); low != p.Low() || p.Exceeded() {
				t.Fatalf("seed %d: low %v and %v; a message within its credit exceeds it: %v", seed, low, p.Low(), p.Exceeded())
			}
			if r.IntN(3) > 0 {
				p.Keep(pool, c)
				p.kept = append(p.kept, c)
			}
			if p.Low() {
				extend(p)
			}
		}
		deliver := func(p *pair) {
			i := r.IntN(len(p.granted))
			p.Granted(p.granted[i])
			p.granted = append(p.granted[:i], p.granted[i+1:]...)
		}
		for range 2000 {
			p := peers[r.IntN(len(peers))]
			switch {
			case !p.on:
				*p = pair{packet: p.packet, on: true, kept: p.kept, Receiver: p.Receiver}
				p.Begin(pool, p.packet)
				p.granted = append(p.granted, p.Grant())
			case r.IntN(200) == 0:
				p.End(pool)
				p.on = false
			case r.IntN(4) == 0 && len(p.granted) > 0:
				deliver(p)
			case r.IntN(3) == 0 && len(p.packets) > 0:
				arrive(p)
			case r.IntN(3) == 0 && len(p.kept) > 0:
				release(p)
			default:
				if n := r.IntN(p.packet + 1); p.Allows(credit.Cost(n)) {
					p.Sent(credit.Cost(n))
					p.packets = append(p.packets, n)
				}
			}
			if over := -pool.Free(); over > beyond {
				t.Fatalf("seed %d: %d bytes beyond the pool are reserved, at most %d may be", seed, over, beyond)
			}
		}
		for _, p := range peers {
			for len(p.kept) > 0 {
				release(p)
			}
			if !p.on {
				continue
			}
			for len(p.packets)+len(p.kept) > 0 {
				if len(p.packets) > 0 {
					arrive(p)
				} else {
					release(p)
				}
			}
			for len(p.granted) > 0 {
				deliver(p)
			}
			if !p.Allows(credit.Cost(p.packet)) || p.Blocked() {
				t.Fatalf("seed %d: a peer of which nothing is stored has no credit for a packet", seed)
			}
			p.End(pool)
		}
		if pool.Free() != pool.Bytes {
			t.Fatalf("seed %d: %d bytes stay reserved", seed, pool.Bytes-pool.Free())
		}
	}
}

// A peer that sends more than it has credit for is recognised by the first message beyond, by bytes or by number.
func TestExcessIsSeen(t *testing.T) {
	for _, size := range []int{0, 1000} {
		pool := &credit.Pool{Bytes: 1 << 20, Messages: 1 << 8, PeerMessages: 1 << 6, Peers: 1}
		var p credit.Receiver
		p.Begin(pool, 1000)
		var s credit.Sender
		s.Granted(p.Grant())
		c := credit.Cost(size)
		for s.Allows(c) {
			s.Sent(c)
			if p.Arrived(pool, c); p.Exceeded() {
				t.Fatal("a message within the credit is an excess")
			}
			p.Keep(pool, c)
		}
		if low := p.Arrived(pool, c); !low || !p.Exceeded() {
			t.Errorf("a message of %d bytes beyond the credit is no excess", size)
		}
	}
}

// Each peer's share of the pool is bounded, and where there are several, one cannot take it all.
func TestOnePeerLeavesHalfToTheOthers(t *testing.T) {
	fill := func(pool *credit.Pool, p *credit.Receiver) (n int) {
		p.Begin(pool, 8192)
		var s credit.Sender
		for s.Granted(p.Grant()); s.Allows(credit.Cost(8192)); s.Granted(p.Grant()) {
			s.Sent(credit.Cost(8192))
			p.Arrived(pool, credit.Cost(8192))
			p.Keep(pool, credit.Cost(8192))
			p.Extend(pool)
			n++
		}
		return n
	}
	const size = 1 << 20
	for peers, want := range map[int]int{1: size, 2: size / 2, 100: size / 2} {
		pool := &credit.Pool{Bytes: size, Messages: 1 << 18, PeerMessages: 1 << 16, Peers: peers}
		var a, b credit.Receiver
		n := fill(pool, &a) * credit.Cost(8192)
		if n > want || n < want-2*credit.Cost(8192) {
			t.Errorf("one of %d peers stores %d bytes, want %d", peers, n, want)
		}
		if n := fill(pool, &b); n == 0 {
			t.Errorf("beside a peer that has filled its share, another of %d stores nothing", peers)
		}
	}
	pool := &credit.Pool{Bytes: 1 << 30, Messages: 1 << 12, PeerMessages: 1 << 10, Peers: 1}
	var p credit.Receiver
	if n := fill(pool, &p); n != 1<<10 {
		t.Errorf("%d messages are stored, want %d", n, 1<<10)
	}
}

// Messages that receives wait for cost one renewal of credit for three quarters of a window.
func TestCreditIsRenewedSeldom(t *testing.T) {
	pool := &credit.Pool{Bytes: 64 << 20, Messages: 1 << 18, PeerMessages: 1 << 16, Peers: 1}
	var p credit.Receiver
	p.Begin(pool, 8192)
	renewals := 0
	const messages = 1 << 18
	for range messages {
		if p.Arrived(pool, credit.Cost(24)) {
			if p.Exceeded() {
				t.Fatal("no credit")
			}
			if more, _ := p.Extend(pool); more {
				renewals++
			}
		}
	}
	if want := messages / (3 << 14); renewals > want+1 {
		t.Errorf("%d renewals for %d messages, want %d", renewals, messages, want)
	}
}
