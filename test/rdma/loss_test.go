//go:build linux && !(386 || arm || mips || mipsle)

package rdma

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
	"github.com/bywash/bywash/internal/lab/machines"
)

// crossLossyLink is both sides: each track in both directions, one after the other,
// and one-sided access from machine 0 to the memory of machine 1.
func crossLossyLink(t *testing.T) {
	w := meet(t)
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			// Packets that wait for a busy emulated processor are not lost.
			c := open(t, driver.Hints{Track: track, Options: map[string]string{"dead-time": "10s"}})
			i := join(t, w, c)
			for from := range 2 {
				step := fmt.Sprintf("messages from machine %d", from)
				start := time.Now()
				var err error
				switch {
				case track == driver.Small && from == machines.Rank():
					err = sendSmall(i)
				case track == driver.Small:
					err = recvSmall(i)
				case from == machines.Rank():
					err = sendLarge(w, i)
				default:
					err = recvLarge(w, i)
				}
				noErr(t, step, err)
				t.Logf("%s: %v", step, time.Since(start).Round(time.Millisecond))
				w.sync(t, step)
			}
			if track == driver.Small {
				accessMemory(t, w, c, i)
			}
			noErr(t, "disconnect", until("disconnect", func() (bool, error) { return posted(i.Disconnect()) }))
			w.sync(t, "disconnected")
			noErr(t, "close", c.Close())
		})
	}
}

// Each way. A large message loses some five packets, and a timeout or two.
var smallMessages, largeMessages = times(2000), times(8)

const largeSize = 256 << 10

// times is how often something is done of the n times that it is done when all is wanted.
func times(n int) int {
	if machines.Whole() {
		return n
	}
	return n / 4
}

// smallSize is the length of the kth message: most are short, as most are, some
// fill a buffer of 4096 bytes.
func smallSize(k int) int {
	if k%50 == 0 {
		return 4096
	}
	return int(word(uint64(k), 7) % 300)
}

func sendSmall(i driver.Instance) error {
	var ps [64]driver.Packet
	for k := range smallMessages + len(ps) {
		p := &ps[k%len(ps)]
		if k >= len(ps) {
			err := until(fmt.Sprintf("send message %d", k-len(ps)), func() (bool, error) { return i.SendPoll(p) })
			if err != nil {
				return err
			}
		}
		if k >= smallMessages {
			continue
		}
		b := make([]byte, smallSize(k))
		fill(b, uint64(k))
		p.IOV = [][]byte{b}
		if err := until(fmt.Sprintf("post message %d", k), func() (bool, error) { return posted(i.SendPost(p)) }); err != nil {
			return err
		}
	}
	return nil
}

