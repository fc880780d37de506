package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// rdmaConn carries frames over a queue pair of its own. A frame is one send; its
// immediate data tells how many the sender has taken in all, so that a receive is
// always posted: at most window frames are on their way. An empty frame only
// tells. The number is read while posting is held, so that on a queue pair, which
// keeps the order of sends, it never goes back.
type rdmaConn struct {
	m      *rdmaModule
	id     *ibv.CMID
	events chan *ibv.CMEvent

	channel *ibv.CompChannel
	cq      *ibv.CQ
	qp      *ibv.QP
	mr      *ibv.MR
	mem     []byte // recvSlots slots for receives, then window for sends

	posting sync.Mutex // guards what is used for posting
	sends   *ibv.SendChain
	recvs   *ibv.RecvChain
	told    uint32 // how many frames the peer knows to be taken

	taken atomic.Uint32 // frames given to the caller

	polling sync.Mutex // guards what is used for polling; taken before posting
	wcs     [16]ibv.WC
	arrived []arrival // frames that were not returned yet, oldest first
	free    int       // slots for sends
	sent    uint32    // frames, empty ones not counted
	peerHas uint32    // how many of them the peer has taken
	changed *sync.Cond

	held  int // slot that the last receive returned, or -1; the receiver's own
	over  sync.Once
	done  chan struct{} // closed with gone
	state sync.Mutex    // guards channel, while it is being made, and what follows
	gone  bool
	limit time.Time
}

type arrival struct{ slot, bytes int }

const (
	slotBytes = 256
	recvSlots = 64
	window    = 32
	tellAfter = 8 // frames taken, without any of our own
	spareWRs  = 16
)

const (
	_ = uint(slotBytes - maxFrame)                      // a frame fits
	_ = uint(recvSlots - window - 2*(window/tellAfter)) // as do the empty ones
)

// IDs of work requests: the slot of a receive or send, or one of these.
const (
	idEmpty     = 1 << 20
	idKeepAlive = 1<<20 + 1
)

func newRDMAConn(m *rdmaModule, id *ibv.CMID) *rdmaConn {
	c := &rdmaConn{m: m, id: id, events: make(chan *ibv.CMEvent, 8), held: -1, free: window, done: make(chan struct{})}
	c.changed = sync.NewCond(&c.polling)
	return c
}

// event takes what the connection manager says.
func (c *rdmaConn) event(ev *ibv.CMEvent) {
	switch ev.Type {
	case ibv.CMDisconnected, ibv.CMDeviceRemoval, ibv.CMTimewaitExit:
		c.end()
	}
	select {
	case c.events <- ev:
	default:
	}
}

