//go:build !linux

package session

import (
	"runtime"
	"syscall"
	"time"
)

func usableCPUs() int { return runtime.NumCPU() }

func yieldCPU() { runtime.Gosched() }

// alarm does not exist here.
type alarm struct{}

func newAlarm() *alarm { return nil }

func (*alarm) set(time.Duration) {}
func (*alarm) now()              {}
func (*alarm) wait()             {}
func (*alarm) close()            {}

func unicastOnly(_, _ string, _ syscall.RawConn) error { return nil }
