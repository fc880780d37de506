package kit_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// Ways in which an established connection goes on.
var ends = map[string]func(*kit.Life){
	"up":                        func(*kit.Life) {},
	"peer closed":               func(l *kit.Life) { l.Finish(kit.StatePeerClosed, nil) },
	"peer closed, with message": func(l *kit.Life) { l.Arrived(); l.Finish(kit.StatePeerClosed, nil) },
	"broken":                    func(l *kit.Life) { l.Finish(kit.StateBroken, errLost) },
	"broken, with message":      func(l *kit.Life) { l.Arrived(); l.Finish(kit.StateBroken, errLost) },
	"closed":                    func(l *kit.Life) { l.Close(); l.EndClose() },
}

func established(t *testing.T) *kit.Life {
	t.Helper()
	l, _ := newLife()
	establish(t, l)
	return l
}

func outcome(t *testing.T, l *kit.Life, r *kit.Receives, p *driver.Packet) (bool, error) {
	t.Helper()
	if !l.Enter() {
		return l.Over(p, "receive")
	}
	defer l.Leave()
	return r.Polled(l, p)
}

func TestReceiveIsPostedWhileSomethingCanCome(t *testing.T) {
	for name, want := range map[string]error{
		"up": nil, "peer closed": driver.ErrClosed, "peer closed, with message": nil,
		"broken": driver.ErrBroken, "broken, with message": driver.ErrBroken, "closed": driver.ErrClosed,
	} {
		l := established(t)
		ends[name](l)
		var r kit.Receives
		var p driver.Packet
		if err := r.Post(l, &p); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if posted := p.Driver.Phase == driver.Posted; posted != (want == nil) || r.Want() != posted {
			t.Errorf("%s: phase %v, want %v", name, p.Driver.Phase, r.Want())
		}
	}
}

func TestFullReceivesReturnErrBusy(t *testing.T) {
	l := established(t)
	var r kit.Receives
	p := make([]driver.Packet, kit.PacketQueueDepth+1)
	for k := range kit.PacketQueueDepth {
		if err := r.Post(l, &p[k]); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Post(l, &p[len(p)-1]); err != driver.ErrBusy || p[len(p)-1].Driver.Phase != driver.Idle {
		t.Errorf("%v, phase %v; want busy, and the packet as it was", err, p[len(p)-1].Driver.Phase)
	}
	if err := r.Post(l, &p[3]); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("posted twice: %v", err)
	}
	if n := l.Tally.Busy.Load(); n != 1 {
		t.Errorf("busy %d times, want 1", n)
	}
}

func TestFillCopiesWhatFits(t *testing.T) {
	message := []byte("a message")
	for name, room := range map[string][]int{
		"one piece": {9}, "one that is longer": {20}, "pieces": {2, 0, 3, 4}, "short": {4}, "short pieces": {2, 3}, "none": {},
	} {
		l := established(t)
		var r kit.Receives
		p := driver.Packet{IOV: [][]byte{}}
		total := 0
		for _, n := range room {
			p.IOV = append(p.IOV, make([]byte, n))
			total += n
		}
		if err := r.Post(l, &p); err != nil {
			t.Fatal(err)
		}
		r.Fill(l, message)
		done, err := outcome(t, l, &r, &p)
		n := min(total, len(message))
		if got := bytes.Join(p.IOV, nil); !done || p.N != n || !bytes.Equal(got[:n], message[:n]) {
			t.Errorf("%s: done %v, %d bytes, %q", name, done, p.N, got)
		}
		var short *driver.TruncatedError
		if truncated := errors.As(err, &short); truncated != (total < len(message)) || truncated && (short.Message != len(message) || short.Buffer != total) {
			t.Errorf("%s: %v", name, err)
		}
		if got := l.Tally.Truncated.Load() == 1; got != (total < len(message)) {
			t.Errorf("%s: counted as truncated: %v", name, got)
		}
		if p.Driver.Phase != driver.Idle {
			t.Errorf("%s: phase %v after its outcome", name, p.Driver.Phase)
		}
	}
}

func TestPiecesAreFilledByTheDriver(t *testing.T) {
	l := established(t)
	var r kit.Receives
	p := driver.Packet{IOV: [][]byte{make([]byte, 3)}}
	if err := r.Post(l, &p); err != nil {
		t.Fatal(err)
	}
	q := r.Next()
	if q != &p || r.Want() {
		t.Fatalf("took %p, want %p; wants more: %v", q, &p, r.Want())
	}
	q.N = 3
	r.Filled(l, q, 5)
	var short *driver.TruncatedError
	if done, err := outcome(t, l, &r, &p); !done || !errors.As(err, &short) || short.Message != 5 {
		t.Errorf("%v, %v", done, err)
	}
}

func TestPostedReceivesFailAtTheEnd(t *testing.T) {
	for name, want := range map[string]error{
		"peer closed": driver.ErrClosed, "peer closed, with message": nil, "broken": driver.ErrBroken, "broken, with message": nil,
	} {
		l := established(t)
		var r kit.Receives
		var p [3]driver.Packet
		for k := range p {
			if err := r.Post(l, &p[k]); err != nil {
				t.Fatal(err)
			}
		}
		ends[name](l)
		r.Fail(l)
		for k := range p {
			done, err := outcome(t, l, &r, &p[k])
			if done != (want != nil) || !errors.Is(err, want) {
				t.Errorf("%s: receive %d: %v, %v; want %v", name, k, done, err, want)
			}
		}
	}
}

