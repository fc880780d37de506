//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progress is a bar on stderr, if that is a terminal. It is redrawn seldom: it
// shares a core with the measurement. What is written to the terminal beside it, and
// not by Write, the bar erases.
type progress struct {
	p    *mpb.Progress
	bar  *mpb.Bar
	what atomic.Pointer[string]
}

// newProgress returns a progress whose bar is drawn if wanted.
func newProgress(wanted bool) *progress {
	if !wanted || !term.IsTerminal(int(os.Stderr.Fd())) {
		return &progress{}
	}
	return &progress{p: mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(40), mpb.WithRefreshRate(400*time.Millisecond))}
}

func (p *progress) show(what string, i, total int) {
	if p.p == nil {
		return
	}
	p.what.Store(&what)
	if p.bar == nil {
		label := func(decor.Statistics) string { return *p.what.Load() }
		p.bar = p.p.AddBar(int64(total), mpb.BarRemoveOnComplete(),
			mpb.AppendDecorators(decor.CountersNoUnit(" %d/%d "), decor.Any(label)))
	}
	p.bar.SetCurrent(int64(i))
}

// Write writes lines to stderr, above the bar.
func (p *progress) Write(b []byte) (int, error) {
	if p.p != nil {
		if n, err := p.p.Write(b); !errors.Is(err, mpb.ErrDone) {
			return n, err
		}
	}
	return os.Stderr.Write(b)
}

// close removes the bar.
func (p *progress) close() {
	if p.p == nil {
		return
	}
	if p.bar != nil {
		p.bar.Abort(true)
	}
	p.p.Wait()
}
