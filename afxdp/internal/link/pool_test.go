package link

import (
	"errors"
	"testing"
	"time"
)

// If handlers never release the frames of some connections, as many others as frames are kept for can nevertheless be
// made, and work. A connection beyond the room is refused at once.
func TestConnectionsHaveTheirShareWhateverOthersHold(t *testing.T) {
	const conns, stalled = 40, 10
	seedsOf(t, 10, func(t *testing.T, seed uint64) {
		w := faultless()
		w.loss, w.reorder, w.late = 0.01, 0.05, 50_000
		w.sendFrames, w.idle = 20_000, 20_000
		s := newSim(t, seed, w)
		s.seldom = 16
		pool := NewPool(2*conns*minShare, conns*minShare)
		s.addHost(Config{DeadTime: time.Second, Pool: pool})
		s.addHost(Config{DeadTime: time.Second})
		var stuck []*simConn
		for range stalled {
			x, y := s.connect(0, 1)
			y.load(2000, 0, 100)
			stuck = append(stuck, x)
		}
		for _, x := range stuck { // their shares grow, and then nothing is released any more
			s.run(s.now+20e9, func() bool { return x.gotMsgs > 500 })
			x.stuck = true
		}
		s.pass(200e6)
		held := pool.Reserved()
		if held <= stalled*minShare {
			s.fail("%d frames are held, no more than the shares", held)
		}
		var rest []*simConn
		for range conns - stalled {
			x, y := s.connect(0, 1)
			x.load(20, 0, 2000)
			y.load(20, 0, 2000)
			rest = append(rest, x, y)
		}
		s.run(s.now+20e9, func() bool {
			for _, x := range rest {
				if !x.done() {
					return false
				}
			}
			return true
		})
		s.each(func(x *simConn) {
			if x.err != nil {
				s.fail("conn %d: %v", x.name, x.err)
			}
		})
		more := 0
		var calls []*Conn
		for ; more <= conns*4; more++ {
			c, err := s.hosts[0].e.Listen(s.now, 2, 99, nil, nil)
			if err != nil {
				if !errors.Is(err, errFull) {
					s.fail("call %d: %v, want %v", more, err, errFull)
				}
				break
			}
			calls = append(calls, c)
		}
		if more > conns*4 {
			s.fail("%d connections have %d frames each", conns+more, minShare)
		}
		for _, c := range calls {
			c.Close(s.now, true)
		}
		for _, x := range stuck {
			x.stuck = false
		}
		s.run(s.now+20e9, func() bool {
			for _, x := range stuck {
				if !x.twin.done() {
					return false
				}
			}
			return true
		})
		s.finish()
	})
}

// A handler that releases frames at the end of messages gets messages that take more fragments than the first credit,
// also after a pause.
func TestMessagesLongerThanTheShareArrive(t *testing.T) {
	const longest = 8 << 10
	seedsOf(t, 50, func(t *testing.T, seed uint64) {
		w := faultless()
		w.mtu, w.idle = MinMTU, 20_000
		if seed%2 == 0 {
			w.loss, w.reorder, w.late = 0.05, 0.05, 50_000
		}
		s := newSim(t, seed, w)
		s.addHost(Config{DeadTime: time.Second})
		s.addHost(Config{DeadTime: time.Second})
		x, y := s.connect(0, 1)
		x.atEnd = true
		for _, pause := range []Time{1e6, 10e6, 200e6} {
			for range 3 {
				y.load(2, 0, 400)
				m := simMessage{s.rnd.Uint64(), longest}
				y.out, x.expect = append(y.out, m), append(x.expect, m)
				s.run(s.now+10e9, y.done)
				s.pass(pause)
			}
		}
		if x.err != nil || y.err != nil {
			s.fail("%v, %v", x.err, y.err)
		}
		s.finish()
	})
}
