package driver

import "sync"

// Waiters are the goroutines in a context's RecvWaitAny, for drivers.
type Waiters struct {
	mu       sync.Mutex
	sleeping []*Waiter
	spare    []*Waiter
}

// Waiter is one of them.
type Waiter struct {
	bell     chan struct{}
	canceled bool
}

// Enter adds the caller, who looks once more before he sleeps on Bell.
func (w *Waiters) Enter() *Waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	var a *Waiter
	if k := len(w.spare); k > 0 {
		a, w.spare = w.spare[k-1], w.spare[:k-1]
	} else {
		a = &Waiter{bell: make(chan struct{}, 1)}
	}
	w.sleeping = append(w.sleeping, a)
	return a
}

// Leave takes the caller out.
func (w *Waiters) Leave(a *Waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.sleeping {
		if w.sleeping[k] == a {
			w.sleeping = append(w.sleeping[:k], w.sleeping[k+1:]...)
			break
		}
	}
	select {
	case <-a.bell:
	default:
	}
	a.canceled = false
	w.spare = append(w.spare, a)
}

// Wake wakes everybody; cancel makes them give up.
func (w *Waiters) Wake(cancel bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.sleeping {
		a.canceled = a.canceled || cancel
		select {
		case a.bell <- struct{}{}:
		default:
		}
	}
}

// Canceled tells whether a was woken to give up.
func (w *Waiters) Canceled(a *Waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return a.canceled
}

// Bell rings when there may be something.
func (a *Waiter) Bell() <-chan struct{} { return a.bell }
