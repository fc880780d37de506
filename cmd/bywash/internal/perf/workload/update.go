//go:build linux

package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// Drivers with Capabilities.RdvUpdate make further rdv data while a receive is posted. The receiver asks for updates
// until the receive is complete, and mails them with the message's number. The sender passes them to the driver, or
// keeps them until the send is posted. An update may come after the end of a message that did not need it. So each
// round ends with a control message that no update follows, and the control link is empty for the next round.

// updateHead is the message's number in front of an update.
const updateHead = 8

// glance is how long a side sleeps at most while updates are possible, because no wait of the contract ends for an
// update.
const glance = 200 * time.Microsecond

var errNoUpdater = errors.New("the large track announces updates of rdv data, but its instances have none")

func (l *link) updater() (driver.RdvUpdater, error) {
	if !l.lcaps.RdvUpdate {
		return nil, nil
	}
	u, ok := l.li.(driver.RdvUpdater)
	if !ok {
		return nil, errNoUpdater
	}
	return u, nil
}

// mailUpdates mails the updates that are due, at most one of each receive at a time.
func (x *receiver) mailUpdates() (moved bool, err error) {
	for k := x.tail; ; k++ {
		if len(x.note) > 0 {
			ok, err := x.box.trySend(controlUpdate, x.note)
			if !ok || err != nil {
				return moved, err
			}
			x.note, moved = x.note[:0], true
		}
		// Only a sender that has the request knows the number.
		if k >= x.asked {
			break
		}
		b, err := x.updater.RecvRdvUpdate(&x.slots.at(k).p)
		if err != nil {
			return moved, err
		}
		if b == nil {
			continue
		}
		if most := cap(x.note) - updateHead; len(b) > most {
			return moved, fmt.Errorf("message %d: an update of rdv data has %d bytes, RdvSize is %d", k, len(b), most)
		}
		x.note = append(binary.LittleEndian.AppendUint64(x.note, uint64(k)), b...)
	}
	if x.tail == x.n && !x.over {
		ok, err := x.box.trySend(controlOver, nil)
		if err != nil {
			return moved, err
		}
		x.over, moved = ok, moved || ok
	}
	return moved, nil
}

// handleControl handles the requests and updates that have arrived. A request that finds no slot waits, and so do
// all control messages behind it. That cannot delay the message whose slot it needs: both sides have as many slots, so
// the receiver sent the request after it had that message, which this side has only not polled yet.
func (x *sender) handleControl() (moved bool, err error) {
	for range burst {
		if x.over && x.requested == x.n {
			break
		}
		if !x.held {
			n, ok, err := x.box.tryRecv(x.note[:cap(x.note)])
			if !ok || err != nil {
				return moved, err
			}
			x.note = x.note[:n]
		}
		if err := x.read(x.note); err != nil || x.held {
			return moved, err
		}
		moved = true
	}
	return moved, nil
}

// read handles a control message, or holds it.
func (x *sender) read(b []byte) error {
	switch x.box.kind {
	case controlOver:
		x.over = true
		if x.requested != x.n {
			return errUnexpected
		}
	case controlUpdate:
		return x.updated(b)
	default:
		if x.held = x.requested-x.tail == len(x.slots); x.held {
			return nil
		}
		s := x.slots.at(x.requested)
		if x.requested == x.n || len(b) > len(s.rdv) {
			return errUnexpected
		}
		s.p.RdvData = s.rdv[:copy(s.rdv, b)]
		x.requested++
	}
	return nil
}

// updated passes an update on, or keeps it until its message is posted.
func (x *sender) updated(b []byte) error {
	if len(b) < updateHead {
		return errUnexpected
	}
	seq, b := binary.LittleEndian.Uint64(b), b[updateHead:]
	switch {
	case seq >= uint64(x.requested):
		return errUnexpected // requests come first
	case seq < uint64(x.tail):
		return nil // the message is done without it
	case seq < uint64(x.posted):
		return x.updater.SendRdvUpdate(&x.slots.at(int(seq)).p, b)
	}
	e := &x.early[int(seq)%len(x.slots)]
	*e = append(binary.LittleEndian.AppendUint32(*e, uint32(len(b))), b...)
	return nil
}

// catchUp gives the driver the updates that came before the message was posted.
func (x *sender) catchUp() error {
	e := &x.early[x.posted%len(x.slots)]
	for b := *e; len(b) > 0; {
		n := 4 + binary.LittleEndian.Uint32(b)
		if err := x.updater.SendRdvUpdate(&x.slots.at(x.posted).p, b[4:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	*e = (*e)[:0]
	return nil
}

// sleepForControl sleeps until a control message comes, and handles it.
func (x *sender) sleepForControl() error {
	if err := x.box.rw.RecvWait(x.naps.soon(x.stop), &x.box.in.p); err != nil {
		return x.naps.ended(x.stop, err)
	}
	n, _, err := x.box.take(x.note[:cap(x.note)])
	if err != nil {
		return err
	}
	x.note = x.note[:n]
	return x.read(x.note)
}

// shortSleep makes contexts that end after the time glance. One context serves all waits until it has ended, so that
// not every message needs its own.
type shortSleep struct {
	brief  bool // else waits last
	ctx    context.Context
	cancel context.CancelFunc
}

func (d *shortSleep) soon(s *bench.Stopper) context.Context {
	if !d.brief {
		return s.Ctx
	}
	if d.ctx == nil || d.ctx.Err() != nil {
		if d.cancel != nil {
			d.cancel()
		}
		d.ctx, d.cancel = context.WithTimeout(s.Ctx, glance)
	}
	return d.ctx
}

// ended returns nil if only the short sleep is over, and otherwise the error of the wait.
func (d *shortSleep) ended(s *bench.Stopper, err error) error {
	if s.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return s.Why(err)
}
