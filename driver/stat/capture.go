package stat

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
)

const (
	capturePrefix  = "@bywash-capture-"
	captureVersion = 1
	maxCaptures    = 8 // at a time, of one process
	maxInterfaces  = 1 << 16
	maxRequest     = 4096
	capturePause   = time.Millisecond // between two looks when there is nothing
)

// CaptureRequest says what to capture. The zero value is everything, whole.
type CaptureRequest struct {
	Version int    `json:"version"`           // set by Capture
	Driver  string `json:"driver,omitempty"`  // only of this driver
	Device  string `json:"device,omitempty"`  // only of NICs of this name
	Context uint64 `json:"context,omitempty"` // only frames of the context with this incarnation
	Snap    int    `json:"snap,omitempty"`    // at most so many bytes of a frame; 0: all
}

// Interface is a NIC of a process that is captured from.
type Interface struct {
	Driver   string `json:"driver"`
	Device   string `json:"device"`
	LinkType uint16 `json:"link_type"`
}

// capturing is one capture that this process serves.
type capturing struct {
	conn   *net.UnixConn
	req    CaptureRequest
	feeds  []*feed
	next   int // number of the next interface
	told   time.Time
	ending bool // it is the last round
}

// serveCapture reads a request, and streams until the other side has closed its
// half, or this process stops serving.
func serveCapture(ctx context.Context, c *net.UnixConn) {
	x := &capturing{conn: c}
	_ = c.SetReadDeadline(time.Now().Add(timeout))
	if err := x.readRequest(); err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	left := make(chan struct{})
	go func() { // ends at the latest when c is closed
		defer close(left)
		_, _ = io.Copy(io.Discard, c)
	}()
	defer func() {
		for _, f := range x.feeds {
			f.tap.Detach(f)
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		n, err := x.round()
		if err != nil || x.ending {
			return
		}
		if n > 0 {
			timer.Reset(0)
		} else {
			timer.Reset(capturePause)
		}
		select {
		case <-left:
			x.ending = true
		case <-ctx.Done():
			x.ending = true
		case <-timer.C:
		}
	}
}

func (x *capturing) readRequest() error {
	d := json.NewDecoder(io.LimitReader(x.conn, maxRequest))
	if err := d.Decode(&x.req); err != nil {
		return err
	}
	if x.req.Version != captureVersion {
		return net.ErrClosed
	}
	if x.req.Snap <= 0 || x.req.Snap > maxRecord-frameHeader {
		x.req.Snap = maxRecord - frameHeader
	}
	return nil
}

// round attaches to NICs that are new, and sends what there is. It returns how many bytes of
// frames that was.
func (x *capturing) round() (sum int, err error) {
	open := driver.Taps()
	if err := x.attach(open); err != nil {
		return 0, err
	}
	counts := x.ending || time.Since(x.told) >= time.Second
	if counts {
		x.told = time.Now()
	}
	for k := 0; k < len(x.feeds); k++ {
		f := x.feeds[k]
		gone := !slices.Contains(open, f.tap)
		if gone || x.ending {
			f.tap.Detach(f)
		}
		a, b := f.unread()
		out := net.Buffers{a, b}
		if gone || counts {
			out = append(out, f.counts())
		}
		n := len(a) + len(b)
		if n > 0 || gone || counts {
			if _, err := out.WriteTo(x.conn); err != nil {
				return sum, err
			}
		}
		f.consume(n)
		sum += n
		if gone {
			x.feeds = slices.Delete(x.feeds, k, k+1)
			k--
		}
	}
	return sum, nil
}

func (x *capturing) attach(open []*driver.Tap) error {
	for _, t := range open {
		if x.ending || x.next == maxInterfaces || slices.ContainsFunc(x.feeds, func(f *feed) bool { return f.tap == t }) ||
			x.req.Driver != "" && x.req.Driver != t.Driver || x.req.Device != "" && x.req.Device != t.Device {
			continue
		}
		text, err := json.Marshal(Interface{t.Driver, t.Device, t.LinkType})
		if err != nil {
			return err
		}
		b := make([]byte, (recordHeader+8+len(text)+7)&^7)
		putRecord(b, len(b), recordInterface, uint16(x.next))
		le.PutUint32(b[8:], uint32(len(text)))
		copy(b[16:], text)
		if _, err := x.conn.Write(b); err != nil {
			return err
		}
		f := &feed{tap: t, number: uint16(x.next), snap: x.req.Snap, context: x.req.Context, ring: make([]byte, ringSize)}
		x.next++
		x.feeds = append(x.feeds, f)
		t.Attach(f)
	}
	return nil
}
