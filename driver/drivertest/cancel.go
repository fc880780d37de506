package drivertest

import (
	"errors"
	"math/rand/v2"
	"runtime"

	"github.com/bywash/bywash/driver"
)

var roleLine = role("cancel-before", func(e *end) {
	c := e.parent.connectPeer()
	e.parent.recvNote("go", nil)
	if e.large { // rdv data of receives that are cancelled
		for range 2 {
			c.takeRdv(&driver.Packet{})
			c.rdvPosted++
		}
	}
	newWindow(c, 1, 64).sendRun(2, 64, 0)
	e.parent.sync()
})

func checkCancelBefore(e *end) {
	p, c := e.pair(roleLine, nil)
	e.wantErr("cancel of a packet that is not posted", c.i.RecvCancel(packet(make([]byte, 64))), driver.ErrInvalid)
	q := [4]*driver.Packet{}
	for k := range q {
		q[k] = packet(make([]byte, 64))
		setCanary(q[k].IOV[0])
	}
	before := e.counters().Canceled
	gone := []*driver.Packet{q[0], q[1]}
	for _, k := range []int{0, 1} {
		c.postRecv(q[k])
	}
	for _, g := range gone {
		e.noErr("cancel", c.i.RecvCancel(g))
		e.wantErr("cancelled receive", c.recvErr(g), driver.ErrCanceled)
	}
	if got := e.counters().Canceled; got != before+2 {
		e.Errorf("counter of cancelled receives: %d, want %d", got, before+2)
	}
	c.postRecv(q[2])
	c.postRecv(q[3])
	p.sendNote("go", nil)
	for k, r := range q[2:] {
		c.endRecv(r)
		if err := verify(r.IOV[0], uint64(k)); err != nil {
			e.Errorf("message after cancelled receives: %v", err)
		}
	}
	for _, g := range gone {
		if k := disturbed(g.IOV[0]); k >= 0 {
			e.Errorf("byte %d of a cancelled buffer was written", k)
		}
	}
	p.sync()
	p.join()
}

// roleFlood sends n messages, the kth with the pattern k. On the large track a
// send may fail when its receive was cancelled, and for that alone.
var roleFlood = role("flood", func(e *end) {
	var r run
	e.args(&r)
	c := e.parent.connectPeer()
	if !e.large {
		newWindow(c, r.Depth, r.Size).sendRun(r.N, r.Size, 0)
		e.parent.sync()
		return
	}
	p := packet(make([]byte, r.Size))
	for k := range r.N {
		fill(p.IOV[0], uint64(k))
		err := c.trySend(p)
		if err == nil {
			err = c.sendErr(p)
		}
		if err != nil && !errors.Is(err, driver.ErrCanceled) {
			e.Fatalf("send %d to a receive that may be cancelled: got %v, want nil or %v", k, err, driver.ErrCanceled)
		}
	}
	e.parent.sync()
})

func checkCancelRace(e *end) {
	r := run{N: e.times(2000, 400), Size: min(2000, e.caps.MaxMessage), Depth: min(8, e.caps.SendDepth)}
	if e.large {
		r = run{N: 60, Size: min(e.times(256, 64)<<10, e.caps.MaxMessage)}
	}
	if raceEnabled {
		r.N /= 4
	}
	p, c := e.pair(roleFlood, r)
	rnd := e.rand(1)
	var watched [][]byte
	won, cancelled := 0, 0
	for k := 0; k < r.N; {
		q := packet(make([]byte, r.Size))
		err := e.mayCancel(c, q, rnd, k%3 != 2)
		switch {
		case err == nil:
			won++
			if err := verify(q.IOV[0], uint64(k)); err != nil || q.N != r.Size {
				e.Fatalf("message %d, which won against cancel: %d bytes, %v", k, q.N, err)
			}
			k++
		case errors.Is(err, driver.ErrCanceled):
			cancelled++
			setCanary(q.IOV[0])
			watched = append(watched, q.IOV[0])
			if len(watched) > 64 {
				e.untouched(watched[:1])
				watched = watched[1:]
			}
			if e.large {
				k++
			} else if cancelled%4 == 0 { // so that the flood goes on
				c.postRecv(q)
				c.endRecv(q)
				e.noErr("message after a cancelled receive", verify(q.IOV[0], uint64(k)))
				watched = watched[:len(watched)-1]
				k++
			}
		default:
			e.Fatalf("cancelled receive: got %v, want nil or %v", err, driver.ErrCanceled)
		}
	}
	p.sync()
	e.untouched(watched)
	e.Logf("%d messages won, %d receives were cancelled", won, cancelled)
	p.join()
}

// mayCancel posts a receive and cancels it after a random moment, unless it is
// done by then or cancel is false.
func (e *end) mayCancel(c *conn, q *driver.Packet, rnd *rand.Rand, cancel bool) (err error) {
	e.Helper()
	c.postRecv(q)
	defer c.forget(q)
	done := false
	for n := rnd.IntN(1 + rnd.IntN(60)); n > 0 && !done; n-- {
		runtime.Gosched()
		if n%4 == 0 {
			done, err = c.i.RecvPoll(q)
		}
	}
	if done {
		return err
	}
	if cancel {
		e.noErr("cancel", ignoreDone(c.i.RecvCancel(q)))
	}
	return c.recvErr(q)
}

// ignoreDone: a receive that is done already, and not polled yet, is as good as
// posted; but a driver that knows better may return ErrInvalid.
func ignoreDone(err error) error {
	if errors.Is(err, driver.ErrInvalid) {
		return nil
	}
	return err
}

func (e *end) untouched(buffers [][]byte) {
	e.Helper()
	for _, b := range buffers {
		if k := disturbed(b); k >= 0 {
			e.Fatalf("byte %d of %d of a cancelled buffer was written after the receive was done", k, len(b))
		}
	}
}
