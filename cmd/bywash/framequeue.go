package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/pcapng"
)

// frameQueue brings the frames of several NICs into the order of their times.
type frameQueue struct {
	frames []queuedFrame
	bytes  int
	chunk  []byte // frames are copied into chunks, which are garbage when the last frame of one is written
	number uint64
}

type queuedFrame struct {
	pcapng.Packet
	number uint64 // keeps the order of frames with the same time
}

const (
	queueLimit = 64 << 20 // bytes of frames
	queueChunk = 1 << 20
)

// add copies a frame into the queue.
func (q *frameQueue) add(p pcapng.Packet) {
	if cap(q.chunk)-len(q.chunk) < len(p.Data) {
		q.chunk = make([]byte, 0, queueChunk)
	}
	at := len(q.chunk)
	q.chunk = append(q.chunk, p.Data...)
	p.Data = q.chunk[at:]
	q.bytes += len(p.Data)
	q.number++
	q.frames = append(q.frames, queuedFrame{p, q.number})
}

// full reports whether the queue should be written at once.
func (q *frameQueue) full() bool { return q.bytes >= queueLimit }

// write writes and removes the frames up to a time.
func (q *frameQueue) write(w *pcapng.Writer, until time.Time) (err error) {
	slices.SortFunc(q.frames, func(a, b queuedFrame) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.number, b.number))
	})
	n := 0
	for ; n < len(q.frames) && err == nil && q.frames[n].Time <= until.UnixNano(); n++ {
		err = w.Packet(q.frames[n].Packet)
		q.bytes -= len(q.frames[n].Data)
	}
	q.frames = slices.Delete(q.frames, 0, n)
	return err
}
