//go:build linux

package workload

import (
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// receiver receives the messages of a round on either track. On the large track a receive is posted, its rdv data goes
// to the sender in a message of the small track (the request), and the send is posted with it. Receives are posted and
// requested ahead, so that the pipeline never drains.
type receiver struct {
	direction
	br     driver.BufferReceiver // nil: receive into slots
	rw     driver.RecvWaiter     // nil: poll
	prober driver.Prober         // nil: one peer
	named  bool                  // a probe has named the instance for message tail
	asked  int                   // requests sent, on the large track
	sum    uint64                // of the bytes that were read, so that the compiler keeps the reads
}

func (x *receiver) begin(n, limit int) {
	x.direction.begin(n, limit)
	x.asked = 0
}

func (x *receiver) done() bool { return x.tail == x.n && x.over && (x.box == nil || !x.box.sending) }

// step does as much as is possible now, at most a burst.
func (x *receiver) step() (moved bool, err error) {
	if x.box != nil {
		// Requests go once a step, so that none delays the answer to a message.
		if err := x.post(); err != nil {
			return false, err
		}
	}
	for range burst {
		if x.prober != nil && !x.named && x.tail < x.limit {
			inst, err := x.prober.RecvProbeAny()
			if err == driver.ErrAgain {
				break
			}
			if err := x.name(inst, err); err != nil {
				return false, err
			}
		}
		if x.box == nil && x.br == nil {
			if err := x.post(); err != nil {
				return false, err
			}
		}
		if x.tail == x.limit || x.br == nil && x.tail == x.ready() {
			break
		}
		done, err := x.inst.RecvPoll(&x.slots.at(x.tail).p)
		if err != nil {
			return false, err
		}
		if !done {
			break
		}
		if err := x.took(); err != nil {
			return false, err
		}
		moved = true
	}
	if x.updater == nil {
		return moved, nil
	}
	mailed, err := x.mailUpdates()
	return moved || mailed, err
}

// ready returns how many messages may have come so far.
func (x *receiver) ready() int {
	if x.box != nil {
		return x.asked
	}
	return x.posted
}

var errStrayPeer = errors.New("a probe named a peer that should be idle: has it died?")

// name notes that a probe has named an instance.
func (x *receiver) name(inst driver.Instance, err error) error {
	if err == nil && inst != x.inst {
		err = errStrayPeer
	}
	x.named = err == nil
	return err
}

// post posts receives ahead of their messages and sends requests, as far as there is room. A probe precedes its
// receive, so that none is ahead of it.
func (x *receiver) post() error {
	if x.br != nil {
		return nil // the driver has the buffers
	}
	ahead := len(x.slots)
	if x.prober != nil {
		ahead = 0
		if x.named {
			ahead = 1
		}
	}
	for x.posted < x.n && x.posted-x.tail < ahead {
		if err := x.inst.RecvPost(&x.slots.at(x.posted).p); err == driver.ErrBusy {
			break
		} else if err != nil {
			return err
		}
		x.posted++
	}
	if x.box == nil {
		return nil
	}
	if _, err := x.box.flush(); err != nil {
		return err
	}
	for x.asked < x.posted {
		if ok, err := x.box.trySend(controlPlain, x.slots.at(x.asked).p.RdvData); !ok || err != nil {
			return err
		}
		x.asked++
	}
	return nil
}

// took reads or checks the message that has arrived.
func (x *receiver) took() error {
	s, seq := x.slots.at(x.tail), x.tail
	if s.p.N != x.size {
		return fmt.Errorf("message %d has %d bytes, want %d", seq, s.p.N, x.size)
	}
	x.tail++
	x.named = false
	b := s.buf
	if x.br != nil {
		b = s.p.Buf[:x.size]
	}
	if x.validate {
		if err := bench.Verify(b, uint64(seq)^x.mask); err != nil {
			return err
		}
	}
	if x.br == nil {
		return nil
	}
	if !x.validate {
		x.sum += touchRead(b)
	}
	return x.br.RecvBufRelease(&s.p)
}

// sleep blocks until something may have changed, for --wait block.
func (x *receiver) sleep() error {
	switch {
	case x.prober != nil && !x.named:
		inst, err := x.prober.RecvWaitAny(x.stop.Ctx)
		return x.stop.Why(x.name(inst, err))
	case x.br == nil && x.tail == x.posted, x.box != nil && (x.asked < x.posted || x.box.sending):
		time.Sleep(nap)
		return nil
	}
	if err := x.rw.RecvWait(x.naps.soon(x.stop), &x.slots.at(x.tail).p); err != nil {
		return x.naps.ended(x.stop, err)
	}
	return x.took()
}
