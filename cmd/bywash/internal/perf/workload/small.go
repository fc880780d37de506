//go:build linux

package workload

import (
	"errors"
	"fmt"

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

func slots(bufs [][]byte) []slot {
	out := make([]slot, len(bufs))
	for i := range out {
		s := &out[i]
		s.buf = bufs[i]
		s.iov[0] = s.buf
		s.p.IOV = s.iov[:]
	}
	return out
}

// smallEnd is the common part of sending and receiving on the small track: the driver's interfaces that the case uses.
type smallEnd struct {
	stop     *bench.Stopper
	inst     driver.Instance
	bs       driver.BufferSender   // nil: send from slots
	br       driver.BufferReceiver // nil: receive into slots
	sw       driver.SendWaiter     // nil: poll
	rw       driver.RecvWaiter     // nil: poll
	prober   driver.Prober         // nil: one peer
	validate bool
	size     int
	slots    []slot
	buf      driver.Packet // of a buffer send or receive
	sum      uint64        // sum of the bytes that were read, so that the compiler keeps the reads
}

func (l *link) smallEnd(bufs [][]byte) smallEnd {
	e := smallEnd{stop: l.s.Stop, inst: l.si, validate: l.c.Validate, size: l.c.Size, slots: slots(bufs)}
	if l.c.Arena() && l.c.Size <= l.scaps.BufferSize {
		if l.scaps.BufferSend {
			e.bs, _ = l.si.(driver.BufferSender)
		}
		if l.scaps.BufferRecv {
			e.br, _ = l.si.(driver.BufferReceiver)
		}
	}
	if l.c.Blocking() {
		e.sw, _ = l.si.(driver.SendWaiter)
		e.rw, _ = l.si.(driver.RecvWaiter)
	}
	if l.c.Peers > 0 {
		e.prober, _ = l.small.(driver.Prober)
	}
	return e
}

func (l *link) prepareSmall() error {
	depth := max(1, min(l.scaps.SendDepth, l.scaps.RecvDepth))
	w := bench.Window(l.c.Size, depth)
	out, err := l.alloc(w, l.c.Size)
	if err != nil {
		return err
	}
	in, err := l.alloc(w, l.c.Size)
	if err != nil {
		return err
	}
	if l.c.Test == bench.Lat {
		l.lat = &smallLat{out: l.smallEnd(out[:1]), in: l.smallEnd(in[:1])}
		return nil
	}
	l.snd = &smallSender{smallEnd: l.smallEnd(out)}
	l.rcv = &smallReceiver{smallEnd: l.smallEnd(in)}
	return nil
}

// got reads or checks a message that has arrived.
func (e *smallEnd) got(b []byte, seq uint64) error {
	if len(b) != e.size {
		return fmt.Errorf("message %d has %d bytes, want %d", seq, len(b), e.size)
	}
	if e.validate {
		return bench.Verify(b, seq)
	}
	if e.br != nil {
		e.sum += touchRead(b)
	}
	return nil
}

// make puts message seq into b.
func (e *smallEnd) make(b []byte, seq uint64) {
	if e.validate {
		bench.Fill(b, seq)
	} else if e.bs != nil {
		touchWrite(b, seq)
	}
}

var errStrayPeer = errors.New("a probe named a peer that should be idle: has it died?")

// probe waits until the context names the measured instance.
func (e *smallEnd) probe(sp *bench.Spinner) error {
	for {
		inst, err := e.tryProbe()
		switch {
		case err == driver.ErrAgain:
			if err := sp.Miss(); err != nil {
				return err
			}
		case err != nil:
			return err
		case inst != e.inst:
			return errStrayPeer
		default:
			return nil
		}
	}
}

func (e *smallEnd) tryProbe() (driver.Instance, error) {
	if e.rw == nil {
		return e.prober.RecvProbeAny()
	}
	inst, err := e.prober.RecvWaitAny(e.stop.Ctx)
	if err != nil {
		return nil, e.stop.Why(err)
	}
	return inst, nil
}

// smallLat is a ping-pong on the small track.
type smallLat struct {
	out, in smallEnd
	sp      bench.Spinner
	left    int // receives still to be posted
}

func (x *smallLat) run(j *bench.Round) error {
	x.sp, x.left = j.Spinner(), j.N
	if err := x.post(); err != nil {
		return err
	}
	return j.Batches(func(from, to uint64) error {
		for i := from; i < to; i++ {
			if j.Lead {
				if err := x.send(i); err != nil {
					return err
				}
				if err := x.recv(^i); err != nil {
					return err
				}
				continue
			}
			if err := x.recv(i); err != nil {
				return err
			}
			if err := x.send(^i); err != nil {
				return err
			}
		}
		return nil
	})
}

// post posts the next receive ahead of the message, unless messages come in
// the driver's buffers or are probed for first.
func (x *smallLat) post() error {
	if x.in.br != nil || x.in.prober != nil || x.left == 0 {
		return nil
	}
	x.left--
	return x.in.inst.RecvPost(&x.in.slots[0].p)
}

func (x *smallLat) send(seq uint64) error {
	e, sp := &x.out, &x.sp
	if e.bs != nil {
		for {
			err := e.bs.SendBufGet(&e.buf)
			if err == nil {
				break
			}
			if err != driver.ErrBusy {
				return err
			}
			if err := sp.Miss(); err != nil {
				return err
			}
		}
		e.make(e.buf.Buf[:e.size], seq)
		if err := e.bs.SendBufPost(&e.buf, e.size); err != nil {
			return err
		}
		return e.sent(&e.buf, sp)
	}
	s := &e.slots[0]
	e.make(s.buf, seq)
	for {
		err := e.inst.SendPost(&s.p)
		if err == nil {
			break
		}
		if err != driver.ErrBusy {
			return err
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
	return e.sent(&s.p, sp)
}

// sent waits until a send is done. Usually it is done at once.
func (e *smallEnd) sent(p *driver.Packet, sp *bench.Spinner) error {
	for {
		done, err := e.inst.SendPoll(p)
		if done || err != nil {
			return err
		}
		if e.sw != nil {
			return e.stop.Why(e.sw.SendWait(e.stop.Ctx, p))
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
}

func (x *smallLat) recv(seq uint64) error {
	e, sp := &x.in, &x.sp
	p := &e.buf
	if e.prober != nil {
		if err := e.probe(sp); err != nil {
			return err
		}
	}
	if e.br == nil {
		p = &e.slots[0].p
		if e.prober != nil {
			if err := e.inst.RecvPost(p); err != nil {
				return err
			}
		}
	}
	if err := e.take(p, sp); err != nil {
		return err
	}
	if e.br == nil {
		if err := e.got(e.slots[0].buf[:min(p.N, e.size)], seq); err != nil {
			return err
		}
		return x.post()
	}
	if err := e.got(p.Buf[:p.N], seq); err != nil {
		return err
	}
	return e.br.RecvBufRelease(p)
}

// take waits until a receive is done.
func (e *smallEnd) take(p *driver.Packet, sp *bench.Spinner) error {
	if e.rw != nil {
		return e.stop.Why(e.rw.RecvWait(e.stop.Ctx, p))
	}
	for {
		done, err := e.inst.RecvPoll(p)
		if done || err != nil {
			return err
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
}
