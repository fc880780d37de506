//go:build linux

package workload

import (
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// flow is one direction of a throughput test. A step does as much as is possible now, many messages at a time, so that
// both directions can share a loop.
type flow interface {
	begin(n int)
	step() (moved bool, err error)
	done() bool
	// sleep blocks until something may have changed, for --wait block.
	sleep(s *bench.Stopper) error
}

// burst bounds a step, so that the other direction gets its turn.
const burst = 64

// nap is how long a process sleeps that must wait for two events at once, or for room, for which the contract has no
// wait.
const nap = 20 * time.Microsecond

// stream runs bw, rate and bibw on either track.
func (l *link) stream(j *bench.Round) error {
	start := time.Now()
	var active []flow
	if j.Lead || j.Test == bench.BiBW {
		l.snd.begin(j.N)
		active = append(active, l.snd)
	}
	if !j.Lead || j.Test == bench.BiBW {
		l.rcv.begin(j.N)
		active = append(active, l.rcv)
	}
	if err := pump(j, allDone(active), active...); err != nil {
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

func allDone(flows []flow) func() bool {
	return func() bool {
		for _, f := range flows {
			if !f.done() {
				return false
			}
		}
		return true
	}
}

// pump makes progress on all flows until enough returns true. To wait it sleeps on a single flow, and naps with
// several.
func pump(j *bench.Round, enough func() bool, flows ...flow) error {
	sp := j.Spinner()
	for !enough() {
		moved := false
		for _, f := range flows {
			m, err := f.step()
			if err != nil {
				return err
			}
			moved = moved || m
		}
		switch {
		case moved:
			continue
		case j.Blocking() && len(flows) > 1:
			time.Sleep(nap)
		case j.Blocking():
			if err := flows[0].sleep(j.Stop); err != nil {
				return err
			}
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
	return nil
}

// smallSender sends n messages on the small track.
type smallSender struct {
	smallEnd
	n, sent, tail int // messages from tail to sent are in flight
}

func (x *smallSender) begin(n int) { x.n, x.sent, x.tail = n, 0, 0 }
func (x *smallSender) done() bool  { return x.tail == x.n }

func (x *smallSender) step() (bool, error) {
	if x.bs != nil {
		return x.stepBuffers()
	}
	moved := false
	for range burst {
		if x.tail < x.sent {
			done, err := x.inst.SendPoll(&x.slots[x.tail%len(x.slots)].p)
			if err != nil {
				return false, err
			}
			if done {
				x.tail++
				moved = true
			}
		}
		if x.sent == x.n || x.sent-x.tail == len(x.slots) {
			return moved, nil
		}
		s := &x.slots[x.sent%len(x.slots)]
		if x.validate {
			bench.Fill(s.buf, uint64(x.sent))
		}
		if err := x.inst.SendPost(&s.p); err != nil {
			return moved, unlessBusy(err)
		}
		x.sent++
		moved = true
	}
	return moved, nil
}

func (x *smallSender) stepBuffers() (bool, error) {
	bs, p := x.bs, &x.buf
	for i := range burst {
		if x.tail < x.sent {
			done, err := x.inst.SendPoll(p)
			if err != nil {
				return false, err
			}
			if !done {
				return i > 0, nil
			}
			x.tail++
		}
		if x.sent == x.n {
			return true, nil
		}
		if err := bs.SendBufGet(p); err != nil {
			return i > 0, unlessBusy(err)
		}
		x.make(p.Buf[:x.size], uint64(x.sent))
		if err := bs.SendBufPost(p, x.size); err != nil {
			return false, err
		}
		x.sent++
	}
	return true, nil
}

func (x *smallSender) sleep(s *bench.Stopper) error {
	if x.tail < x.sent {
		p := &x.slots[x.tail%len(x.slots)].p
		if x.bs != nil {
			p = &x.buf
		}
		if err := x.sw.SendWait(s.Ctx, p); err != nil {
			return s.Why(err)
		}
		x.tail++
		return nil
	}
	time.Sleep(nap)
	return nil
}

// smallReceiver receives n messages on the small track.
type smallReceiver struct {
	smallEnd
	n, posted, tail int
}

func (x *smallReceiver) begin(n int) { x.n, x.posted, x.tail = n, 0, 0 }
func (x *smallReceiver) done() bool  { return x.tail == x.n }

// ahead returns how many receives are posted before their messages arrive: none with a probe, which precedes the
// receive.
func (x *smallReceiver) ahead() int {
	if x.prober != nil {
		return 1
	}
	return len(x.slots)
}

func (x *smallReceiver) step() (bool, error) {
	for i := range burst {
		if x.tail == x.n {
			return true, nil
		}
		if x.prober != nil && x.posted == x.tail {
			inst, err := x.prober.RecvProbeAny()
			if err != nil {
				if err == driver.ErrAgain {
					return i > 0, nil
				}
				return false, err
			}
			if inst != x.inst {
				return false, errStrayPeer
			}
		}
		done, err := x.stepOne()
		if err != nil {
			return false, err
		}
		if !done {
			return i > 0, nil
		}
	}
	return true, nil
}

func (x *smallReceiver) stepOne() (bool, error) {
	if x.br != nil {
		done, err := x.inst.RecvPoll(&x.buf)
		if !done || err != nil {
			return false, err
		}
		return true, x.takeBuffer()
	}
	for x.posted < x.n && x.posted-x.tail < x.ahead() {
		if err := x.inst.RecvPost(&x.slots[x.posted%len(x.slots)].p); err != nil {
			if err == driver.ErrBusy {
				break
			}
			return false, err
		}
		x.posted++
	}
	if x.posted == x.tail {
		return false, nil
	}
	s := &x.slots[x.tail%len(x.slots)]
	done, err := x.inst.RecvPoll(&s.p)
	if !done || err != nil {
		return false, err
	}
	return true, x.takeSlot(s)
}

func (x *smallReceiver) takeBuffer() error {
	if err := x.got(x.buf.Buf[:x.buf.N], uint64(x.tail)); err != nil {
		return err
	}
	x.tail++
	return x.br.RecvBufRelease(&x.buf)
}

func (x *smallReceiver) takeSlot(s *slot) error {
	if err := x.got(s.buf[:min(s.p.N, len(s.buf))], uint64(x.tail)); err != nil {
		return err
	}
	x.tail++
	return nil
}

func (x *smallReceiver) sleep(s *bench.Stopper) error {
	switch {
	case x.prober != nil:
		// The next step probes again. A probe here would consume the name that it needs, so sleep for a short time
		// instead.
		time.Sleep(nap)
		return nil
	case x.br != nil:
		if err := x.rw.RecvWait(s.Ctx, &x.buf); err != nil {
			return s.Why(err)
		}
		return x.takeBuffer()
	case x.tail < x.posted:
		sl := &x.slots[x.tail%len(x.slots)]
		if err := x.rw.RecvWait(s.Ctx, &sl.p); err != nil {
			return s.Why(err)
		}
		return x.takeSlot(sl)
	}
	time.Sleep(nap)
	return nil
}
