//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

// Each socket is used by two goroutines, one for each side, as Socket allows;
// the race detector watches.
func TestSidesOfASocketAreIndependent(t *testing.T) {
	cfg := xsk.Config{Memory: xsk.UMEMConfig{Chunks: 512}}
	inBothModes(t, veth.Config{}, cfg, cfg, func(t *testing.T, r *run) {
		back := header(&r.lab.Ends[1], &r.lab.Ends[0])
		a, b := r.a.Sockets[0], r.b.Sockets[0]
		var toA, toB atomic.Int64 // frames that have arrived
		var all sync.WaitGroup
		all.Go(func() { sendNumbered(t, a, r.head, r.free, &toB) })
		all.Go(func() { sendNumbered(t, b, back, r.back, &toA) })
		all.Go(func() { receiveNumbered(t, a, back, &toA) })
		all.Go(func() { receiveNumbered(t, b, r.head, &toB) })
		all.Wait()
	})
}

const (
	duplexFrames = 5000
	duplexAhead  = 64 // less than what a device's queue holds
)

func sendNumbered(t *testing.T, s *xsk.Socket, head []byte, free []uint64, arrived *atomic.Int64) {
	end := time.Now().Add(deadline)
	var addrs [32]uint64
	for sent := 0; sent < duplexFrames; {
		n := s.Complete(addrs[:])
		free = append(free, addrs[:n]...)
		if time.Now().After(end) {
			t.Errorf("sent %d frames, of which %d arrived, want %d", sent, arrived.Load(), duplexFrames)
			return
		}
		if sent-int(arrived.Load()) >= duplexAhead || len(free) == 0 {
			continue
		}
		addr := free[len(free)-1]
		writeFrame(s.UMEM().Frame(addr)[:64], head, sent)
		if s.Transmit([]xsk.Desc{{Addr: addr, Len: 64}}) == 1 {
			free = free[:len(free)-1]
			sent++
		}
		if err := s.Kick(); err != nil && err != xsk.ErrAgain {
			t.Error(err)
			return
		}
	}
}

func receiveNumbered(t *testing.T, s *xsk.Socket, head []byte, arrived *atomic.Int64) {
	var descs [32]xsk.Desc
	want := make([]byte, 64)
	for got := 0; got < duplexFrames; {
		e, err := s.Wait(xsk.EventRx, deadline)
		if err != nil || e == 0 {
			t.Errorf("received %d frames, want %d: event %v, %v", got, duplexFrames, e, err)
			return
		}
		for _, d := range descs[:s.Receive(descs[:])] {
			writeFrame(want, head, got)
			if frame := s.UMEM().Data(d); string(frame) != string(want) {
				t.Errorf("frame %d: got % x, want % x", got, frame, want)
				return
			}
			s.Fill([]uint64{d.Addr})
			got++
			arrived.Add(1)
		}
	}
}
