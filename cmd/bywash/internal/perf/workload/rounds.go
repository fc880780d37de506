//go:build linux

package workload

import (
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// prepareMessages makes the sender and the receiver of a case. It returns a blob exactly if this end has updates of rdv
// data.
func (l *link) prepareMessages() (blob []byte, err error) {
	common := direction{stop: l.s.Stop, inst: l.si, validate: l.c.Validate, size: l.c.Size}
	caps, ahead := &l.scaps, 1
	if l.onLarge(l.c.Size) {
		// The request of the next ping travels during this one.
		common.inst, common.box, caps, ahead = l.li, &l.box, &l.lcaps, 2
		if common.updater, err = l.updater(); err != nil {
			return nil, err
		}
		common.naps.brief = common.updater != nil
	}
	depth := max(1, min(caps.SendDepth, caps.RecvDepth))
	w := bench.Window(l.c.Size, depth)
	if l.c.Test == bench.Lat {
		w = min(ahead, depth)
	}
	out, in, err := l.alloc(w, l.c.Size)
	if err != nil {
		return nil, err
	}
	snd, rcv := &sender{direction: common}, &receiver{direction: common}
	if l.s.Lead {
		rcv.mask = ^uint64(0)
	} else {
		snd.mask = ^uint64(0)
	}
	snd.slots, rcv.slots = slots(out), slots(in)
	l.snd, l.rcv = snd, rcv
	if l.c.Blocking() {
		snd.sw, _ = common.inst.(driver.SendWaiter)
		rcv.rw, _ = common.inst.(driver.RecvWaiter)
	}
	if common.box != nil {
		return l.prepareRequests(), nil
	}
	l.useBuffers(snd, rcv)
	if l.c.Peers > 0 {
		rcv.prober, _ = l.small.(driver.Prober)
	}
	return nil, nil
}

// prepareRequests makes the memory for requests and updates of rdv data.
func (l *link) prepareRequests() (blob []byte) {
	snd, rcv, size := l.snd, l.rcv, l.lcaps.RdvSize
	for i := range snd.slots {
		snd.slots[i].rdv = make([]byte, size)
	}
	snd.note, rcv.note = make([]byte, 0, updateHead+size), make([]byte, 0, updateHead+size)
	if snd.updater == nil {
		return nil
	}
	snd.early = make([][]byte, len(snd.slots))
	for k := range snd.early {
		snd.early[k] = make([]byte, 0, 4*(4+size)) // it grows to what the messages need
	}
	return []byte{1}
}

// useBuffers makes messages use the driver's buffers, if it has them and the case wants them.
func (l *link) useBuffers(snd *sender, rcv *receiver) {
	if !l.c.Arena() || l.c.Size > l.scaps.BufferSize {
		return
	}
	if l.scaps.BufferSend {
		if snd.bs, _ = l.si.(driver.BufferSender); snd.bs != nil {
			snd.slots = make([]slot, 1)
		}
	}
	if l.scaps.BufferRecv {
		if rcv.br, _ = l.si.(driver.BufferReceiver); rcv.br != nil {
			rcv.slots = make([]slot, 1)
		}
	}
}

// pump makes progress in both directions: until the messages that may come now have come, or until all is done.
func (l *link) pump(j *bench.Round, all bool) error {
	snd, rcv, sp := l.snd, l.rcv, j.Spinner()
	for {
		moved := false
		if !snd.idle() {
			m, err := snd.step()
			if err != nil {
				return err
			}
			moved = m
		}
		if !rcv.done() {
			m, err := rcv.step()
			if err != nil {
				return err
			}
			moved = moved || m
		}
		switch {
		case rcv.tail == rcv.limit && (!all || snd.done() && rcv.done()):
			return nil
		case moved:
			continue
		case j.Blocking():
			if err := l.sleep(j); err != nil {
				return err
			}
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
}

// sleep sleeps on the direction that is due, and naps where both are.
func (l *link) sleep(j *bench.Round) error {
	switch {
	case j.Test == bench.BiBW:
		time.Sleep(nap)
		return nil
	case l.snd.tail < l.snd.limit || l.rcv.tail == l.rcv.n:
		return l.snd.sleep()
	}
	return l.rcv.sleep()
}

// stream runs bw, rate and bibw on either track.
func (l *link) stream(j *bench.Round) error {
	start := time.Now()
	out, in := j.N, j.N
	if j.Test != bench.BiBW {
		if j.Lead {
			in = 0
		} else {
			out = 0
		}
	}
	l.snd.begin(out, out)
	l.rcv.begin(in, in)
	if err := l.pump(j, true); err != nil {
		return err
	}
	var ack [1]byte
	if !j.Lead {
		return l.box.post(j, ack[:])
	}
	if _, err := l.box.await(j, ack[:]); err != nil {
		return err
	}
	j.Elapsed = time.Since(start)
	return nil
}

// pingPong sends a message back and forth on either track.
func (l *link) pingPong(j *bench.Round) error {
	l.snd.begin(j.N, 0)
	l.rcv.begin(j.N, 0)
	sp, tight := j.Spinner(), l.snd.box == nil && l.rcv.prober == nil && !j.Blocking()
	if err := l.rcv.post(); err != nil {
		return err
	}
	err := j.Batches(func(from, to uint64) error {
		for n := int(from) + 1; n <= int(to); n++ {
			l.rcv.limit = n
			var err error
			if tight {
				err = l.bounce(j.Lead, n, &sp)
			} else {
				if j.Lead {
					l.snd.limit = n
				}
				err = l.pump(j, false)
				l.snd.limit = n
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.pump(j, true)
}

// bounce is pump for a message and its answer on the small track, which take 100 ns: every branch would show.
func (l *link) bounce(lead bool, n int, sp *bench.Spinner) error {
	if lead {
		if err := l.snd.throw(n, sp); err != nil {
			return err
		}
	}
	if err := l.rcv.catch(sp); err != nil || lead {
		return err
	}
	return l.snd.throw(n, sp)
}

// throw sends message n-1 and waits until it is sent.
func (x *sender) throw(n int, sp *bench.Spinner) error {
	for x.limit = n; x.tail < n; {
		moved, err := x.step()
		if err != nil {
			return err
		}
		if !moved {
			if err := sp.Miss(); err != nil {
				return err
			}
		}
	}
	return nil
}

// catch waits for a message, and posts the receive of the next.
func (x *receiver) catch(sp *bench.Spinner) error {
	for x.br == nil && x.tail == x.posted { // there was no room
		if err := x.post(); err != nil {
			return err
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
	p := &x.slots[0].p
	for {
		done, err := x.inst.RecvPoll(p)
		if err != nil {
			return err
		}
		if done {
			break
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
	if err := x.took(); err != nil || x.br != nil {
		return err
	}
	return x.post()
}
