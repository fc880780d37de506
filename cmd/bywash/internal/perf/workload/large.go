//go:build linux

package workload

import (
	"fmt"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// On the large track a receive is posted, its rdv data goes to the sender in a message of the small track (the
// request), and the send is posted with it. Receives are posted and requested ahead, so that the pipeline never drains.
// Updates of rdv data, if the driver has them, travel like requests.

// prepareLarge returns a blob exactly if this end has updates of rdv data.
func (l *link) prepareLarge() (blob []byte, err error) {
	up, err := l.updater()
	if err != nil {
		return nil, err
	}
	depth := max(1, min(l.lcaps.SendDepth, l.lcaps.RecvDepth))
	w := bench.Window(l.c.Size, depth)
	if l.c.Test == bench.Lat {
		w = min(2, depth)
	}
	out, err := l.alloc(w, l.c.Size)
	if err != nil {
		return nil, err
	}
	in, err := l.alloc(w, l.c.Size)
	if err != nil {
		return nil, err
	}
	snd := &largeSender{inst: l.li, box: &l.box, slots: slots(out), validate: l.c.Validate}
	for i := range snd.slots {
		snd.slots[i].rdv = make([]byte, l.lcaps.RdvSize)
	}
	rcv := &largeReceiver{inst: l.li, box: &l.box, slots: slots(in), validate: l.c.Validate, size: l.c.Size}
	if l.c.Blocking() {
		snd.sw, _ = l.li.(driver.SendWaiter)
		rcv.rw, _ = l.li.(driver.RecvWaiter)
	}
	snd.up, rcv.up = newUpdateSink(up, l.lcaps.RdvSize, w), newUpdateSource(up, l.lcaps.RdvSize)
	if up != nil {
		blob = []byte{1}
	}
	l.snd, l.rcv = snd, rcv
	return blob, nil
}

// largeSender sends n messages; limit, at most n, is how many may be sent now.
type largeSender struct {
	inst      driver.Instance
	box       *controlLink
	sw        driver.SendWaiter
	slots     []slot
	validate  bool
	n, limit  int
	requested int // requests received
	sent      int
	tail      int
	up        *updateSink
}

func (x *largeSender) begin(n int) {
	x.n, x.limit, x.requested, x.sent, x.tail = n, n, 0, 0, 0
	x.up.begin()
}

func (x *largeSender) done() bool { return x.tail == x.n && x.up.over }

func (x *largeSender) step() (moved bool, err error) {
	if moved, err = x.handleControl(); err != nil {
		return false, err
	}
	for x.sent < min(x.requested, x.limit) {
		s := &x.slots[x.sent%len(x.slots)]
		if x.validate {
			bench.Fill(s.buf, uint64(x.sent))
		}
		if err := x.inst.SendPost(&s.p); err != nil {
			if err == driver.ErrBusy {
				break
			}
			return false, err
		}
		if err := x.catchUp(x.sent % len(x.slots)); err != nil {
			return false, err
		}
		x.sent++
		moved = true
	}
	for x.tail < x.sent {
		done, err := x.inst.SendPoll(&x.slots[x.tail%len(x.slots)].p)
		if err != nil {
			return false, err
		}
		if !done {
			break
		}
		x.tail++
		moved = true
	}
	return moved, nil
}

// largeReceiver receives n messages.
type largeReceiver struct {
	inst     driver.Instance
	box      *controlLink
	rw       driver.RecvWaiter
	slots    []slot
	validate bool
	size     int
	n        int
	posted   int
	asked    int // requests sent
	tail     int
	up       *updateSource
}

func (x *largeReceiver) begin(n int) {
	x.n, x.posted, x.asked, x.tail = n, 0, 0, 0
	x.up.note, x.up.over = x.up.note[:0], x.up.inst == nil
}

func (x *largeReceiver) done() bool {
	return x.tail == x.n && !x.box.sending && x.up.over
}

func (x *largeReceiver) step() (bool, error) {
	moved, err := x.ask()
	if err != nil {
		return false, err
	}
	for x.tail < x.asked {
		s := &x.slots[x.tail%len(x.slots)]
		done, err := x.inst.RecvPoll(&s.p)
		if err != nil {
			return false, err
		}
		if !done {
			break
		}
		if err := x.took(s); err != nil {
			return false, err
		}
		moved = true
	}
	gotUpdates, err := x.updates()
	return moved || gotUpdates, err
}

// ask posts receives and sends their requests, as far as there is room.
func (x *largeReceiver) ask() (moved bool, err error) {
	if _, err := x.box.flush(); err != nil {
		return false, err
	}
	for x.posted < x.n && x.posted-x.tail < len(x.slots) {
		if err := x.inst.RecvPost(&x.slots[x.posted%len(x.slots)].p); err != nil {
			if err == driver.ErrBusy {
				break
			}
			return false, err
		}
		x.posted++
		moved = true
	}
	for x.asked < x.posted {
		ok, err := x.box.trySend(controlPlain, x.slots[x.asked%len(x.slots)].p.RdvData)
		if err != nil {
			return false, err
		}
		if !ok {
			break
		}
		x.asked++
		moved = true
	}
	return moved, nil
}

func (x *largeReceiver) took(s *slot) error {
	if s.p.N != x.size {
		return fmt.Errorf("message %d has %d bytes, want %d", x.tail, s.p.N, x.size)
	}
	if x.validate {
		if err := bench.Verify(s.buf, uint64(x.tail)); err != nil {
			return err
		}
	}
	x.tail++
	return nil
}

func (x *largeReceiver) sleep(s *bench.Stopper) error {
	if x.tail < x.asked && x.asked == x.posted && !x.box.sending {
		sl := &x.slots[x.tail%len(x.slots)]
		if err := x.rw.RecvWait(x.up.shortSleep.soon(s), &sl.p); err != nil {
			return x.up.shortSleep.ended(s, err)
		}
		return x.took(sl)
	}
	time.Sleep(nap)
	return nil
}

// echoSide holds both directions of a ping-pong. At any time the process waits for one of them.
type echoSide struct {
	*largeSender
	rcv *largeReceiver
}

func (x echoSide) done() bool { return x.largeSender.done() && x.rcv.done() }

func (x echoSide) step() (bool, error) {
	sent, err := x.largeSender.step()
	if err != nil {
		return false, err
	}
	got, err := x.rcv.step()
	return sent || got, err
}

func (x echoSide) sleep(s *bench.Stopper) error {
	if x.tail < x.limit {
		return x.largeSender.sleep(s)
	}
	return x.rcv.sleep(s)
}

// pingPongLarge sends a message back and forth. Each side has two receives requested, so that the request of the next
// round travels during this one.
func (l *link) pingPongLarge(j *bench.Round) error {
	x := echoSide{l.snd.(*largeSender), l.rcv.(*largeReceiver)}
	x.begin(j.N)
	x.rcv.begin(j.N)
	x.limit = 0
	var f flow = x
	err := j.Timed(func(seq uint64) error {
		n := int(seq) + 1
		if j.Lead {
			x.limit = n
		}
		err := pump(j, func() bool { return x.rcv.tail >= n }, f)
		x.limit = n
		return err
	})
	if err != nil {
		return err
	}
	return pump(j, f.done, f)
}
