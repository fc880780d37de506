//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// pipe carries bytes over a queue pair of its own. If the peer does not read, its device posts no receive, and this
// side's device repeats the send until it does: so Write waits. The goroutine pump handles completions.
type pipe struct {
	m      *rdmacm
	id     *ibv.CMID
	events chan *ibv.CMEvent

	channel *ibv.CompChannel
	cq      *ibv.CQ
	qp      *ibv.QP
	mr      *ibv.MR
	mem     []byte // recvSlots slots for receives, then sendSlots slots for sends
	pumping sync.WaitGroup
	once    sync.Once

	mu      sync.Mutex // guards the fields below
	changed *sync.Cond
	sends   *ibv.SendChain
	recvs   *ibv.RecvChain
	arrived []arrival // receives that were not read, oldest first
	free    []int     // slots for sends
	probing bool      // a keep-alive is under way
	gone    bool      // the connection manager has reported the end of the connection
	err     error     // why no more is received or sent; io.EOF if the peer has finished
	limit   time.Time
}

type arrival struct {
	slot int
	b    []byte // of the slot
}

const (
	slotBytes = 512
	recvSlots = 32
	sendSlots = 16
	spareWRs  = 4

	idKeepAlive = 1 << 20 // id of keep-alive work requests; the ids of others are slots
	rnrForEver  = 7       // value without a limit of retries while the peer has posted no receive
)

func newPipe(m *rdmacm, id *ibv.CMID) *pipe {
	c := &pipe{m: m, id: id, events: make(chan *ibv.CMEvent, 8)}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// event handles an event of the connection manager.
func (c *pipe) event(ev *ibv.CMEvent) {
	switch ev.Type {
	case ibv.CMDisconnected, ibv.CMDeviceRemoval, ibv.CMTimewaitExit:
		c.end()
	}
	select {
	case c.events <- ev:
	default:
	}
}

// end makes pump handle the last completions and stop.
func (c *pipe) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	if c.channel != nil {
		_ = c.channel.SetDeadline(time.Now().Add(-time.Second))
	}
}

// await waits for an event. If another event comes instead, await returns it with an error.
func (c *pipe) await(ctx context.Context, want ibv.CMEventType) (*ibv.CMEvent, error) {
	ctx, cancel := context.WithTimeout(ctx, c.m.stepTime())
	defer cancel()
	select {
	case ev := <-c.events:
		switch err := ev.Err(); {
		case ev.Type == want:
			return ev, nil
		case err != nil:
			return ev, err
		}
		return ev, fmt.Errorf("connection manager: %v instead of %v", ev.Type, want)
	case <-ctx.Done():
		return nil, fmt.Errorf("connection manager: await %v: %w", want, ctx.Err())
	}
}

func (c *pipe) param(data []byte) ibv.CMParam {
	return ibv.CMParam{Data: data, RetryCount: int(c.m.port.Quality.RetryCount), RNRRetryCount: rnrForEver}
}

// equip makes the queue pair, in state INIT, and posts its receives.
func (c *pipe) equip() error {
	info, err := c.id.Info()
	if err != nil {
		return err
	}
	if info.Device != c.m.port.Device {
		return fmt.Errorf("%w: rdmacm: the route to the peer uses device %s, not %s", driver.ErrUnsupported, info.Device, c.m.port.Device)
	}
	if err := c.allocate(); err != nil {
		return err
	}
	// Keep-alives are writes of 0 bytes, which need the right to write; the peer has no key of any memory.
	err = c.id.Step(c.qp, ibv.StateInit, func(a *ibv.StepAttr) { a.Access = ibv.AccessLocalWrite | ibv.AccessRemoteWrite })
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for slot := range recvSlots {
		if err := c.postReceive(slot); err != nil {
			return err
		}
	}
	for slot := range sendSlots {
		c.free = append(c.free, recvSlots+slot)
	}
	return nil
}

func (c *pipe) allocate() (err error) {
	channel, err := c.m.verbs.CreateCompChannel()
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.channel = channel
	c.mu.Unlock()
	const entries = recvSlots + sendSlots + spareWRs
	if c.cq, err = c.m.verbs.CreateCQ(entries, channel, 0); err != nil {
		return err
	}
	c.qp, err = c.m.pd.CreateQP(ibv.QPInit{SendCQ: c.cq, RecvCQ: c.cq,
		MaxSendWR: sendSlots + spareWRs, MaxRecvWR: recvSlots})
	if err != nil {
		return err
	}
	c.mem = make([]byte, (recvSlots+sendSlots)*slotBytes)
	if c.mr, err = c.m.pd.RegMR(c.mem, ibv.AccessLocalWrite); err != nil {
		return err
	}
	if c.sends, err = ibv.NewSendChain(1, 1, 0); err != nil {
		return err
	}
	c.recvs, err = ibv.NewRecvChain(1, 1)
	return err
}

// run takes the queue pair to RTS and starts pump.
func (c *pipe) run() error {
	q := c.m.port.Quality
	if err := c.id.Step(c.qp, ibv.StateRTR, func(a *ibv.StepAttr) { a.MinRNRTimer = int(q.MinRNRTimer) }); err != nil {
		return err
	}
	if err := c.id.Step(c.qp, ibv.StateRTS, func(a *ibv.StepAttr) { a.Timeout = int(q.AckTimeout) }); err != nil {
		return err
	}
	c.pumping.Go(c.pump)
	return nil
}

func (c *pipe) slot(n int) []byte { return c.mem[n*slotBytes : (n+1)*slotBytes] }

