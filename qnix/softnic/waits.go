package softnic

import "sync"

// waits are those for Driver Doorbells, by their cookies.
type waits struct {
	mu   sync.Mutex
	last uint64
	m    map[uint64]chan int
}

// add makes a cookie and where its result will come.
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

// drop is for a command that was not posted.
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
