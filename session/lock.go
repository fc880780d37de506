package session

import (
	"sync"
	"sync/atomic"
)

// lock guards all of a session. A goroutine that waits for a message holds it for many polls in a row, and gives way to
// others that want it.
type lock struct {
	mu     sync.Mutex
	wanted atomic.Int32
}

func (l *lock) lock() {
	if l.mu.TryLock() {
		return
	}
	l.wanted.Add(1)
	l.mu.Lock()
	l.wanted.Add(-1)
}

func (l *lock) tryLock() bool { return l.mu.TryLock() }

func (l *lock) unlock() { l.mu.Unlock() }