func (c *pipe) addr(n int) uint64 { return uint64(uintptr(unsafe.Pointer(&c.mem[n*slotBytes]))) }

// postReceive posts a slot. The caller holds mu.
func (c *pipe) postReceive(slot int) error {
	c.recvs.Reset()
	w := c.recvs.Next()
	w.ID = uint64(slot)
	w.AddSGE(c.addr(slot), slotBytes, c.mr.LKey())
	_, err := c.qp.PostRecv(c.recvs)
	return err
}

// pump handles completions until the connection ends, and sends keep-alives, which detect hosts that are gone. The
// device answers for a stopped process.
func (c *pipe) pump() {
	probe := time.NewTicker(max(c.m.timeout/3, 100*time.Millisecond))
	defer probe.Stop()
	stop := make(chan struct{})
	c.pumping.Go(func() {
		for {
			select {
			case <-probe.C:
				c.probe()
			case <-stop:
				return
			}
		}
	})
	err := c.take()
	close(stop)
	c.mu.Lock()
	c.err = err
	c.changed.Broadcast()
	c.mu.Unlock()
}

// take handles completions until the connection ends, and returns the reason.
func (c *pipe) take() error {
	var wcs [16]ibv.WC
	for {
		c.mu.Lock()
		gone := c.gone // read before the last poll, which finds all completions from before the end
		c.mu.Unlock()
		if err := c.cq.ReqNotify(false); err != nil {
			return err
		}
		n := len(wcs)
		for n == len(wcs) {
			var err error
			if n, err = c.cq.Poll(wcs[:]); err != nil {
				return err
			}
			if err := c.complete(wcs[:n]); err != nil {
				return err
			}
		}
		if gone {
			return io.EOF
		}
		// The deadline passes once the connection is gone: then the last poll follows.
		if _, err := c.channel.Wait(context.Background()); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

func (c *pipe) complete(wcs []ibv.WC) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range wcs {
		wc := &wcs[k]
		if err := wc.Err(); err != nil {
			if c.gone {
				return io.EOF
			}
			return err
		}
		switch slot := int(wc.ID); {
		case wc.Opcode.IsRecv():
			c.arrived = append(c.arrived, arrival{slot, c.slot(slot)[:min(wc.ByteLen, slotBytes)]})
		case wc.ID == idKeepAlive:
			c.probing = false
		default:
			c.free = append(c.free, slot)
		}
	}
	if len(wcs) > 0 {
		c.changed.Broadcast()
	}
	return nil
}

func (c *pipe) probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probing {
		return
	}
	c.sends.Reset()
	w := c.sends.Next()
	w.ID, w.Flags = idKeepAlive, ibv.SendSignaled
	w.Write(0, 0)
	_, err := c.qp.PostSend(c.sends)
	c.probing = err == nil
}

// wait sleeps until ok returns true, the connection ends, or the deadline passes. The caller holds mu.
func (c *pipe) wait(ok func() bool) error {
	for {
		switch {
		case !c.limit.IsZero() && !time.Now().Before(c.limit):
			return os.ErrDeadlineExceeded
		case ok():
			return nil
		case c.err != nil:
			return c.err
		}
		c.changed.Wait()
	}
}

// Write implements stream. It blocks while the peer does not read.
func (c *pipe) Write(b []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(b) > 0 {
		if err := c.wait(func() bool { return len(c.free) > 0 && c.err == nil }); err != nil {
			return n, err
		}
		slot := c.free[0]
		c.free = c.free[1:]
		k := copy(c.slot(slot), b)
		c.sends.Reset()
		w := c.sends.Next()
		w.ID, w.Flags = uint64(slot), ibv.SendSignaled
		w.Send()
		w.AddSGE(c.addr(slot), uint32(k), c.mr.LKey())
		if _, err := c.qp.PostSend(c.sends); err != nil {
			return n, err
		}
		b, n = b[k:], n+k
	}
	return n, nil
}

func (c *pipe) Read(b []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.wait(func() bool { return len(c.arrived) > 0 }); err != nil {
		return 0, err
	}
	a := &c.arrived[0]
	n = copy(b, a.b)
	if a.b = a.b[n:]; len(a.b) == 0 {
		slot := a.slot
		c.arrived = c.arrived[1:]
		if c.err == nil {
			_ = c.postReceive(slot) // fails if the queue pair has failed: pump records the reason
		}
	}
	return n, nil
}

func (c *pipe) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = t
	c.changed.Broadcast()
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.changed.Broadcast()
		})
	}
	return nil
}

// CloseWrite implements stream. It waits, at most finishTime, until the peer's device has all bytes.
func (c *pipe) CloseWrite() error {
	_ = c.SetDeadline(time.Now().Add(finishTime))
	c.mu.Lock()
	_ = c.wait(func() bool { return len(c.free) == sendSlots })
	c.mu.Unlock()
	return c.id.Disconnect()
}

func (c *pipe) Close() error {
	c.once.Do(func() {
		c.end()
		if c.qp != nil {
			_ = c.id.Disconnect()
		}
		c.pumping.Wait()
		c.mu.Lock()
		if c.err == nil {
			c.err = io.ErrClosedPipe
		}
		c.changed.Broadcast()
		c.mu.Unlock()
		if c.qp != nil {
			_ = c.qp.Close()
		}
		if c.mr != nil {
			_ = c.mr.Close()
		}
		if c.cq != nil {
			_ = c.cq.Close()
		}
		if c.channel != nil {
			_ = c.channel.Close()
		}
		_ = c.id.Close()
		c.m.forget(c.id)
	})
	return nil
}
