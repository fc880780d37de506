package drivertest

import "github.com/bywash/bywash/driver"

// roleBusy waits until the test has met ErrBusy, and then receives everything.
var roleBusy = role("busy", func(e *end) {
	c := e.parent.connectPeer()
	if e.large {
		n := e.caps.SendDepth
		w := newWindow(c, n, 64)
		for _, p := range w.packets {
			c.postRecv(p)
		}
		for _, p := range w.packets {
			c.endRecv(p)
		}
		e.parent.sync()
		return
	}
	var n int
	e.parent.recvNote("sent", &n)
	newWindow(c, 1, 64).recvRun(n, 64, 0)
	e.parent.sync()
	// No further message arrives: a post that failed with ErrBusy was not taken.
	c.swaps(0)
})

func checkBusy(e *end) {
	p, c := e.pair(roleBusy, nil)
	e.recvBusy(c)
	before := e.counters().Busy
	var sent []*driver.Packet
	if e.large {
		// The peer posts no more than this; see that all go through.
		for range e.caps.SendDepth {
			q := packet(make([]byte, 64))
			c.takeRdv(q)
			e.noErr("send within the depth", c.i.SendPost(q))
			c.posted(q)
			sent = append(sent, q)
		}
	} else {
		var total int
		total, sent = e.fillUp(c)
		if got := e.counters().Busy; got == before {
			e.Errorf("counter of busy posts: still %d", got)
		}
		p.sendNote("sent", total)
	}
	for _, q := range sent {
		c.endSend(q)
	}
	p.sync()
	if !e.large {
		c.swaps(0)
	}
	p.join()
}

// fillUp sends, to a peer that receives nothing, until sends stay unfinished
// and a post returns ErrBusy. It returns how many messages were taken, and those
// that are unfinished.
func (e *end) fillUp(c *conn) (total int, open []*driver.Packet) {
	e.Helper()
	e.until("a full queue", func() bool {
		q := packet(make([]byte, 64))
		fill(q.IOV[0], uint64(total))
		switch err := c.i.SendPost(q); err {
		case nil:
			total, open = total+1, append(open, q)
		case driver.ErrBusy:
			if len(open) == 0 {
				return true
			}
			return e.stuck(c, &open)
		default:
			e.Fatalf("send to a peer that does not receive: %v", err)
		}
		if total > 1<<22 {
			e.Fatalf("%d messages of 64 bytes were taken and the queue is not full", total)
		}
		return false
	})
	if len(open) > e.caps.SendDepth {
		e.Fatalf("%d sends are unfinished, SendDepth is %d", len(open), e.caps.SendDepth)
	}
	for range 10 {
		if err := c.i.SendPost(packet(make([]byte, 64))); err != driver.ErrBusy {
			e.Fatalf("send to a full queue: %v, want exactly ErrBusy", err)
		}
	}
	return total, open
}

// stuck polls the open sends and reports whether none is done any more.
func (e *end) stuck(c *conn, open *[]*driver.Packet) bool {
	e.Helper()
	return !e.within(moment, func() bool {
		for k, q := range *open {
			done, err := c.i.SendPoll(q)
			e.noErr("poll send", err)
			if done {
				*open = append((*open)[:k:k], (*open)[k+1:]...)
				return true
			}
		}
		return false
	})
}

// recvBusy posts receives until the queue is full, and takes them back.
func (e *end) recvBusy(c *conn) {
	e.Helper()
	w := newWindow(c, e.caps.RecvDepth, 64)
	for k, q := range w.packets {
		if err := c.i.RecvPost(q); err != nil {
			e.Fatalf("receive %d of RecvDepth, %d: %v", k+1, e.caps.RecvDepth, err)
		}
	}
	if err := c.i.RecvPost(packet(make([]byte, 64))); err != driver.ErrBusy {
		e.Fatalf("receive beyond RecvDepth: %v, want exactly ErrBusy", err)
	}
	for _, q := range w.packets {
		e.noErr("cancel", c.i.RecvCancel(q))
	}
	for _, q := range w.packets {
		e.wantErr("cancelled receive", c.recvErr(q), driver.ErrCanceled)
	}
}