// await waits for an event; the error of another one comes with it.
func (c *rdmaConn) await(ctx context.Context, want ibv.CMEventType) (*ibv.CMEvent, error) {
	ctx, cancel := context.WithTimeout(ctx, c.m.patience())
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

func (c *rdmaConn) param(data []byte) ibv.CMParam {
	q := c.m.port.Quality
	return ibv.CMParam{Data: data, RetryCount: int(q.RetryCount), RNRRetryCount: int(q.RNRRetry)}
}

// equip makes the queue pair, in INIT, with its receives.
func (c *rdmaConn) equip() (err error) {
	info, err := c.id.Info()
	if err != nil {
		return err
	}
	if info.Device != c.m.port.Device {
		return fmt.Errorf("%w: the route leads through %s", driver.ErrUnsupported, info.Device)
	}
	channel, err := c.m.verbs.CreateCompChannel()
	if err != nil {
		return err
	}
	c.state.Lock()
	c.channel = channel
	c.state.Unlock()
	c.wake()
	if c.cq, err = c.m.verbs.CreateCQ(recvSlots+window+spareWRs, c.channel, 0); err != nil {
		return err
	}
	c.qp, err = c.m.pd.CreateQP(ibv.QPInit{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: window + spareWRs, MaxRecvWR: recvSlots})
	if err != nil {
		return err
	}
	c.mem = make([]byte, (recvSlots+window)*slotBytes)
	if c.mr, err = c.m.pd.RegMR(c.mem, ibv.AccessLocalWrite); err != nil {
		return err
	}
	if c.sends, err = ibv.NewSendChain(1, 1, 0); err != nil {
		return err
	}
	if c.recvs, err = ibv.NewRecvChain(1, 1); err != nil {
		return err
	}
	// Keep-alives are writes of nothing, which need the right to write; no memory can be written.
	err = c.id.Step(c.qp, ibv.StateInit, func(a *ibv.StepAttr) { a.Access = ibv.AccessLocalWrite | ibv.AccessRemoteWrite })
	if err != nil {
		return err
	}
	for slot := range recvSlots {
		if err := c.postReceive(slot); err != nil {
			return err
		}
	}
	return c.cq.ReqNotify(false)
}

// receiveAndSend takes the queue pair to RTS.
func (c *rdmaConn) receiveAndSend() error {
	q := c.m.port.Quality
	if err := c.id.Step(c.qp, ibv.StateRTR, func(a *ibv.StepAttr) { a.MinRNRTimer = int(q.MinRNRTimer) }); err != nil {
		return err
	}
	if err := c.id.Step(c.qp, ibv.StateRTS, func(a *ibv.StepAttr) { a.Timeout = int(q.AckTimeout) }); err != nil {
		return err
	}
	c.m.tasks.Go(c.keepAlive)
	return nil
}

func (c *rdmaConn) slot(n int) []byte { return c.mem[n*slotBytes : (n+1)*slotBytes] }

func (c *rdmaConn) addr(n int) uint64 { return uint64(uintptr(unsafe.Pointer(&c.mem[n*slotBytes]))) }

func (c *rdmaConn) postReceive(slot int) error {
	c.posting.Lock()
	defer c.posting.Unlock()
	c.recvs.Reset()
	w := c.recvs.Next()
	w.ID = uint64(slot)
	w.AddSGE(c.addr(slot), slotBytes, c.mr.LKey())
	_, err := c.qp.PostRecv(c.recvs)
	return err
}

// send implements conn. It waits while the peer does not take frames.
func (c *rdmaConn) send(b []byte) error {
	c.polling.Lock()
	for c.free == 0 || c.sent-c.peerHas >= window {
		if err := c.ended(); err != nil {
			c.polling.Unlock()
			return err
		}
		c.changed.Wait()
	}
	c.free--
	slot := recvSlots + int(c.sent%window)
	c.sent++
	c.polling.Unlock()
	copy(c.slot(slot), b)
	c.posting.Lock()
	defer c.posting.Unlock()
	return c.post(uint64(slot), slot, len(b))
}

// post sends a frame, an empty one or a keep-alive. The caller holds posting.
func (c *rdmaConn) post(id uint64, slot, n int) error {
	c.sends.Reset()
	w := c.sends.Next()
	w.ID, w.Flags = id, ibv.SendSignaled
	switch {
	case id == idKeepAlive:
		w.Write(0, 0)
	default:
		c.told = c.taken.Load()
		w.SendImm(c.told)
	}
	if n > 0 {
		w.AddSGE(c.addr(slot), uint32(n), c.mr.LKey())
	}
	_, err := c.qp.PostSend(c.sends)
	return err
}

// tell lets the peer know what was taken when we have long said nothing.
func (c *rdmaConn) tell() error {
	c.posting.Lock()
	defer c.posting.Unlock()
	if c.taken.Load()-c.told < tellAfter {
		return nil
	}
	return c.post(idEmpty, 0, 0)
}

// keepAlive finds hosts that are gone. A stopped process has a device that answers.
func (c *rdmaConn) keepAlive() {
	t := time.NewTicker(max(c.m.env.Timeout/3, 100*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			c.posting.Lock()
			err := c.post(idKeepAlive, 0, 0)
			c.posting.Unlock()
			if err != nil {
				return
			}
		case <-c.done:
			return
		}
	}
}

// receive implements conn.
func (c *rdmaConn) receive() ([]byte, error) {
	if c.held >= 0 {
		slot := c.held
		c.held = -1
		if err := c.postReceive(slot); err != nil {
			return nil, c.because(err)
		}
		if err := c.tell(); err != nil {
			return nil, c.because(err)
		}
	}
	for {
		ended := c.ended() // before the last look: what came before the end is received
		if err := c.poll(); err != nil {
			return nil, c.because(err)
		}
		if b, ok := c.take(); ok {
			return b, nil
		}
		if ended != nil {
			return nil, ended
		}
		if _, err := c.channel.Wait(context.Background()); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, c.because(err)
		}
		if err := c.cq.ReqNotify(false); err != nil {
			return nil, c.because(err)
		}
	}
}

