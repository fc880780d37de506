package launch

import "context"

// publication is how far this rank's card has come.
type publication uint8

const (
	unpublished publication = iota
	publishing
	published
)

// reply is what a request waits for.
type reply struct {
	done chan struct{}
	card []byte
	err  error
}

func newReply() *reply { return &reply{done: make(chan struct{})} }

func (r *reply) finish(card []byte, err error) {
	select {
	case <-r.done:
	default:
		r.card, r.err = card, err
		close(r.done)
	}
}

// wait returns the error of the answer, or the cause of ctx if that ends first. An answer that has come counts, whatever
// has ended ctx since: callers end theirs when the job is lost.
func (r *reply) wait(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	select {
	case <-r.done:
		return r.err
	default:
		return context.Cause(ctx)
	}
}
