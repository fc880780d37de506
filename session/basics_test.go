//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// Isend returns a nil request if the message has left: what a program does with requests works with that one as well.
func TestNilRequest(t *testing.T) {
	var r *session.Request
	if st, err := r.Wait(t.Context()); st != (session.Status{}) || err != nil {
		t.Errorf("Wait: %+v, %v", st, err)
	}
	if done, st, err := r.Test(); !done || st != (session.Status{}) || err != nil {
		t.Errorf("Test: %v, %+v, %v", done, st, err)
	}
	if r.Cancel() || r.String() == "" {
		t.Errorf("Cancel: true, or no String: %q", r.String())
	}
}

// A receive from any source reads like one from a gate; AnyTag selects every message.
func TestTagAndAnyTag(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	buf := make([]byte, 8)
	for _, tag := range []uint64{7, 1 << 63, 9} {
		if err := s[0].Gate(1).Send(ctx, tag, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := s[1].Recv(ctx, session.Tag(9), buf); err != nil || st.Tag != 9 || st.From != s[1].Gate(0) {
		t.Errorf("tag 9: %+v, %v", st, err)
	}
	if n, err := s[1].Gate(0).Recv(ctx, 7, buf); err != nil || n != 1 {
		t.Errorf("tag 7 of the gate: %d, %v", n, err)
	}
	if st, err := s[1].Recv(ctx, session.Match{Ignore: session.AnyTag}, buf); err != nil || st.Tag != 1<<63 {
		t.Errorf("any tag: %+v, %v", st, err)
	}
}

// Two ranks that send a long message before they receive would wait for each other.
func TestSendRecv(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			out, in := pattern(1<<20, uint64(i)), make([]byte, 1<<20)
			peer := s[i].Gate(1 - i)
			st, err := peer.SendRecv(ctx, 3, out, session.Match{From: peer, Tag: 3}, in)
			if err != nil || st.Len != len(in) || string(in) != string(pattern(1<<20, uint64(1-i))) {
				t.Errorf("rank %d: %+v, %v", i, st, err)
			}
		})
	}
	wg.Wait()
	stopped, stop := context.WithCancel(ctx)
	stop()
	long := make([]byte, 1<<20) // which no rank receives
	if _, err := s[0].Gate(1).SendRecv(stopped, 4, long, session.Tag(4), make([]byte, 8)); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if p := s[0].Pending(); strings.Contains(p, "receives") {
		t.Errorf("the receive is left behind: %s", p)
	}
}

// Memory of Alloc lies in an arena; pieces do not overlap.
func TestAlloc(t *testing.T) {
	s := joinAll(t, 2, nil)
	var last []byte
	for _, n := range []int{1, 100, 8192, 20 << 20, 64} {
		b, err := s[0].Alloc(n)
		if err != nil || len(b) != n || cap(b) != n {
			t.Fatalf("%d bytes: %d, %v", n, len(b), err)
		}
		if _, _, ok := driver.ArenaOf(b); !ok {
			t.Errorf("%d bytes lie in no arena", n)
		}
		b[0], b[n-1] = 1, 1
		if last != nil && last[len(last)-1] != 1 {
			t.Errorf("%d bytes overlap", n)
		}
		last = b
	}
	if _, err := s[0].Alloc(0); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("0 bytes: %v", err)
	}
	mem, err := s[0].Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	region, err := s[0].Register(mem, driver.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(region.Key()); n > session.MaxKey {
		t.Errorf("a key of %d bytes, MaxKey is %d", n, session.MaxKey)
	}
	if err := region.Deregister(); err != nil {
		t.Error(err)
	}
}

// abortJob records the arguments of Abort.
type abortJob struct {
	*folder
	code int
	why  string
}

func (j *abortJob) Abort(code int, why string) { j.code, j.why = code, why }

func TestAbort(t *testing.T) {
	job := &abortJob{folder: &folder{t.TempDir(), 0, 1}}
	s, err := session.Join(t.Context(), session.Config{Job: job})
	if err != nil {
		t.Fatal(err)
	}
	s.Abort(7, "no input")
	if job.code != 7 || job.why != "no input" {
		t.Errorf("the launcher got %d, %q", job.code, job.why)
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Error(err)
	}
}

// A program that imports no driver gets an error with the import; if no driver works, the error has the reasons in one
// line.
func TestNoDriverIsExplained(t *testing.T) {
	err := session.NoDriver(nil)
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), `import _ "github.com/bywash/bywash/driver/all"`) {
		t.Errorf("without drivers: %v", err)
	}
	err = session.NoDriver([]error{fmt.Errorf("shm: %w", session.ErrInvalid), errors.New("tcp: no device")})
	if !errors.Is(err, driver.ErrUnsupported) || !errors.Is(err, session.ErrInvalid) || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "tcp: no device") {
		t.Errorf("with drivers that do not work: %v", err)
	}
}
