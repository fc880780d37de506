//go:build linux

package workload

import (
	"fmt"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// slot is a packet with its memory.
type slot struct {
	p   driver.Packet
	op  driver.Op
	buf []byte
	iov [1][]byte
	rdv []byte
}

// ring has the slots that messages use in turn.
type ring []slot

// at returns the slot of message k. A division takes longer than the fastest post, so a single slot has none.
func (r ring) at(k int) *slot {
	if len(r) == 1 {
		return &r[0]
	}
	return &r[k%len(r)]
}

func slots(bufs [][]byte) ring {
	out := make(ring, len(bufs))
	for i := range out {
		s := &out[i]
		s.buf = bufs[i]
		s.iov[0] = s.buf
		s.p.IOV = s.iov[:]
	}
	return out
}

// direction is what a sender and a receiver have in common. Messages from tail to posted are in flight.
type direction struct {
	stop     *bench.Stopper
	inst     driver.Instance
	box      *controlLink      // carries requests of the large track; nil on the small track
	updater  driver.RdvUpdater // nil: the driver has no updates of rdv data
	note     []byte            // the update that waits for room in the control link, or the last control message
	over     bool              // no updates follow, or none are possible
	naps     shortSleep
	validate bool
	mask     uint64 // of the numbers in patterns, so that no message passes for one of the other direction
	size     int
	slots    ring // a single one, without memory, where the driver has the buffers
	n        int  // messages of the round
	limit    int  // at most n: how many may be moved now
	posted   int
	tail     int
}

func (x *direction) begin(n, limit int) {
	x.n, x.limit, x.posted, x.tail = n, limit, 0, 0
	x.note, x.over = x.note[:0], x.updater == nil || n == 0
}

// burst bounds a step, so that the other direction gets its turn.
const burst = 64

// nap is how long a process sleeps that must wait for two events at once, or for room, for which the contract has no
// wait.
const nap = 20 * time.Microsecond

// sender sends the messages of a round on either track.
type sender struct {
	direction
	bs        driver.BufferSender // nil: send from slots
	sw        driver.SendWaiter   // nil: poll
	requested int                 // messages that the other side has asked for; on the small track all
	held      bool                // note is a request, and all slots are taken
	early     [][]byte            // of each slot: updates that came before its message was posted, each behind its length
}

func (x *sender) begin(n, limit int) {
	x.direction.begin(n, limit)
	x.requested, x.held = n, false
	if x.box != nil {
		x.requested = 0
	}
	for k := range x.early {
		x.early[k] = x.early[k][:0]
	}
}

// idle reports whether a step would do nothing.
func (x *sender) idle() bool { return x.tail == x.limit && x.requested == x.n && x.over }

func (x *sender) done() bool { return x.tail == x.n && x.over }

// step does as much as is possible now, at most a burst.
func (x *sender) step() (moved bool, err error) {
	if x.bs != nil {
		return x.stepBuffers()
	}
	if x.box != nil {
		if moved, err = x.handleControl(); err != nil {
			return false, err
		}
	}
	for range burst {
		stuck := true
		if x.tail < x.posted {
			done, err := x.inst.SendPoll(&x.slots.at(x.tail).p)
			if err != nil {
				return false, err
			}
			if done {
				x.tail++
				stuck = false
			}
		}
		if x.posted < min(x.limit, x.requested) && x.posted-x.tail < len(x.slots) {
			err := x.post()
			if err == nil {
				stuck = false
			} else if err != driver.ErrBusy {
				return false, err
			}
		}
		if stuck {
			break
		}
		moved = true
	}
	return moved, nil
}

// post posts the next message. It returns ErrBusy unchanged.
func (x *sender) post() error {
	s := x.slots.at(x.posted)
	if x.validate {
		bench.Fill(s.buf, uint64(x.posted)^x.mask)
	}
	if err := x.inst.SendPost(&s.p); err != nil {
		return err
	}
	if x.updater != nil {
		if err := x.catchUp(); err != nil {
			return fmt.Errorf("update of rdv data: %w", err)
		}
	}
	x.posted++
	return nil
}

// stepBuffers is step with the driver's buffers: one at a time, in a loop as short as a measurement of them needs.
func (x *sender) stepBuffers() (moved bool, err error) {
	p := &x.slots[0].p
	for range burst {
		if x.tail < x.posted {
			done, err := x.inst.SendPoll(p)
			if !done || err != nil {
				return moved, err
			}
			x.tail, moved = x.posted, true
		}
		if x.posted == x.limit {
			break
		}
		if err := x.bs.SendBufGet(p); err != nil {
			return moved, unlessBusy(err)
		}
		b := p.Buf[:x.size]
		if x.validate {
			bench.Fill(b, uint64(x.posted)^x.mask)
		} else {
			touchWrite(b, uint64(x.posted))
		}
		if err := x.bs.SendBufPost(p, x.size); err != nil {
			return false, err
		}
		x.posted++
		moved = true
	}
	return moved, nil
}

// sleep blocks until something may have changed, for --wait block.
func (x *sender) sleep() error {
	if x.tail < x.posted {
		if err := x.sw.SendWait(x.naps.soon(x.stop), &x.slots.at(x.tail).p); err != nil {
			return x.naps.ended(x.stop, err)
		}
		x.tail++
		return nil
	}
	if x.box != nil && x.box.br != nil && !x.held && (!x.over || x.requested < x.n) {
		return x.sleepForControl()
	}
	time.Sleep(nap)
	return nil
}
