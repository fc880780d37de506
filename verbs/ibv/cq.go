package ibv

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// CompChannel reports completions of armed completion queues.
type CompChannel struct {
	object
	c     *Context
	fd    poller
	event *CQ
}

// CreateCompChannel makes a channel. Its file sits in Go's poller: waiting parks a goroutine, not a thread.
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	ch := &CompChannel{c: c}
	ch.kind, ch.unblock = "completion channel", ch.fd.close
	var fd int
	err := ch.make("create_comp_channel", func() (h handle, r int) {
		h, fd, r = rawCreateChannel(c.h)
		return h, r
	}, &c.object)
	if err != nil {
		return nil, err
	}
	if err := ch.fd.init(&ch.object, fd, "get_cq_event", ch.tryEvent); err != nil {
		_ = ch.Close()
		return nil, err
	}
	return ch, nil
}

// Close closes the channel; a pending Wait returns os.ErrClosed. While the channel has CQs, Close fails with EBUSY and
// names them.
func (ch *CompChannel) Close() error {
	return ch.close("destroy_comp_channel", func() int { return rawDestroyChannel(ch.h) })
}

// Wait parks the goroutine until an armed CQ of the channel has an event, and returns the CQ, or nil if it was closed
// meanwhile. Several callers take turns. The event disarms the CQ. The order arm, poll until empty, wait loses no
// wake-up. Wait returns ctx's error, os.ErrDeadlineExceeded (see SetDeadline) or os.ErrClosed. With a context that
// cannot be cancelled it does not allocate.
func (ch *CompChannel) Wait(ctx context.Context) (*CQ, error) {
	ch.fd.Lock()
	defer ch.fd.Unlock()
	if err := ch.fd.next(ctx); err != nil {
		return nil, err
	}
	return ch.event, nil
}

// tryEvent reads an event into ch.event. The caller holds ch by use.
func (ch *CompChannel) tryEvent() int {
	key, r := rawCQEvent(ch.h)
	if r < 0 {
		return r
	}
	ch.event, _ = ch.c.find(key).(*CQ)
	return 0
}

// SetDeadline makes present and later Waits fail at t with os.ErrDeadlineExceeded; the zero time means no deadline. It
// may be called during Wait, to wake it.
func (ch *CompChannel) SetDeadline(t time.Time) error { return ch.fd.setDeadline(t) }

// CQ is a completion queue.
type CQ struct {
	object
	c   *Context
	q   handle // of the shim; valid while cq is reachable
	key handle // the library's name for it

	size   sync.Mutex
	cqe    int
	demand int // completions that its queue pairs can cause
	srqs   map[*SRQ]int
}

// CreateCQ makes a completion queue of at least cqe entries, with events on
// channel, which may be nil, from interrupt vector (0 if in doubt). Errors:
// EINVAL for more entries than the device has; ENOMEM.
func (c *Context) CreateCQ(cqe int, channel *CompChannel, vector int) (*CQ, error) {
	if cqe < 1 || cqe > c.attr.MaxCQE {
		return nil, invalid("create_cq", c.device, "%d entries; the device has 1 to %d", cqe, c.attr.MaxCQE)
	}
	cq := &CQ{c: c}
	cq.kind, cq.label = "completion queue", func() string { return fmt.Sprintf("of %d", cq.Len()) }
	parents := []*object{&c.object}
	if channel != nil {
		if channel.c != c {
			return nil, invalid("create_cq", c.device, "the completion channel is of another device")
		}
		parents = append(parents, &channel.object)
	}
	err := cq.make("create_cq", func() (handle, int) {
		var ch handle
		if channel != nil {
			ch = channel.h
		}
		var r int
		cq.q, cq.key, cq.cqe, r = rawCreateCQ(c.h, cqe, ch, vector, c.attr.SoftRoCE())
		return cq.q, r
	}, parents...)
	if err != nil {
		return nil, err
	}
	runtime.AddCleanup(cq, rawFree, cq.q)
	c.remember(cq.key, cq)
	return cq, nil
}

