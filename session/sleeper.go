package session

import (
	"context"
	"sync/atomic"
	"time"
)

// sleeper lets one goroutine sleep for some microseconds, or until it is notified. In a process that has nothing else to
// do, timers of the Go runtime are late by up to a millisecond: it waits in epoll_wait, which counts milliseconds. So
// the sleeper has an alarm of the kernel's, where there is one.
type sleeper struct {
	wake   chan struct{} // capacity 1
	asleep atomic.Bool   // with the alarm
	alarm  *alarm        // nil: there is none
	timer  *time.Timer   // without the alarm
}

func newSleeper() *sleeper {
	p := &sleeper{wake: make(chan struct{}, 1), alarm: newAlarm()}
	if p.alarm == nil {
		p.timer = time.NewTimer(0)
	}
	return p
}

// notify ends the sleep, or else the next one. Any goroutine may call it.
func (p *sleeper) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
	if p.asleep.Load() {
		p.alarm.now()
	}
}

// wait sleeps until it is notified or ctx ends. It reports whether it was notified.
func (p *sleeper) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-p.wake:
		return true
	}
}

// sleep sleeps for d, at most a few milliseconds, or until it is notified. It reports whether it was notified.
func (p *sleeper) sleep(d time.Duration) bool {
	if p.alarm == nil {
		p.timer.Reset(d)
		select {
		case <-p.wake:
			return true
		case <-p.timer.C:
			return false
		}
	}
	p.asleep.Store(true)
	p.alarm.set(d)
	before := p.notified() // before asleep was set
	if !before {
		p.alarm.wait()
	}
	p.asleep.Store(false)
	return p.notified() || before
}

// notified takes a notification, and reports whether there was one.
func (p *sleeper) notified() bool {
	select {
	case <-p.wake:
		return true
	default:
		return false
	}
}

func (p *sleeper) close() {
	if p.alarm == nil {
		p.timer.Stop()
		return
	}
	p.alarm.close()
}
