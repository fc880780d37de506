//go:build linux

package run

import (
	"fmt"
	"io"
	"sync/atomic"
)

// notices writes lines for the user from a goroutine of its own: a reader that does not read must not keep the job from
// its signals.
type notices struct {
	lines   chan string
	dropped atomic.Int64
	written chan struct{} // closed after the last line
}

// newNotices returns notices with room for that many lines; further ones are dropped and counted.
func newNotices(to io.Writer, room int) *notices {
	n := &notices{lines: make(chan string, room), written: make(chan struct{})}
	go func() {
		defer close(n.written)
		for line := range n.lines {
			if k := n.dropped.Swap(0); k > 0 {
				line += fmt.Sprintf("bywash: %d more messages were dropped: standard error was not read\n", k)
			}
			_, _ = io.WriteString(to, line)
		}
	}()
	return n
}

// say has a line written, without waiting for that.
func (n *notices) say(format string, args ...any) {
	select {
	case n.lines <- "bywash: " + fmt.Sprintf(format, args...) + "\n":
	default:
		n.dropped.Add(1)
	}
}

// end waits until all is written.
func (n *notices) end() {
	close(n.lines)
	<-n.written
}
