package toy

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// usable checks what all posts check. It is called locked.
func (i *instance) usable(p *driver.Packet) error {
	switch {
	case i.state == closed && i.c.fault != "zombie":
		return driver.ErrClosed
	case i.state == connecting, i.state == up && !i.waited:
		if i.c.fault != "early-post" {
			return fmt.Errorf("%w: not connected yet", driver.ErrInvalid)
		}
	}
	if p == nil {
		return nil
	}
	if ph := p.Driver.Phase; ph != driver.Idle && ph != driver.Prefetched {
		return fmt.Errorf("%w: packet is in use", driver.ErrInvalid)
	}
	if n := i.c.prop.Capabilities.MaxIOV; len(p.IOV) > n {
		return fmt.Errorf("%w: %d pieces, limit is %d", driver.ErrInvalid, len(p.IOV), n)
	}
	if i.c.fault == "prefetch-any-layout" {
		return nil
	}
	return checkPrefetch(p)
}

// SendPost implements driver.Instance.
func (i *instance) SendPost(p *driver.Packet) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.post(p, nil, p.Len())
}

func (i *instance) post(p *driver.Packet, buf []byte, n int) error {
	if err := i.usable(p); err != nil {
		return wrap("send", i.peer, err)
	}
	if n > i.c.prop.Capabilities.MaxMessage && i.c.fault != "long-accepted" {
		return wrap("send", i.peer, driver.ErrTooLong)
	}
	f := frame{h: header{kind: msgFrame, len: uint32(n)}, p: p, buf: buf}
	if i.c.prop.Track == driver.Large {
		if err := i.readRdv(&f.h, p.RdvData, n); err != nil {
			return wrap("send", i.peer, err)
		}
	}
	switch {
	case i.state == gone:
		return wrap("send", i.peer, i.err)
	case i.bufOut != nil:
		return wrap("send", i.peer, fmt.Errorf("%w: a buffer is out", driver.ErrInvalid))
	case i.sends >= depth:
		i.c.n.busy.Add(1)
		if i.c.fault == "busy-takes" {
			i.sendq = append(i.sendq, frame{h: f.h, p: &driver.Packet{IOV: p.IOV, Data: p.Data}})
			i.sends++
		}
		return driver.ErrBusy
	}
	if i.c.fault == "alloc" {
		i.stale = make([]byte, 16)
	}
	p.Driver.Phase, p.Driver.Err, p.Driver.Prefetch = driver.Posted, nil, nil
	i.sends++
	i.posts++
	if i.c.fault == "lose-every-7th" && i.posts%7 == 0 {
		i.finish(p, nil)
		return nil
	}
	i.sendq = append(i.sendq, f)
	i.work.Signal()
	return nil
}

// SendPoll implements driver.Instance.
func (i *instance) SendPoll(p *driver.Packet) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.outcome("send", p)
}

// outcome hands over what is done. It is called locked.
func (i *instance) outcome(op string, p *driver.Packet) (bool, error) {
	switch p.Driver.Phase {
	case driver.Done:
		p.Driver.Phase = driver.Idle
		err := p.Driver.Err
		return true, wrap(op, i.peer, err)
	case driver.Posted:
		return false, nil
	}
	if i.state == closed {
		return true, wrap(op, i.peer, driver.ErrClosed)
	}
	return true, wrap(op, i.peer, fmt.Errorf("%w: packet is not posted", driver.ErrInvalid))
}

// SendWait implements driver.SendWaiter.
func (i *instance) SendWait(ctx context.Context, p *driver.Packet) error {
	for {
		if done, err := i.SendPoll(p); done {
			return err
		}
		if err := i.wait(ctx); err != nil {
			return err
		}
	}
}