func recvSmall(i driver.Instance) error {
	var ps [32]driver.Packet
	for k := range smallMessages + len(ps) {
		p := &ps[k%len(ps)]
		if n := k - len(ps); n >= 0 {
			if err := until(fmt.Sprintf("receive message %d", n), func() (bool, error) { return i.RecvPoll(p) }); err != nil {
				return err
			}
			if p.N != smallSize(n) {
				return fmt.Errorf("message %d has %d bytes, want %d: lost, doubled or out of order", n, p.N, smallSize(n))
			}
			if err := verify(p.IOV[0][:p.N], uint64(n)); err != nil {
				return err
			}
		} else {
			p.IOV = [][]byte{make([]byte, 4096)}
		}
		if k < smallMessages {
			if err := i.RecvPost(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// transfers is how many large messages are under way.
const transfers = 4

func recvLarge(w *wire, i driver.Instance) error {
	var ps [transfers]driver.Packet
	for k := range largeMessages + transfers {
		p := &ps[k%transfers]
		if n := k - transfers; n >= 0 {
			if err := until(fmt.Sprintf("receive message %d", n), func() (bool, error) { return i.RecvPoll(p) }); err != nil {
				return err
			}
			if p.N != largeSize {
				return fmt.Errorf("message %d has %d bytes, want %d", n, p.N, largeSize)
			}
			if err := verify(p.IOV[0], uint64(n)); err != nil {
				return err
			}
		} else {
			p.IOV = [][]byte{make([]byte, largeSize)}
		}
		if k >= largeMessages {
			continue
		}
		clear(p.IOV[0])
		if err := i.RecvPost(p); err != nil {
			return err
		}
		if err := w.tell(p.RdvData); err != nil {
			return err
		}
	}
	return nil
}

func sendLarge(w *wire, i driver.Instance) error {
	rdv := make(chan []byte, largeMessages)
	failed := make(chan error, 1)
	go func() { // so that the sender goes on polling meanwhile
		for range largeMessages {
			var d []byte
			if err := w.hear(&d); err != nil {
				failed <- err
				return
			}
			rdv <- d
		}
	}()
	var ps [transfers]driver.Packet
	var busy [transfers]bool
	for k := range ps {
		ps[k].IOV = [][]byte{make([]byte, largeSize)}
	}
	next, sent := 0, 0
	err := until("send large messages", func() (bool, error) {
		for k := range ps {
			p := &ps[k]
			if busy[k] {
				done, err := i.SendPoll(p)
				if err != nil {
					return false, err
				}
				if !done {
					continue
				}
				busy[k] = false
				sent++
			}
			select {
			case p.RdvData = <-rdv:
			case err := <-failed:
				return false, err
			default:
				continue
			}
			fill(p.IOV[0], uint64(next))
			next++
			if err := i.SendPost(p); err != nil { // no ErrBusy: these are few
				return false, err
			}
			busy[k] = true
		}
		return sent == largeMessages, nil
	})
	if err != nil {
		return fmt.Errorf("after %d of %d messages: %w", sent, largeMessages, err)
	}
	return nil
}

// Memory of machine 1 for one-sided access: a counter, then pieces.
var pieces, additions = times(64), times(500)

const (
	pieceSize = 16 << 10
	piecesAt  = 64
)

func accessMemory(t *testing.T, w *wire, c driver.Context, i driver.Instance) {
	t.Helper()
	if machines.Rank() == 1 {
		b := make([]byte, piecesAt+pieces*pieceSize)
		r, err := c.(driver.Registrar).Register(b, driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic)
		noErr(t, "register", err)
		noErr(t, "tell key", w.tell(r.Key()))
		w.sync(t, "memory was accessed")
		for k := range pieces {
			noErr(t, "memory that was put", verify(b[piecesAt+k*pieceSize:][:pieceSize], uint64(k)))
		}
		if got := binary.NativeEndian.Uint64(b); got != uint64(additions) {
			t.Error(integrity.Errorf("%d additions of 1 give %d: some were lost or repeated", additions, got))
		}
		noErr(t, "deregister", until("deregister", func() (bool, error) { return posted(r.Deregister()) }))
		return
	}
	one := i.(driver.OneSided)
	var key []byte
	noErr(t, "hear key", w.hear(&key))
	remote, err := one.Import(key)
	noErr(t, "import", err)
	start := time.Now()
	each(t, "put", one, pieces, one.PutPost, func(k int, op *driver.Op) {
		fill(op.Local, uint64(k))
		op.Remote, op.Offset = remote, piecesAt+k*pieceSize
	}, nil)
	each(t, "get", one, pieces, one.GetPost, func(k int, op *driver.Op) {
		clear(op.Local)
		op.Remote, op.Offset = remote, piecesAt+k*pieceSize
	}, func(k int, op *driver.Op) { noErr(t, "memory that was got", verify(op.Local, uint64(k))) })
	seen := make([]bool, additions)
	each(t, "add", one, additions, one.AtomicPost, func(_ int, op *driver.Op) {
		*op = driver.Op{Remote: remote, Atomic: driver.Add, Size: 8, Operand: 1, Fetch: true}
	}, func(_ int, op *driver.Op) {
		if op.Result >= uint64(additions) || seen[op.Result] {
			t.Fatalf("an addition returns %d, which is impossible or came before", op.Result)
		}
		seen[op.Result] = true
	})
	t.Logf("%d puts and gets of %d KiB, %d atomics: %v", pieces, pieceSize>>10, additions, time.Since(start).Round(time.Millisecond))
	w.sync(t, "memory was accessed")
}

// each does n operations, several of them at a time.
func each(t *testing.T, what string, one driver.OneSided, n int, post func(*driver.Op) error, before, after func(int, *driver.Op)) {
	t.Helper()
	var ops [8]driver.Op
	for k := range n + len(ops) {
		op := &ops[k%len(ops)]
		if m := k - len(ops); m >= 0 {
			noErr(t, what, until(fmt.Sprintf("%s %d", what, m), func() (bool, error) { return one.OpPoll(op) }))
			if after != nil {
				after(m, op)
			}
		} else {
			op.Local = make([]byte, pieceSize)
		}
		if k < n {
			before(k, op)
			noErr(t, what, until(fmt.Sprintf("post %s %d", what, k), func() (bool, error) { return posted(post(op)) }))
		}
	}
}
