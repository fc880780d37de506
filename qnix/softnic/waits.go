//go:build linux

package softnic

import "sync"

// waits are the waits for Driver Doorbells, by their cookies.
type waits struct {
	mu   sync.Mutex
	last uint64
	m    map[uint64]chan int
}

// add returns a new cookie and the channel for its result.
func (w *waits) add() (cookie uint64, result <-chan int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m == nil {
		w.m = map[uint64]chan int{}
	}
	w.last++
	c := make(chan int, 1)
	w.m[w.last] = c
	return w.last, c
}

// drop forgets the cookie of a command that was not posted.
func (w *waits) drop(cookie uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.m, cookie)
}

// rung is called by the thread that runs the NICs.
func (w *waits) rung(cookie uint64, result int) {
	w.mu.Lock()
	c := w.m[cookie]
	delete(w.m, cookie)
	w.mu.Unlock()
	if c != nil {
		c <- result
	}
}