// SendBufGet implements driver.BufferSender.
func (i smallInstance) SendBufGet(p *driver.Packet) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.usable(p); err != nil {
		return wrap("send", i.peer, err)
	}
	switch {
	case i.state == gone:
		return wrap("send", i.peer, i.err)
	case i.bufOut != nil:
		return wrap("send", i.peer, fmt.Errorf("%w: a buffer is out", driver.ErrInvalid))
	case i.sends >= depth:
		i.c.n.busy.Add(1)
		return driver.ErrBusy
	}
	p.Buf = i.alloc(bufferSize)
	p.Driver.Phase = driver.BufferOut
	i.bufOut = p
	return nil
}

// SendBufPost implements driver.BufferSender.
func (i smallInstance) SendBufPost(p *driver.Packet, n int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state == closed {
		return wrap("send", i.peer, driver.ErrClosed)
	}
	if i.bufOut != p || n > len(p.Buf) {
		return wrap("send", i.peer, driver.ErrInvalid)
	}
	if n < 0 && i.c.fault == "buffer-late" {
		n = 1
	}
	buf := p.Buf
	i.bufOut, p.Buf, p.Driver.Phase = nil, nil, driver.Idle
	if n < 0 {
		i.free(buf)
		return nil
	}
	return i.post(p, buf, n)
}

// arrive takes a message from the wire.
func (i *instance) arrive(m message) {
	to := i
	if i.c.fault == "cross-talk" && len(m.data) > 0 && m.data[0]%16 == 1 {
		i.c.mu.Lock()
		for o := range i.c.insts {
			if o != i {
				to = o
			}
		}
		i.c.mu.Unlock()
	}
	to.mu.Lock()
	if m.ticket != 0 && !to.awaits(m.ticket) { // the receive was cancelled
		to.ctrl = append(to.ctrl, frame{h: header{kind: creditFrame, a: 1}})
		to.work.Signal()
		to.mu.Unlock()
		i.free(m.data)
		return
	}
	to.inbox = append(to.inbox, m)
	name := !to.named
	to.mu.Unlock()
	to.ring()
	if name {
		i.c.enqueue(to)
	}
}

// awaits reports whether a receive with that ticket is posted. It is called locked.
func (i *instance) awaits(ticket uint64) bool {
	for _, p := range i.posted {
		if p.Driver.Ticket == ticket {
			return true
		}
	}
	return false
}

// claim is called by a probe: it reports whether a receive succeeds at once, or
// fails at once and nobody was told.
func (i *instance) claim() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	again := i.c.fault == "probe-twice"
	if len(i.inbox) > 0 && i.state != closed && (!i.named || again) {
		i.named = !again
		if again {
			i.c.enqueue(i)
		}
		return true
	}
	if i.state == gone && !i.ended1 && len(i.inbox) == 0 {
		i.ended1 = true
		return true
	}
	return false
}

// take removes the message for p from the inbox. It is called locked.
func (i *instance) take(ticket uint64) (m message, ok bool) {
	for k := range i.inbox {
		if i.inbox[k].ticket == ticket {
			m = i.inbox[k]
			i.inbox = append(i.inbox[:k], i.inbox[k+1:]...)
			i.named = false
			if len(i.inbox) > 0 && i.c.fault != "probe-forgets" || i.state == gone {
				i.c.enqueue(i)
			}
			i.ctrl = append(i.ctrl, frame{h: header{kind: creditFrame, a: 1}})
			i.work.Signal()
			i.c.n.received.Add(1)
			i.c.n.bytesReceived.Add(uint64(len(m.data)))
			return m, true
		}
	}
	return m, false
}

// progress gives messages to posted receives. It is called locked.
func (i *instance) progress() {
	for k := 0; k < len(i.posted); {
		p := i.posted[k]
		m, ok := i.take(p.Driver.Ticket)
		if !ok && i.c.prop.Track == driver.Small {
			break
		}
		if !ok {
			k++
			continue
		}
		i.posted = append(i.posted[:k], i.posted[k+1:]...)
		i.deliver(p, m)
	}
	if i.state == gone {
		for _, p := range i.posted {
			p.Driver.Phase, p.Driver.Err = driver.Done, i.err
		}
		i.posted = i.posted[:0]
	}
}