// take returns the oldest frame.
func (c *rdmaConn) take() ([]byte, bool) {
	c.polling.Lock()
	defer c.polling.Unlock()
	if len(c.arrived) == 0 {
		return nil, false
	}
	a := c.arrived[0]
	c.arrived = c.arrived[1:]
	c.taken.Add(1)
	c.held = a.slot
	return c.slot(a.slot)[:a.bytes], true
}

// poll takes completions.
func (c *rdmaConn) poll() error {
	c.polling.Lock()
	defer c.polling.Unlock()
	for {
		n, err := c.cq.Poll(c.wcs[:])
		if err != nil || n == 0 {
			return err
		}
		for k := range c.wcs[:n] {
			if err := c.complete(&c.wcs[k]); err != nil {
				return err
			}
		}
		c.changed.Broadcast()
	}
}

// complete takes a completion. The caller holds polling.
func (c *rdmaConn) complete(wc *ibv.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	switch {
	case wc.Opcode.IsRecv():
		if wc.Flags&ibv.WCWithImm == 0 || wc.ByteLen > maxFrame {
			return fmt.Errorf("%w: frame of %d bytes", errMalformed, wc.ByteLen)
		}
		if err := c.hear(wc.Imm()); err != nil {
			return err
		}
		slot := int(wc.ID)
		if wc.ByteLen == 0 {
			return c.postReceive(slot)
		}
		c.arrived = append(c.arrived, arrival{slot, int(wc.ByteLen)})
	case wc.ID < idEmpty:
		c.free++
	}
	return nil
}

// hear takes how many of our frames the peer has taken: as many as we know, or
// more, up to what was sent. The caller holds polling.
func (c *rdmaConn) hear(taken uint32) error {
	if taken-c.peerHas > c.sent-c.peerHas {
		return fmt.Errorf("%w: the peer has taken %d frames of %d, and %d before", errMalformed, taken, c.sent, c.peerHas)
	}
	c.peerHas = taken
	return nil
}

// ended tells whether the connection has, or its time is over.
func (c *rdmaConn) ended() error {
	c.state.Lock()
	defer c.state.Unlock()
	if c.gone {
		return io.EOF
	}
	if !c.limit.IsZero() && !time.Now().Before(c.limit) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (c *rdmaConn) isGone() bool {
	c.state.Lock()
	defer c.state.Unlock()
	return c.gone
}

// because prefers the end of the connection to what follows from it.
func (c *rdmaConn) because(err error) error {
	if c.isGone() {
		return io.EOF
	}
	return err
}

// end notes that the connection is over, and wakes who waits.
func (c *rdmaConn) end() {
	c.state.Lock()
	if !c.gone {
		c.gone = true
		close(c.done)
	}
	c.state.Unlock()
	c.wake()
}

// expire implements conn.
func (c *rdmaConn) expire(t time.Time) {
	c.state.Lock()
	c.limit = t
	c.state.Unlock()
	c.wake()
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), c.broadcast)
	}
}

// wake lets those who wait see how things are.
func (c *rdmaConn) wake() {
	c.state.Lock()
	t := c.limit
	if c.gone {
		t = time.Now().Add(-time.Second)
	}
	if c.channel != nil {
		_ = c.channel.SetDeadline(t)
	}
	c.state.Unlock()
	c.broadcast()
}

func (c *rdmaConn) broadcast() {
	c.polling.Lock()
	c.changed.Broadcast()
	c.polling.Unlock()
}

// finish implements conn.
func (c *rdmaConn) finish() {
	c.expire(time.Now().Add(finishTime))
	for c.ended() == nil && c.poll() == nil {
		c.polling.Lock()
		all := c.free == window
		c.polling.Unlock()
		if all {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_ = c.id.Disconnect()
}

// close implements conn.
func (c *rdmaConn) close() {
	c.over.Do(func() {
		c.end()
		if c.qp != nil {
			_ = c.id.Disconnect()
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
		c.m.conns.Lock()
		delete(c.m.of, c.id)
		c.m.conns.Unlock()
	})
}
