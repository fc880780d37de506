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

// updateSource is the receiving side's part.
type updateSource struct {
	inst       driver.RdvUpdater // nil: the driver has no updates
	note       []byte            // an update that waits for room in the control link, with its number
	most       int               // bytes of an update
	over       bool              // the control message that no update follows was sent, or none are possible
	shortSleep shortSleep
}

func newUpdateSource(inst driver.RdvUpdater, most int) *updateSource {
	return &updateSource{inst: inst, most: most, note: make([]byte, 0, updateHead+most), shortSleep: shortSleep{brief: inst != nil}}
}

// updates mails the updates that are due, at most one of each receive at a time.
func (x *largeReceiver) updates() (moved bool, err error) {
	u := x.up
	if u.inst == nil {
		return false, nil
	}
	for k := x.tail; ; k++ {
		if len(u.note) > 0 {
			ok, err := x.box.trySend(controlUpdate, u.note)
			if !ok || err != nil {
				return moved, err
			}
			u.note, moved = u.note[:0], true
		}
		// Only a sender that has the request knows the number.
		if k >= x.asked {
			break
		}
		b, err := u.inst.RecvRdvUpdate(&x.slots[k%len(x.slots)].p)
		if err != nil {
			return moved, err
		}
		if b == nil {
			continue
		}
		if len(b) > u.most {
			return moved, fmt.Errorf("message %d: an update of rdv data has %d bytes, RdvSize is %d", k, len(b), u.most)
		}
		u.note = append(binary.LittleEndian.AppendUint64(u.note, uint64(k)), b...)
	}
	if x.tail == x.n && !u.over {
		ok, err := x.box.trySend(controlOver, nil)
		if err != nil {
			return moved, err
		}
		u.over, moved = ok, moved || ok
	}
	return moved, nil
}

// updateSink is the sending side's part.
type updateSink struct {
	inst       driver.RdvUpdater // nil: the driver has no updates
	note       []byte            // the last control message
	held       bool              // it is a request, and all slots are taken
	over       bool              // no updates follow, or none are possible
	early      []kept            // of each slot
	shortSleep shortSleep
}

// kept are updates, in order.
type kept struct {
	b    []byte
	ends []int
}

func (k *kept) add(b []byte) {
	k.b = append(k.b, b...)
	k.ends = append(k.ends, len(k.b))
}

func (k *kept) reset() { k.b, k.ends = k.b[:0], k.ends[:0] }

func newUpdateSink(inst driver.RdvUpdater, most, slots int) *updateSink {
	u := &updateSink{inst: inst, note: make([]byte, 0, updateHead+most), early: make([]kept, slots)}
	u.shortSleep.brief = inst != nil
	for k := range u.early {
		// It grows to the size that the messages need.
		u.early[k] = kept{b: make([]byte, 0, 4*most), ends: make([]int, 0, 4)}
	}
	return u
}

func (u *updateSink) begin() {
	u.held, u.over = false, u.inst == nil
	for k := range u.early {
		u.early[k].reset()
	}
}

// handleControl handles the requests and updates that have arrived. A request that finds no slot waits, and so do
// all control messages behind it. That cannot delay the message whose slot it needs: both sides have as many slots, so
// the receiver sent the request after it had that message, which this side has only not polled yet.
func (x *largeSender) handleControl() (moved bool, err error) {
	u := x.up
	for range burst {
		if u.over && x.requested == x.n {
			break
		}
		if !u.held {
			n, ok, err := x.box.tryRecv(u.note[:cap(u.note)])
			if !ok || err != nil {
				return moved, err
			}
			u.note = u.note[:n]
		}
		if err := x.read(u.note); err != nil || u.held {
			return moved, err
		}
		moved = true
	}
	return moved, nil
}

// read handles a control message, or holds it.
func (x *largeSender) read(b []byte) error {
	u := x.up
	switch x.box.kind {
	case controlOver:
		u.over = true
		if x.requested != x.n {
			return errUnexpected
		}
	case controlUpdate:
		return x.updated(b)
	default:
		if u.held = x.requested-x.tail == len(x.slots); u.held {
			return nil
		}
		s := &x.slots[x.requested%len(x.slots)]
		if x.requested == x.n || len(b) > len(s.rdv) {
			return errUnexpected
		}
		s.p.RdvData = s.rdv[:copy(s.rdv, b)]
		x.requested++
	}
	return nil
}

// updated passes an update on, or keeps it until its message is posted.
func (x *largeSender) updated(b []byte) error {
	if len(b) < updateHead {
		return errUnexpected
	}
	seq, b := binary.LittleEndian.Uint64(b), b[updateHead:]
	k := int(seq % uint64(len(x.slots)))
	switch {
	case seq >= uint64(x.requested):
		return errUnexpected // requests come first
	case seq < uint64(x.tail):
		return nil // the message is done without it
	case seq >= uint64(x.sent):
		x.up.early[k].add(b)
		return nil
	}
	return x.up.inst.SendRdvUpdate(&x.slots[k].p, b)
}

// catchUp gives the driver the updates that came before slot k was posted.
func (x *largeSender) catchUp(k int) error {
	e := &x.up.early[k]
	from := 0
	for _, end := range e.ends {
		if err := x.up.inst.SendRdvUpdate(&x.slots[k].p, e.b[from:end]); err != nil {
			return err
		}
		from = end
	}
	e.reset()
	return nil
}

func (x *largeSender) sleep(s *bench.Stopper) error {
	u := x.up
	switch ctx := u.shortSleep.soon(s); {
	case x.tail < x.sent:
		if err := x.sw.SendWait(ctx, &x.slots[x.tail%len(x.slots)].p); err != nil {
			return u.shortSleep.ended(s, err)
		}
		x.tail++
	case x.box.br != nil && !u.held && (!u.over || x.requested < x.n):
		if err := x.box.rw.RecvWait(ctx, &x.box.in); err != nil {
			return u.shortSleep.ended(s, err)
		}
		n, _, err := x.box.take(u.note[:cap(u.note)])
		if err != nil {
			return err
		}
		u.note = u.note[:n]
		return x.read(u.note)
	default:
		time.Sleep(nap)
	}
	return nil
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