// Close frees the queue. While queue pairs use it, Close fails with EBUSY and names them.
func (cq *CQ) Close() error {
	return cq.close("destroy_cq", func() int {
		r := rawDestroyCQ(cq.q)
		if freed(r) { // not before, because an SRQ that closes meanwhile must find the queue
			cq.c.forget(cq.key, cq)
		}
		return r
	})
}

// Len returns the number of entries of the queue.
func (cq *CQ) Len() int {
	cq.size.Lock()
	defer cq.size.Unlock()
	return cq.cqe
}

// Resize changes the number of entries to at least cqe. It fails with EINVAL for more entries than the device has, or
// fewer than the queue pairs on it need.
func (cq *CQ) Resize(cqe int) error {
	cq.size.Lock()
	defer cq.size.Unlock()
	if cqe < 1 || cqe > cq.c.attr.MaxCQE {
		return invalid("resize_cq", cq.device, "%d entries; the device has 1 to %d", cqe, cq.c.attr.MaxCQE)
	}
	if cqe < cq.demand {
		return invalid("resize_cq", cq.device, "%d entries; the queue pairs on it can cause %d completions", cqe, cq.demand)
	}
	return cq.call("resize_cq", func() int {
		got, r := rawResizeCQ(cq.q, cqe)
		if r == 0 {
			cq.cqe = got
		}
		return r
	})
}

// ReqNotify arms the queue: its next completion, or with solicited the next one that the peer marked or that failed, is
// an event on the channel. Poll once more after arming, because earlier completions cause no event.
func (cq *CQ) ReqNotify(solicited bool) error {
	r := rawReqNotify(cq.q, solicited)
	runtime.KeepAlive(cq)
	if r < 0 {
		return cq.pollError("req_notify_cq", r)
	}
	return nil
}

// Poll takes up to len(wcs) completions in one crossing into C and returns their number. It does not allocate, and waits
// only for another goroutine that polls the queue, or adds or removes a queue pair. It fails with os.ErrClosed, or with
// EIO if the device has failed.
func (cq *CQ) Poll(wcs []WC) (int, error) {
	if len(wcs) == 0 {
		return 0, nil
	}
	r := rawPoll(cq.q, unsafe.SliceData(wcs), len(wcs))
	runtime.KeepAlive(cq)
	if r < 0 {
		return 0, cq.pollError("poll_cq", r)
	}
	return r, nil
}

func (cq *CQ) pollError(verb string, r int) error {
	if r == -int(syscall.EBADF) {
		return closed(verb, &cq.object)
	}
	return fail(verb, cq.device, r, "")
}

// WC is a completion, in the library's own layout.
type WC struct {
	ID        uint64   // of the work request
	Status    WCStatus // the fields below up to QPNum are valid only on success
	Opcode    WCOpcode
	VendorErr uint32 // the device's own code for a failure
	ByteLen   uint32 // of receives, reads and atomics: bytes that arrived
	imm       uint32
	QPNum     uint32 // always valid
	Tag       uint32 // QPInit.Tag of that queue pair; 0 once it is closed
	Flags     WCFlags
	_         uint16
	_         uint16
	_         uint8
	_         uint8
	_         uint16
}

// Imm is the immediate data, valid with WCWithImm.
func (wc *WC) Imm() uint32 {
	return binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&wc.imm))[:])
}

// InvalidatedRKey is the key that the peer's send invalidated, valid with WCWithInv.
func (wc *WC) InvalidatedRKey() uint32 { return wc.imm }

// Err returns nil for a successful completion, otherwise an *[Error] with the cause in words.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &Error{Verb: "completion", Detail: fmt.Sprintf("request %#x of queue pair %#x: %v (status %d, vendor code %#x)",
		wc.ID, wc.QPNum, wc.Status, uint32(wc.Status), wc.VendorErr)}
}
