package session

import "context"

// SendRecv sends out to this gate's peer with a tag, and receives a message that matches from into in, both at once:
// ranks that exchange messages in a ring or in pairs do not wait for each other. It blocks until both are done or ctx
// ends. out and in must not overlap. The status is that of the received message. Errors are those of Send and of
// Session.Recv; when the send fails, the receive is cancelled.
func (g *Gate) SendRecv(ctx context.Context, tag uint64, out []byte, from Match, in []byte) (Status, error) {
	r, err := g.s.Irecv(from, in)
	if err != nil {
		return Status{}, err
	}
	q, err := g.Isend(tag, out)
	if err == nil {
		_, err = q.Wait(ctx)
	}
	if err != nil {
		r.Cancel()
		_, _ = r.Wait(ctx) // canceled, or lost for the same reason
		return Status{}, err
	}
	return r.Wait(ctx)
}

// Abort ends the whole job: the launcher ends all processes as far as it can, with this exit code (1 to 255; any other
// counts as 1), and shows why. It returns after a second at most, or after ten on a rank 0 that serves the rendezvous;
// the caller then exits. It does not close the session. Without a launcher there is no other process to end.
func (s *Session) Abort(code int, why string) { s.launcher.job.Abort(code, why) }
