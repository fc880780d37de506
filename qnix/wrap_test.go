//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"context"
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/integrity"
	"github.com/bywash/bywash/qnix/nic"
)

// A connection whose messages are more than 32 bits can count delivers them in order, whatever its window, and ends when
// its programs disconnect.
func TestConnectionOutlivesItsCounters(t *testing.T) {
	NeedNIC(t)
	const window = 13
	var contexts [2]driver.Context
	for k := range contexts {
		d, err := qnixDriver{}.Query(driver.Hints{Device: os.Getenv(nic.EnvPath), Options: map[string]string{"window": "13"}})
		if err != nil {
			t.Fatal(err)
		}
		if contexts[k], err = d.Open(driver.Attributes{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = contexts[k].Close() })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var ends [2]*small
	for k := range ends {
		i, err := contexts[k].Connect(contexts[1-k].URL())
		if err != nil {
			t.Fatal(err)
		}
		ends[k] = i.(*small)
	}
	const began = (1<<32 - 50) / window * window // as many messages have been sent
	for _, s := range ends {
		if err := s.ConnectWait(ctx); err != nil {
			t.Fatal(err)
		}
		s.ctx.doorbells.mustLock()
		s.taken, s.started, s.arrived = began, began, began
		s.posted, s.limitSent = began+window, began+window
		s.limit.Store(uint32((began + window) & (1<<32 - 1)))
		s.came.Store(began)
		s.ctx.doorbells.unlock()
	}
	for k := range uint32(200) {
		from, to := ends[k%2], ends[1-k%2]
		out := &driver.Packet{IOV: [][]byte{binary.LittleEndian.AppendUint32(nil, k)}}
		in := &driver.Packet{IOV: [][]byte{make([]byte, 4)}}
		if err := to.RecvPost(in); err != nil {
			t.Fatal(err)
		}
		if err := from.SendPost(out); err != nil {
			t.Fatal(err)
		}
		if err := from.SendWait(ctx, out); err != nil {
			t.Fatal(err)
		}
		if err := to.RecvWait(ctx, in); err != nil {
			t.Fatalf("message %d: %v", k, err)
		}
		if got := binary.LittleEndian.Uint32(in.IOV[0]); got != k {
			t.Fatal(integrity.Errorf("message %d arrived in place of message %d", got, k))
		}
	}
	if err := ends[0].Disconnect(); err != nil {
		t.Fatal(err)
	}
	for ends[1].State() != kit.StatePeerClosed && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if st := ends[1].State(); st != kit.StatePeerClosed {
		t.Errorf("the peer has disconnected, and the state is %v", st)
	}
}
