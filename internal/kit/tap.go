package kit

import (
	"slices"
	"sync"
	"sync/atomic"
)

// A Tap shows the frames or datagrams of one NIC to programs that capture them,
// e.g. "bywash capture": bytes that bypass the kernel reach none of the kernel's
// packet taps. A driver makes it known with [AddTap] while the
// NIC is open, and asks once a batch:
//
//	if to := tap.Sinks(); to != nil { … }
//
// which is one atomic load as long as no process captures. It shows what is on the
// wire: sealed payloads stay sealed, so what arrives is shown before it is
// opened, and what leaves after it was sealed.
type Tap struct {
	Driver string
	Device string // name of the NIC
	// LinkType is what a frame begins with, by the numbers of
	// https://www.tcpdump.org/linktypes.html that pcapng files use too.
	LinkType uint16

	mu    sync.Mutex // of Attach and Detach
	sinks atomic.Pointer[[]Sink]
}

// Link types.
const (
	LinkEthernet = 1 // a frame without its check sequence
)

// Frame is a frame or datagram that a tap shows.
type Frame struct {
	Time int64  // ns since 1970, UTC; one reading may serve a batch
	Sent bool   // by this process; else it has arrived
	Data []byte // the driver's, until Frame returns
}

// A Sink takes what taps show. Frame is called on the data path, for one tap by
// one goroutine at a time: it must not block, allocate or keep f.Data, and counts
// what it has no room for.
type Sink interface {
	Frame(f Frame)
}

// Sinks returns the sinks that capture now; nil if there is none.
func (t *Tap) Sinks() []Sink {
	if p := t.sinks.Load(); p != nil {
		return *p
	}
	return nil
}

// Attach shows s the frames from now on.
func (t *Tap) Attach(s Sink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := append(slices.Clone(t.Sinks()), s)
	t.sinks.Store(&all)
}

// Detach shows s no further frames. A batch that is being shown may still reach s afterwards.
func (t *Tap) Detach(s Sink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(t.Sinks()), func(x Sink) bool { return x == s })
	if len(rest) == 0 {
		t.sinks.Store(nil)
		return
	}
	t.sinks.Store(&rest)
}

var taps struct {
	sync.Mutex
	open     map[*Tap]struct{}
	watchers map[*func(*Tap, bool)]struct{}
}

// AddTap is called by drivers when a NIC has been opened, before it sends or
// receives, and RemoveTap when it is being closed, and shows nothing any more.
func AddTap(t *Tap) {
	taps.Lock()
	defer taps.Unlock()
	if taps.open == nil {
		taps.open = make(map[*Tap]struct{})
	}
	taps.open[t] = struct{}{}
	for f := range taps.watchers {
		(*f)(t, true)
	}
}

// RemoveTap undoes AddTap; for a tap that was not added it does nothing.
func RemoveTap(t *Tap) {
	taps.Lock()
	defer taps.Unlock()
	if _, ok := taps.open[t]; !ok {
		return
	}
	delete(taps.open, t)
	for f := range taps.watchers {
		(*f)(t, false)
	}
}

// WatchTaps calls f with open for the taps of the NICs that are open in this
// process and of each that is opened, and without when one is closed, until
// stop is called. A reader that attaches in f misses no frame. Calls of f come one at a
// time; f must not block, nor call AddTap, RemoveTap, WatchTaps or stop.
func WatchTaps(f func(t *Tap, open bool)) (stop func()) {
	taps.Lock()
	defer taps.Unlock()
	if taps.watchers == nil {
		taps.watchers = make(map[*func(*Tap, bool)]struct{})
	}
	taps.watchers[&f] = struct{}{}
	for t := range taps.open {
		f(t, true)
	}
	return func() {
		taps.Lock()
		defer taps.Unlock()
		delete(taps.watchers, &f)
	}
}