func TestBufferReceive(t *testing.T) {
	l := established(t)
	var r kit.Receives
	var p, q driver.Packet
	if done, err := outcome(t, l, &r, &p); done || err != nil {
		t.Errorf("nothing has come: %v, %v", done, err)
	}
	l.Arrived()
	if !r.MayLend(&p) {
		t.Fatal("the first message is not for a buffer receive")
	}
	memory := []byte("message and more")
	if done, err := r.Lend(&p, memory[:7]); !done || err != nil || string(p.Buf) != "message" || cap(p.Buf) != 7 || p.N != 7 {
		t.Errorf("%v, %v: %q of %d, %d bytes", done, err, p.Buf, cap(p.Buf), p.N)
	}
	if err := r.Post(l, &q); err != nil || r.Want() {
		t.Errorf("%v; a receive that is posted meanwhile is to be filled: %v", err, r.Want())
	}
	var other driver.Packet
	if done, err := outcome(t, l, &r, &other); !done || !errors.Is(err, driver.ErrInvalid) || r.MayLend(&other) {
		t.Errorf("a second buffer: %v, %v", done, err)
	}
	for what, x := range map[string]*driver.Packet{"no packet": nil, "another": &other} {
		if _, err := r.Return(l, x); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s is released: %v", what, err)
		}
	}
	n, err := r.Return(l, &p)
	if err != nil || n != 7 || p.Buf != nil || p.Driver.Phase != driver.Idle {
		t.Fatalf("%d, %v: %q, phase %v", n, err, p.Buf, p.Driver.Phase)
	}
	l.Taken(n)
	l.Leave()
	if r.MayLend(&p) || !r.Want() {
		t.Error("what was posted meanwhile is not the next to be filled")
	}
	if n, b := l.Tally.Received.Load(), l.Tally.BytesReceived.Load(); n != 1 || b != 7 {
		t.Errorf("counted %d messages of %d bytes", n, b)
	}
}

func TestBufferReceiveAtTheEnd(t *testing.T) {
	for name, want := range map[string]error{
		"up": nil, "peer closed": driver.ErrClosed, "broken": driver.ErrBroken, "closed": driver.ErrClosed,
		"peer closed, with message": nil, "broken, with message": nil,
	} {
		l := established(t)
		ends[name](l)
		var r kit.Receives
		var p driver.Packet
		if done, err := outcome(t, l, &r, &p); done != (want != nil) || !errors.Is(err, want) {
			t.Errorf("%s: %v, %v; want %v", name, done, err, want)
		}
	}
	l := established(t)
	var r kit.Receives
	var p driver.Packet
	l.Arrived()
	_, _ = r.Lend(&p, []byte{1})
	l.Close()
	if _, err := r.Return(l, &p); !errors.Is(err, driver.ErrClosed) || p.Buf != nil {
		t.Errorf("released after the end: %v, %v", err, p.Buf)
	}
}

func TestCancelReceive(t *testing.T) {
	for name, x := range map[string]struct {
		phase driver.Phase
		end   string
		want  error
	}{
		"done":             {driver.Done, "up", nil},
		"being cancelled":  {driver.Canceling, "up", nil},
		"not posted":       {driver.Idle, "up", driver.ErrInvalid},
		"not posted, over": {driver.Idle, "closed", driver.ErrClosed},
		"posted":           {driver.Posted, "up", nil},
		"posted, broken":   {driver.Posted, "broken", nil},
		"posted, over":     {driver.Posted, "closed", driver.ErrClosed},
	} {
		l := established(t)
		var r kit.Receives
		p := [3]driver.Packet{}
		for k := range p {
			if err := r.Post(l, &p[k]); err != nil {
				t.Fatal(err)
			}
		}
		ends[x.end](l)
		p[1].Driver.Phase = x.phase
		if err := r.Cancel(l, &p[1]); !errors.Is(err, x.want) || (err == nil) != (x.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
		if x.phase != driver.Posted || x.want != nil {
			continue
		}
		if done, err := outcome(t, l, &r, &p[1]); !done || !errors.Is(err, driver.ErrCanceled) {
			t.Errorf("%s: %v, %v; want cancelled", name, done, err)
		}
		if a, b := r.Next(), r.Next(); a != &p[0] || b != &p[2] {
			t.Errorf("%s: the others are not in order", name)
		}
	}
}

// A goroutine inside a call when the connection is closed ends it; posted packets are then forgotten.
func TestDroppedReceivesAreOver(t *testing.T) {
	l := established(t)
	var r kit.Receives
	var p driver.Packet
	if err := r.Post(l, &p); err != nil {
		t.Fatal(err)
	}
	l.Close()
	l.Exclude()
	if done, err := outcome(t, l, &r, &p); done || err != nil {
		t.Errorf("while the connection is being closed: %v, %v", done, err)
	}
	r.Drop()
	l.EndClose()
	if done, err := outcome(t, l, &r, &p); !done || !errors.Is(err, driver.ErrClosed) || p.Driver.Phase != driver.Idle {
		t.Errorf("%v, %v, phase %v", done, err, p.Driver.Phase)
	}
}

func TestReceivesDoNotAllocate(t *testing.T) {
	l := established(t)
	if err := l.ConnectWait(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	var r kit.Receives
	p := driver.Packet{IOV: [][]byte{make([]byte, 8), make([]byte, 8)}}
	message := make([]byte, 12)
	if n := testing.AllocsPerRun(100, func() {
		_ = r.Post(l, &p)
		r.Fill(l, message)
		_, _ = r.Polled(l, &p)
		_, _ = r.Lend(&p, message)
		_, _ = r.Return(l, &p)
		l.Taken(12)
		l.Leave()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
