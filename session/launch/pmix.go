package launch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/bywash/bywash/session/launch/internal/pmix"
)

const namePMIx = "pmix"

// pmixTime is how long a server waits, in seconds, for a card that is not there.
const pmixTime = 30

// pmixKV is PMIx's key-value space. The library keeps one connection a process.
type pmixKV struct {
	local    int // ranks on this host; 0: not known
	requests atomic.Uint64
}

var _ kvs = (*pmixKV)(nil)

var pmixTaken atomic.Bool

func findPMIx(ctx context.Context, _ environ) (*Client, error) {
	if !pmixTaken.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("this process has joined, or failed to join, before: %w", ErrInvalid)
	}
	type place struct {
		rank, size, local int
		err               error
	}
	// The call cannot be interrupted, but its caller can stop waiting.
	joined := make(chan place, 1)
	go func() {
		r, n, local, err := pmix.Init()
		joined <- place{r, n, local, err}
	}()
	var p place
	select {
	case p = <-joined:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if p.err == nil {
		p.err = checkPlace(p.rank, p.size)
	}
	if p.err != nil {
		return nil, p.err
	}
	return joinKV(ctx, namePMIx, p.rank, p.size, &pmixKV{local: p.local})
}

// maxValue has no limit here: a card is one value.
func (p *pmixKV) maxValue() int { return 2 * MaxCard }

// answer distinguishes the end of the server from a refusal.
func (p *pmixKV) answer(err error) error {
	p.requests.Add(1)
	var e *pmix.Error
	if errors.As(err, &e) && e.Lost() {
		return gone(err)
	}
	return err
}

func (p *pmixKV) put(key, value string) error { return p.answer(pmix.Put(key, []byte(value))) }

func (p *pmixKV) get(rank int, key string) (string, error) {
	b, err := pmix.Get(rank, key, pmixTime)
	err = p.answer(err)
	var e *pmix.Error
	if errors.As(err, &e) && (e.Status == pmix.ErrNotFound || e.Status == pmix.ErrTimeout) {
		err = nil
	}
	return string(b), err
}

func (p *pmixKV) watch(lost func(error)) {
	go func() {
		if err := pmix.WaitLost(); err != nil {
			lost(gone(err))
		}
	}()
}

func (p *pmixKV) oneHost(size int) (bool, error) { return p.local == size, nil }
func (p *pmixKV) fence() error                   { return p.answer(pmix.Fence()) }
func (p *pmixKV) abort(code int, why string)     { p.answer(pmix.Abort(code, why)) }
func (p *pmixKV) close() error                   { return p.answer(pmix.Finalize()) }
func (p *pmixKV) hangUp()                        {} // it ends with the process
func (p *pmixKV) traffic() Traffic               { return Traffic{Requests: p.requests.Load()} }
