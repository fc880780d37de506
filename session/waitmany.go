package session

import (
	"context"
	"fmt"
	"slices"
)

// Requests are used again by the session: one that another goroutine gives back while a call waits for it is found by
// its generation.

// stale is the error of a request that another goroutine has given back.
func stale(i int) error {
	return &Error{Peer: -1, Op: "wait", Err: fmt.Errorf("%w: request %d was completed by a concurrent Wait", ErrInvalid, i)}
}

// WaitAll blocks until all requests are done, or ctx ends, and gives them back: their places in reqs become nil. Nil
// requests count as done. It returns the index and the error of the first one in reqs that has failed, or -1 and nil.
// When ctx ends, each request that is not done is treated as by Request.Wait: it is cancelled, if it is not too late.
func WaitAll(ctx context.Context, reqs []*Request) (failed int, err error) {
	failed = -1
	for i, r := range reqs {
		if _, e := r.Wait(ctx); e != nil && err == nil {
			failed, err = i, e
		}
		reqs[i] = nil
	}
	return failed, err
}

// WaitAny blocks until one of the requests is done or ctx ends. It gives that one back, sets its place in reqs to nil,
// and returns its index and outcome. Nil requests are left out; if all are nil, the index is -1 and the error nil. If
// ctx ends first, or a concurrent call gives a request back (ErrInvalid), the index is -1 and no request was
// cancelled. All requests must be of one session.
func WaitAny(ctx context.Context, reqs []*Request) (int, Status, error) {
	s, err := sessionOf(reqs)
	if s == nil || err != nil {
		return -1, Status{}, err
	}
	var few [64]uint64 // on the stack
	generations := generationsOf(reqs, few[:0])
	s.mu.lock()
	i, err := firstDone(reqs, generations)
	seen := s.callers.finished
	if i < 0 && !s.spin(ctx, func() bool {
		if seen != s.callers.finished {
			seen = s.callers.finished
			i, err = firstDone(reqs, generations)
		}
		return i >= 0
	}) {
		s.leave()
		generations := slices.Clone(generations)
		if err := s.sleepUntil(ctx, func() bool { i, _ := firstDone(reqs, generations); return i >= 0 }); err != nil {
			return -1, Status{}, &Error{Peer: -1, Op: "wait", Err: err}
		}
		s.mu.lock()
		i, err = firstDone(reqs, generations)
	}
	if err != nil {
		s.leave()
		return -1, Status{}, err
	}
	st, err := reqs[i].take()
	reqs[i] = nil
	return i, st, err
}

// WaitSome blocks until at least one of the requests is done or ctx ends. It returns the indices of all that are done,
// in ascending order, and leaves them in reqs: Wait on each returns its outcome at once. Nil requests are left out; if
// all are nil, there are no indices. Errors are those of WaitAny. It allocates.
func WaitSome(ctx context.Context, reqs []*Request) ([]int, error) {
	s, err := sessionOf(reqs)
	if s == nil || err != nil {
		return nil, err
	}
	generations := generationsOf(reqs, nil)
	err = s.await(ctx, func() bool { i, _ := firstDone(reqs, generations); return i >= 0 })
	if err != nil {
		return nil, &Error{Peer: -1, Op: "wait", Err: err}
	}
	s.mu.lock()
	defer s.leave()
	var done []int
	for i, r := range reqs {
		switch {
		case r == nil:
		case r.generation != generations[i]:
			return nil, stale(i)
		case r.done:
			done = append(done, i)
		}
	}
	return done, nil
}

// sessionOf returns the session of requests, nil if all are nil.
func sessionOf(reqs []*Request) (s *Session, err error) {
	for _, r := range reqs {
		switch {
		case r == nil || r.s == s:
		case s == nil:
			s = r.s
		default:
			return nil, &Error{Peer: -1, Op: "wait", Err: fmt.Errorf("%w: requests of several sessions", ErrInvalid)}
		}
	}
	return s, nil
}

// generationsOf appends the generations of requests, by which firstDone finds out that a concurrent call gave one
// back.
func generationsOf(reqs []*Request, to []uint64) []uint64 {
	for _, r := range reqs {
		if r == nil {
			to = append(to, 0)
			continue
		}
		r.s.mu.lock()
		to = append(to, r.generation)
		r.s.leave()
	}
	return to
}

// firstDone returns the index of the first request that is done, or was given back by a concurrent call, which is an
// error; -1 if there is none. The caller holds the lock.
func firstDone(reqs []*Request, generations []uint64) (int, error) {
	for i, r := range reqs {
		switch {
		case r == nil:
		case r.generation != generations[i]:
			return i, stale(i)
		case r.done:
			return i, nil
		}
	}
	return -1, nil
}
