//go:build linux

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/launch"
)

// team is this process among the ranks of a measurement. Rank 0 leads, rank 1 is the other end; further ranks hold idle
// peers or belong to a session of many.
//
// All ranks take the same steps in the same order. When they must agree, they exchange messages: each reports its
// result, and all continue alike. A failure where the others do not listen, as in the measuring loops, aborts the job.
type team struct {
	job  *launch.Client
	stop *bench.Stopper // stops when the job is lost
}

// Codes of an abort.
const (
	codeFailed      = 1
	codeUnavailable = 2 // the driver or this machine cannot run it
)

// peerError is an error of another rank.
type peerError struct {
	text        string
	unavailable bool
}

func (e *peerError) Error() string     { return e.text }
func (e *peerError) Unavailable() bool { return e.unavailable }

// plain replaces what a terminal would obey in the text of another process.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return '?'
	}, s)
}

func newTeam(ctx context.Context, job *launch.Client) *team {
	t := &team{job: job, stop: bench.NewStopper(ctx)}
	go func() {
		select {
		case <-job.Lost():
			t.stop.Stop(lost(job.Err()))
		case <-t.stop.Ctx.Done():
		}
	}()
	return t
}

// lost returns the reason for which no exchange can complete any more.
func lost(err error) error {
	var r *launch.RankError
	switch {
	case errors.As(err, &r) && r.Code != 0:
		return &peerError{text: strings.TrimPrefix(r.Why, "aborted the job: "), unavailable: r.Code == codeUnavailable}
	case r != nil:
		return fmt.Errorf("%w (%w)", bench.ErrPeerGone, r)
	case errors.Is(err, launch.ErrLauncher):
		return bench.ErrPeerGone
	}
	return err
}

// roundMessage is the message of a rank in an exchange.
type roundMessage struct {
	Data        []byte `json:"data,omitempty"`
	Err         string `json:"err,omitempty"`
	Unavailable bool   `json:"unavailable,omitempty"` // Err is about this machine or driver, not about the run
}

// exchange returns the data of each rank, by rank, when all ranks have called it. If a rank has failed, all ranks get
// an error: a failure of the run takes precedence over an unavailable driver, and a rank's own error over that of
// another.
func (t *team) exchange(data []byte, mine error) ([][]byte, error) {
	w := roundMessage{Data: data}
	if mine != nil {
		w = roundMessage{Err: mine.Error(), Unavailable: bench.Unavailable(mine)}
	}
	b, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	replies, err := t.job.Exchange(t.stop.Ctx, b)
	if err != nil {
		return nil, t.stop.Why(lost(err))
	}
	for rank, b := range replies {
		var w roundMessage
		if err := json.Unmarshal(b, &w); err != nil {
			return nil, t.abort(bench.ErrOrder)
		}
		replies[rank] = w.Data
		if w.Err != "" && rank != t.job.Rank() && (mine == nil || bench.Unavailable(mine) && !w.Unavailable) {
			mine = &peerError{text: plain(w.Err), unavailable: w.Unavailable}
		}
	}
	return replies, mine
}

// give is exchange for steps whose failures are reported in another way.
func (t *team) give(data []byte) ([][]byte, error) { return t.exchange(data, nil) }

// order sends data of rank 0 to the others, which pass nil.
func (t *team) order(x any, to any) error {
	var b []byte
	if x != nil {
		var err error
		if b, err = json.Marshal(x); err != nil {
			return err
		}
	}
	replies, err := t.give(b)
	if err != nil || to == nil || len(replies[0]) == 0 {
		return err
	}
	if json.Unmarshal(replies[0], to) != nil {
		return t.abort(bench.ErrOrder)
	}
	return nil
}

// consequence is how long the reason of another rank may take to come after its connection has ended here.
const consequence = time.Second

// abort ends the measurement of this driver in all ranks. It returns the reason: err, unless there was an earlier one.
// The end of a connection or of a single transfer is usually the consequence of another rank's failure, which arrives
// through the job.
func (t *team) abort(err error) error {
	if errors.Is(err, driver.ErrClosed) || errors.Is(err, driver.ErrBroken) || errors.Is(err, driver.ErrCanceled) {
		select {
		case <-t.job.Lost():
			t.stop.Stop(lost(t.job.Err()))
		case <-t.stop.Ctx.Done():
		case <-time.After(consequence):
		}
	}
	if t.stop.Err() == nil {
		t.stop.Stop(err)
		code := codeFailed
		if bench.Unavailable(err) {
			code = codeUnavailable
		}
		t.job.Abort(code, err.Error())
	}
	return t.stop.Why(err)
}

func (t *team) close() {
	_ = t.job.Close()
	t.stop.Stop(launch.ErrClosed)
}

// hello is the first message of each rank.
type hello struct {
	Version string      `json:"version"`
	Boot    string      `json:"boot"` // of the kernel: the same on one machine
	Plan    *bench.Plan `json:"plan,omitempty"`
}

// exchangeHello returns the lead's plan, and whether all ranks are on one machine.
func (t *team) exchangeHello(version string, mine *bench.Plan) (p *bench.Plan, local bool, err error) {
	h := hello{Version: version, Boot: bootID(), Plan: mine}
	b, err := json.Marshal(h)
	if err != nil {
		return nil, false, err
	}
	replies, err := t.give(b)
	if err != nil {
		return nil, false, err
	}
	local = h.Boot != ""
	for rank, b := range replies {
		var theirs hello
		if err := json.Unmarshal(b, &theirs); err != nil {
			return nil, false, t.abort(bench.ErrOrder)
		}
		if theirs.Version != version {
			return nil, false, fmt.Errorf("the two sides are of different versions (%q and %q): use the same release on both",
				version, theirs.Version)
		}
		local = local && theirs.Boot == h.Boot
		if rank == 0 {
			p = theirs.Plan
		}
	}
	return p, local, nil
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(b)
}
