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
	return &Error{Peer: -1, Op: "wait", Err: fmt.Errorf("%w: request %d was given back by another call meanwhile", ErrInvalid, i)}
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
// ctx ends first, or a request was given back elsewhere meanwhile (ErrInvalid), the index is -1 and no request was
// cancelled. All requests must be of one session.
func WaitAny(ctx context.Context, reqs []*Request) (int, Status, error) {
	done, generations, err := waitSome(ctx, reqs)
	if err != nil || len(done) == 0 {
		return -1, Status{}, err
	}
	i := done[0]
	r := reqs[i]
	r.s.mu.lock()
	if r.generation != generations[i] {
		r.s.leave()
		return -1, Status{}, stale(i)
	}
	st, err := r.take()
	reqs[i] = nil
	return i, st, err
}

// WaitSome blocks until at least one of the requests is done or ctx ends. It returns the indices of all that are done,
// in ascending order, and leaves them in reqs: Wait on each returns its outcome at once. Nil requests are left out; if
// all are nil, there are no indices. Errors are those of WaitAny. It allocates.
func WaitSome(ctx context.Context, reqs []*Request) ([]int, error) {
	done, _, err := waitSome(ctx, reqs)
	return done, err
}

// waitSome is WaitSome. It also returns the generation of each request, by its index.
func waitSome(ctx context.Context, reqs []*Request) (done []int, generations []uint64, err error) {
	first := slices.IndexFunc(reqs, func(r *Request) bool { return r != nil })
	if first < 0 {
		return nil, nil, nil
	}
	s := reqs[first].s
	generations = make([]uint64, len(reqs))
	s.mu.lock()
	for i, r := range reqs {
		if r == nil {
			continue
		}
		if r.s != s {
			s.leave()
			return nil, nil, &Error{Peer: -1, Op: "wait", Err: fmt.Errorf("%w: requests of several sessions", ErrInvalid)}
		}
		generations[i] = r.generation
	}
	s.leave()
	var old error
	waited := s.await(ctx, func() bool {
		done, old = done[:0], nil
		for i, r := range reqs {
			switch {
			case r == nil:
			case r.generation != generations[i]:
				old = stale(i)
			case r.done:
				done = append(done, i)
			}
		}
		return old != nil || len(done) > 0
	})
	if waited != nil {
		return nil, nil, &Error{Peer: -1, Op: "wait", Err: waited}
	}
	if old != nil {
		return nil, nil, old
	}
	return done, generations, nil
}
