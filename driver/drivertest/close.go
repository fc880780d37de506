package drivertest

import (
	"context"
	"errors"

	"github.com/bywash/bywash/driver"
)

// rolePartner sends n messages and disconnects while they are pending.
var rolePartner = role("send-and-leave", func(e *end) {
	var n int
	e.args(&n)
	c := e.parent.connectPeer()
	var open []*driver.Packet
	taken := 0
	for taken < n {
		q := packet(make([]byte, 1000))
		fill(q.IOV[0], uint64(taken))
		c.takeRdv(q)
		var err error
		if err = c.i.SendPost(q); err == driver.ErrBusy {
			break
		}
		e.noErr("send", err)
		if e.large {
			c.posted(q)
		}
		open = append(open, q)
		taken++
	}
	e.parent.sendNote("taken", taken)
	e.until("disconnect", func() bool {
		c.pump()
		err := c.i.Disconnect()
		if err != nil && err != driver.ErrBusy {
			e.Fatalf("disconnect with sends pending: %v, want exactly ErrBusy", err)
		}
		for k := 0; err != nil && k < len(open); k++ {
			if done, err := c.i.SendPoll(open[k]); done {
				e.noErr("send that was pending at disconnect", err)
				open = append(open[:k], open[k+1:]...)
				k--
			}
		}
		return err == nil
	})
	e.ended(c, driver.ErrClosed)
	e.parent.sync()
})

func checkDisconnectDelivers(e *end) {
	n := min(e.caps.SendDepth, 64)
	if e.large {
		n = min(n, e.caps.RecvDepth)
	}
	p, c := e.pair(rolePartner, n)
	w := newWindow(c, n, 1000)
	if e.large {
		for _, q := range w.packets {
			c.postRecv(q)
		}
	}
	var taken int
	p.recvNote("taken", &taken)
	for k, q := range w.packets[:taken] {
		if !e.large {
			c.postRecv(q)
		}
		c.endRecv(q)
		if err := verify(q.IOV[0][:q.N], uint64(k)); err != nil || q.N != 1000 {
			e.Fatalf("message %d of %d, pending at disconnect: %d bytes, %v", k, taken, q.N, err)
		}
	}
	q := packet(make([]byte, 1000))
	err := c.i.RecvPost(q)
	if err == nil {
		err = c.recvErr(q)
	}
	e.wantErr("receive after the peer has disconnected in order", err, driver.ErrClosed)
	if errors.Is(err, driver.ErrBroken) {
		e.Errorf("an orderly end counts as broken: %v", err)
	}
	e.until("send fails after the peer has disconnected", func() bool {
		q := packet(make([]byte, 8))
		if e.large {
			q.RdvData = make([]byte, e.caps.RdvSize)
			err = c.i.SendPost(q)
			return err != nil // ErrInvalid is in order, as no rdv data is right
		}
		if err = c.i.SendPost(q); err == nil {
			err = c.sendErr(q)
		}
		return err != nil && err != driver.ErrBusy
	})
	if !e.large {
		e.wantErr("send after the peer has disconnected in order", err, driver.ErrClosed)
	}
	e.noErr("disconnect after the peer's", c.i.Disconnect())
	e.ended(c, driver.ErrClosed)
	p.sync()
	p.join()
}

// ended checks that every call on an instance that ended returns want.
func (e *end) ended(c *conn, want error) {
	e.Helper()
	ctx, cancel := e.bound()
	defer cancel()
	check := func(what string, err error) {
		e.Helper()
		e.wantErr(what+" on an instance that ended", err, want)
	}
	poll := func(f func(*driver.Packet) (bool, error)) error {
		done, err := f(packet(make([]byte, 8)))
		if !done {
			return errors.New("not done")
		}
		return err
	}
	check("send", c.i.SendPost(packet(make([]byte, 8))))
	check("receive", c.i.RecvPost(packet(make([]byte, 8))))
	check("poll of a send", poll(c.i.SendPoll))
	check("poll of a receive", poll(c.i.RecvPoll))
	check("cancel", c.i.RecvCancel(packet(make([]byte, 8))))
	check("connect wait", c.i.ConnectWait(ctx))
	check("disconnect", c.i.Disconnect())
	if b, ok := c.i.(driver.BufferSender); ok {
		check("get a send buffer", b.SendBufGet(&driver.Packet{}))
	}
	if f, ok := c.i.(driver.Prefetcher); ok {
		check("prefetch send", f.SendPrefetch(packet(make([]byte, 8))))
		check("prefetch receive", f.RecvPrefetch(packet(make([]byte, 8))))
	}
	if w, ok := c.i.(driver.RecvWaiter); ok {
		check("receive wait", w.RecvWait(ctx, packet(make([]byte, 8))))
	}
	if w, ok := c.i.(driver.SendWaiter); ok {
		check("send wait", w.SendWait(ctx, packet(make([]byte, 8))))
	}
	if o, ok := c.i.(driver.OneSided); ok {
		check("flush", o.Flush(ctx))
		check("fence", o.Fence())
		_, err := o.Import(make([]byte, 8))
		check("import", err)
	}
}

func checkClose(e *end) {
	p, c := e.pair(roleGetsClose, nil)
	q := packet(make([]byte, 64))
	setCanary(q.IOV[0])
	e.noErr("post receive", c.i.RecvPost(q))
	p.recvNote("posted", nil)
	e.noErr("close", e.bounded("close", e.ctx.Close))
	e.wantErr("second close", e.ctx.Close(), driver.ErrClosed)
	done, err := c.i.RecvPoll(q)
	if !done || !errors.Is(err, driver.ErrClosed) {
		e.Errorf("receive that was posted when the context closed: done %v, error %v; want done with %v", done, err, driver.ErrClosed)
	}
	e.ended(c, driver.ErrClosed)
	_, err = e.ctx.Connect(c.i.Peer())
	e.wantErr("connect on a closed context", err, driver.ErrClosed)
	if w, ok := e.ctx.(driver.Prober); ok {
		_, err := w.RecvProbeAny()
		e.wantErr("probe on a closed context", err, driver.ErrClosed)
		_, err = w.RecvWaitAny(context.Background())
		e.wantErr("wait on a closed context", err, driver.ErrClosed)
	}
	if r, ok := e.ctx.(driver.Registrar); ok {
		_, err := r.Register(make([]byte, 4096), allAccess)
		e.wantErr("register on a closed context", err, driver.ErrClosed)
	}
	p.join()
}

// roleGetsClose waits for the other side to close its context.
var roleGetsClose = role("gets-close", func(e *end) {
	c := e.parent.connectPeer()
	q := packet(make([]byte, 64))
	e.noErr("post receive", c.i.RecvPost(q))
	e.parent.sendNote("posted", nil)
	err := c.recvErr(q)
	e.wantErr("receive when the peer closed its context", err, driver.ErrClosed)
	if errors.Is(err, driver.ErrBroken) {
		e.Errorf("an orderly end counts as broken: %v", err)
	}
	e.noErr("disconnect", c.i.Disconnect())
})
