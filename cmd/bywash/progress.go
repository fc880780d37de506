//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progress is a bar on stderr, if that is a terminal. It is redrawn seldom: it
// shares a core with the measurement.
type progress struct {
	p    *mpb.Progress
	bar  *mpb.Bar
	what atomic.Pointer[string]
}

func newProgress() *progress {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
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
