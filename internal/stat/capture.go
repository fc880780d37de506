package stat

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"sync"
	"time"

	"github.com/bywash/bywash/internal/kit"
)

const (
	capturePrefix  = "@bywash-capture-"
	captureVersion = 3
	maxCaptures    = 8 // at a time, of one process
	maxInterfaces  = 1 << 16
	maxFeeds       = 64 // interfaces at a time, each with a ring
	maxName        = 255
	maxRequest     = 4096
	capturePause   = time.Millisecond // between two looks when there is nothing
)

// CaptureRequest selects frames. The zero value selects all frames, in full length.
type CaptureRequest struct {
	Version int    `json:"version"`          // set by Capture
	Device  string `json:"device,omitempty"` // only of NICs of this name
	Snap    int    `json:"snap,omitempty"`   // at most so many bytes of a frame; 0: all
}

// Interface is a NIC of a captured process.
type Interface struct {
	Driver   string `json:"driver"`
	Device   string `json:"device"`
	LinkType uint16 `json:"link_type"`
}

// capturing is one capture that this process serves.
type capturing struct {
	conn     *net.UnixConn
	req      CaptureRequest
	reported time.Time
	ending   bool // it is the last round

	mu    sync.Mutex
	feeds []*feed // by their numbers; nil: closed, and all is sent
	live  int     // how many are not nil
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
	stop := kit.WatchTaps(x.watch)
	var ready [readySize]byte
	putRecord(ready[:], readySize, recordReady, 0)
	_, _ = c.Write(ready[:]) // an error comes again with the next write
	defer func() {
		stop()
		for _, f := range x.feeds {
			if f != nil {
				f.tap.Detach(f)
			}
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

// watch attaches to a NIC that is opened, and detaches from one that is closed.
func (x *capturing) watch(t *kit.Tap, open bool) {
	if x.req.Device != "" && x.req.Device != t.Device {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !open {
		for _, f := range x.feeds {
			if f != nil && f.tap == t {
				t.Detach(f)
				f.closed.Store(true)
			}
		}
		return
	}
	if len(x.feeds) < maxInterfaces && x.live < maxFeeds {
		x.live++
		f := &feed{tap: t, number: uint16(len(x.feeds)), snap: x.req.Snap, ring: make([]byte, ringSize)}
		x.feeds = append(x.feeds, f)
		t.Attach(f)
	}
}

// round sends what there is. It returns how many bytes of frames that was.
func (x *capturing) round() (sum int, err error) {
	counts := x.ending || time.Since(x.reported) >= time.Second
	if counts {
		x.reported = time.Now()
	}
	x.mu.Lock()
	feeds := x.feeds // it only grows, and only this goroutine changes what is there
	x.mu.Unlock()
	for k, f := range feeds {
		if f == nil {
			continue
		}
		n, err := x.send(f, counts)
		if err != nil {
			return sum, err
		}
		sum += n
		if f.done {
			x.mu.Lock()
			x.feeds[k] = nil
			x.live--
			x.mu.Unlock()
		}
	}
	return sum, nil
}

// send sends what one NIC has shown, and its counts at its end, or when they are due.
func (x *capturing) send(f *feed, counts bool) (int, error) {
	f.done = f.closed.Load()
	if x.ending {
		f.tap.Detach(f)
	}
	var out net.Buffers
	if !f.announced {
		b, err := f.announcement()
		if err != nil {
			return 0, err
		}
		f.announced = true
		out = append(out, b)
	}
	a, b := f.unread()
	n := len(a) + len(b)
	if out = append(out, a, b); f.done || counts {
		out = append(out, f.counts())
	}
	if len(out) > 2 || n > 0 {
		if _, err := out.WriteTo(x.conn); err != nil {
			return 0, err
		}
	}
	f.consume(n)
	return n, nil
}
