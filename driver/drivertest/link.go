package drivertest

import (
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"
)

// note is a message between test and peer process beside the driver: one
// line of JSON. Ch keeps the conversations of several instances apart.
type note struct {
	Ch  int             `json:"ch,omitempty"`
	Tag string          `json:"tag"`
	Seq int             `json:"seq,omitempty"`
	V   json.RawMessage `json:"v,omitempty"`
}

// Tags that every link understands. Roles add their own.
const (
	tagFail = "fail" // the peer process failed; V is why
	tagEnd  = "end"  // the role has returned
)

// link is a control pipe.
type link struct {
	e    *end
	name string // of the other side
	w    io.Writer

	mu       sync.Mutex
	queues   map[int]chan note
	connects int
	gone     chan struct{} // closed when the pipe has ended
	err      error
	failure  string // that the peer process reported
}

func newLink(e *end, name string, r io.Reader, w io.Writer) *link {
	l := &link{e: e, name: name, w: w, queues: make(map[int]chan note), gone: make(chan struct{})}
	if r != nil {
		go l.read(r)
	}
	return l
}

// newLoop makes a link to oneself.
func newLoop(e *end) *link { return newLink(e, "oneself", nil, nil) }

func (l *link) read(r io.Reader) {
	d := json.NewDecoder(r)
	for {
		var n note
		if err := d.Decode(&n); err != nil {
			l.err = err
			close(l.gone)
			return
		}
		l.queue(n.Ch) <- n
		if n.Tag == tagFail { // every waiting goroutine must see it
			l.failure = string(n.V)
			l.err = errors.New(l.failure)
			close(l.gone)
			return
		}
	}
}

func (l *link) queue(ch int) chan note {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[ch]
	if q == nil {
		q = make(chan note, 1<<14)
		l.queues[ch] = q
	}
	return q
}

func (l *link) post(n note, v any) {
	l.e.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		l.e.Fatalf("encode note %s: %v", n.Tag, err)
	}
	n.V = b
	if l.w == nil {
		l.queue(n.Ch) <- n
		return
	}
	line, err := json.Marshal(n)
	if err != nil {
		l.e.Fatalf("encode note %s: %v", n.Tag, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// A peer that has died is seen by what reads from it.
	_, _ = l.w.Write(append(line, '\n'))
}

// sendNote sends a note; recvNote waits for one with that tag and decodes it into v.
func (l *link) sendNote(tag string, v any) { l.e.Helper(); l.post(note{Tag: tag}, v) }
func (l *link) recvNote(tag string, v any) { l.e.Helper(); l.expect(l.next(0, tag), tag, v) }

func (l *link) expect(n note, tag string, v any) {
	l.e.Helper()
	if n.Tag == tagFail {
		l.e.Fatalf("%s: %s", l.name, n.V)
	}
	if n.Tag != tag {
		l.e.Fatalf("%s sent %q %s, want %q", l.name, n.Tag, n.V, tag)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal(n.V, v); err != nil {
		l.e.Fatalf("%s sent %s %s: %v", l.name, tag, n.V, err)
	}
}

// next waits for the next note of a conversation.
func (l *link) next(ch int, want string) note {
	l.e.Helper()
	q := l.queue(ch)
	select {
	case n := <-q:
		return n
	default:
	}
	limit := time.NewTimer(l.e.cfg.limit)
	defer limit.Stop()
	select {
	case n := <-q:
		return n
	case <-l.gone:
		select {
		case n := <-q:
			return n
		default:
		}
		l.e.dumpf("%s has ended while %q was awaited: %v", l.name, want, l.err)
	case <-limit.C:
		l.e.dumpf("%s did not send %q within %v", l.name, want, l.e.cfg.limit)
	}
	panic("unreachable")
}

// try takes the next note of a conversation if there is one.
func (l *link) try(ch int) (note, bool) {
	select {
	case n := <-l.queue(ch):
		return n, true
	default:
		return note{}, false
	}
}

// sync waits for the other side's call of sync.
func (l *link) sync() {
	l.e.Helper()
	l.sendNote("sync", nil)
	l.recvNote("sync", nil)
}
