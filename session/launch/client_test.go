//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"context"
	"testing"
)

// A fence that failed, because its caller gave up, is not what the next call waits for.
func TestFenceOfAnotherCallerIsNotResumed(t *testing.T) {
	j := join(t, newServer(t, 1), 0)
	if err := j.Publish(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	given := newReply()
	given.finish(context.Canceled)
	j.mu.Lock()
	j.fence = given
	j.mu.Unlock()
	if err := j.Fence(t.Context()); err != nil {
		t.Error(err)
	}
}