func (i *instance) deliver(p *driver.Packet, m message) {
	if i.stale != nil {
		copy(i.stale, m.data)
	}
	c := p.Cursor()
	p.N = c.Scatter(m.data)
	p.Driver.Phase, p.Driver.Err = driver.Done, nil
	if p.N < len(m.data) && i.c.fault != "truncate-silently" {
		p.Driver.Err = &driver.TruncatedError{Message: len(m.data), Buffer: p.N}
		i.c.n.truncated.Add(1)
	}
	if i.c.fault == "overrun" && p.N > 0 {
		c := p.Cursor()
		b := c.Next(p.N)
		*(*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b))) ^= 1
	}
	delete(i.updates, p)
	i.free(m.data)
}

// RecvPost implements driver.Instance.
func (i *instance) RecvPost(p *driver.Packet) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.usable(p); err != nil {
		return wrap("receive", i.peer, err)
	}
	switch {
	case i.state == gone && len(i.inbox) <= len(i.posted):
		return wrap("receive", i.peer, i.err)
	case len(i.posted) >= depth:
		i.c.n.busy.Add(1)
		return driver.ErrBusy
	}
	p.Driver.Phase, p.Driver.Err, p.Driver.Prefetch, p.Driver.Ticket = driver.Posted, nil, nil, 0
	if i.c.prop.Track == driver.Large {
		i.writeRdv(p)
	}
	i.posted = append(i.posted, p)
	return nil
}

// RecvPoll implements driver.Instance.
func (i *instance) RecvPoll(p *driver.Packet) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p.Driver.Phase == driver.Idle && i.c.prop.Capabilities.BufferRecv && i.state != closed {
		return i.pollBuffer(p)
	}
	if i.recvOut == nil {
		i.progress()
	}
	return i.outcome("receive", p)
}

func (i *instance) pollBuffer(p *driver.Packet) (bool, error) {
	if i.recvOut != nil || len(i.posted) > 0 {
		return false, nil
	}
	m, ok := i.take(0)
	if !ok {
		if i.state == gone {
			return true, wrap("receive", i.peer, i.err)
		}
		return false, nil
	}
	p.Buf, p.N = m.data, len(m.data)
	p.Driver.Phase = driver.BufferOut
	i.recvOut = p
	return true, nil
}

// RecvBufRelease implements driver.BufferReceiver.
func (i smallInstance) RecvBufRelease(p *driver.Packet) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state == closed {
		return wrap("release", i.peer, driver.ErrClosed)
	}
	if i.recvOut != p {
		return wrap("release", i.peer, driver.ErrInvalid)
	}
	i.free(p.Buf)
	i.recvOut, p.Buf, p.Driver.Phase = nil, nil, driver.Idle
	return nil
}

// RecvWait implements driver.RecvWaiter.
func (i *instance) RecvWait(ctx context.Context, p *driver.Packet) error {
	for {
		if done, err := i.RecvPoll(p); done {
			return err
		}
		if err := i.wait(ctx); err != nil {
			return err
		}
	}
}

// RecvCancel implements driver.Instance.
func (i *instance) RecvCancel(p *driver.Packet) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state == closed {
		return wrap("cancel", i.peer, driver.ErrClosed)
	}
	for k, o := range i.posted {
		if o != p {
			continue
		}
		i.posted = append(i.posted[:k], i.posted[k+1:]...)
		i.c.n.canceled.Add(1)
		delete(i.updates, p)
		if i.c.fault == "cancel-deaf" {
			return nil
		}
		if b, ok := p.Contiguous(); ok && i.c.fault == "write-after-cancel" {
			i.stale = b
		}
		p.Driver.Phase, p.Driver.Err = driver.Done, driver.ErrCanceled
		return nil
	}
	if p.Driver.Phase == driver.Done {
		return nil
	}
	return wrap("cancel", i.peer, fmt.Errorf("%w: packet is not posted", driver.ErrInvalid))
}
