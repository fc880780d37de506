package kit

import "sync"

// waiters are the goroutines in a context's RecvWaitAny.
type waiters struct {
	mu       sync.Mutex
	sleeping []*waiter
	spare    []*waiter
}

// waiter is one of them.
type waiter struct {
	wakeup   chan struct{} // has a token when there may be something
	canceled bool
}

// enter adds the calling goroutine, which polls once more before sleeping on its wake-up.
func (w *waiters) enter() *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	var a *waiter
	if k := len(w.spare); k > 0 {
		a, w.spare = w.spare[k-1], w.spare[:k-1]
	} else {
		a = &waiter{wakeup: make(chan struct{}, 1)}
	}
	w.sleeping = append(w.sleeping, a)
	return a
}

// leave takes the caller out.
func (w *waiters) leave(a *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.sleeping {
		if w.sleeping[k] == a {
			w.sleeping = append(w.sleeping[:k], w.sleeping[k+1:]...)
			break
		}
	}
	select {
	case <-a.wakeup:
	default:
	}
	a.canceled = false
	w.spare = append(w.spare, a)
}

// wake wakes all waiters; with cancel they return ErrCanceled.
func (w *waiters) wake(cancel bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.sleeping {
		a.canceled = a.canceled || cancel
		select {
		case a.wakeup <- struct{}{}:
		default:
		}
	}
}

// canceled reports whether a was woken to give up.
func (w *waiters) canceled(a *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return a.canceled
}
