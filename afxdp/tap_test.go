//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/veth"
)

// frames keeps what a tap shows.
type frames struct {
	mu   sync.Mutex
	all  []kit.Frame
	came chan struct{} // one has
}

func (s *frames) Frame(f kit.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Data = bytes.Clone(f.Data)
	s.all = append(s.all, f)
	select {
	case s.came <- struct{}{}:
	default:
	}
}

// of are the frames in one direction.
func (s *frames) of(sent bool) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.all {
		if f.Sent == sent {
			list = append(list, string(f.Data))
		}
	}
	slices.Sort(list)
	return list
}

// tapped are two contexts in namespaces joined by a cable, and what their NICs show.
type tapped struct {
	ctxs  [2]driver.Context
	shown [2]frames
}

func openTapped(t *testing.T, options map[string]string) *tapped {
	return openTappedOn(t, veth.Config{}, driver.Small, options)
}

func openTappedOn(t *testing.T, cfg veth.Config, track driver.Track, options map[string]string) *tapped {
	p := newPair(t, cfg)
	x := &tapped{}
	came := make(chan struct{}, 1)
	x.shown[0].came, x.shown[1].came = came, came
	defer kit.WatchTaps(func(tap *kit.Tap, open bool) {
		for k := range x.shown {
			if open && tap.Device == p.Ends[k].Device {
				tap.Attach(&x.shown[k])
			}
		}
	})()
	for k := range x.ctxs {
		var err error
		if x.ctxs[k], err = openAt(p, k, track, options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = x.ctxs[k].Close() })
	}
	return x
}

// exchange carries one message from the first context to the second one, and waits until all that was sent
// has arrived.
func (x *tapped) exchange(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var ends [2]driver.Instance
	var err error
	for k := range ends {
		if ends[k], err = x.ctxs[k].Connect(x.ctxs[1-k].URL()); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range ends {
		if err := e.ConnectWait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	in := driver.Packet{IOV: [][]byte{make([]byte, len(text))}}
	out := driver.Packet{IOV: [][]byte{[]byte(text)}}
	if err = ends[1].RecvPost(&in); err == nil {
		out.RdvData = in.RdvData
		err = ends[0].SendPost(&out)
	}
	if err == nil {
		err = ends[1].(driver.RecvWaiter).RecvWait(ctx, &in)
	}
	if err == nil {
		err = ends[0].(driver.SendWaiter).SendWait(ctx, &out)
	}
	if err != nil || string(in.IOV[0]) != text {
		t.Fatalf("%q, %v; want %q", in.IOV[0], err, text)
	}
	for !x.quiet() {
		select {
		case <-x.shown[0].came:
		case <-ctx.Done():
			t.Fatalf("end 0 has sent %d frames and shows %d, end 1 %d and %d: what arrives is not what was sent",
				len(x.shown[0].of(true)), len(x.shown[0].of(false)), len(x.shown[1].of(true)), len(x.shown[1].of(false)))
		}
	}
}

// quiet reports whether each end shows that what arrived is exactly what the other end shows that it sent.
func (x *tapped) quiet() bool {
	return slices.Equal(x.shown[0].of(false), x.shown[1].of(true)) && slices.Equal(x.shown[1].of(false), x.shown[0].of(true))
}

const secretText = "nobody else's business"

func (x *tapped) shows(text string) (n int) {
	for k := range x.shown {
		for _, sent := range []bool{true, false} {
			for _, f := range x.shown[k].of(sent) {
				n += bytes.Count([]byte(f), []byte(text))
			}
		}
	}
	return n
}

// Of a connection that encrypts, a capture has what was on the wire, also where it
// arrived; of one that does not, the messages.
func TestTapShowsWhatIsOnTheWire(t *testing.T) {
	for _, c := range []struct {
		encrypt string
		shown   bool
	}{{"on", false}, {"off", true}} {
		for _, kind := range []string{"udp4", "udp6", "ether"} {
			t.Run("encrypt="+c.encrypt+" "+kind, func(t *testing.T) {
				x := openTapped(t, map[string]string{"encrypt": c.encrypt, "carrier": kind})
				x.exchange(t, secretText)
				if n := x.shows(secretText); (n >= 2) != c.shown || !c.shown && n != 0 {
					t.Errorf("the message is shown %d times", n)
				}
			})
		}
	}
}

func TestTapShowsEachFrameWithItsTime(t *testing.T) {
	x := openTapped(t, nil)
	x.exchange(t, "x")
	for k := range x.shown {
		x.shown[k].mu.Lock()
		defer x.shown[k].mu.Unlock()
		if len(x.shown[k].all) < 5 { // Init twice, Cookie, Accept and Data are the least
			t.Errorf("end %d shows %d frames", k, len(x.shown[k].all))
		}
		for _, f := range x.shown[k].all {
			if f.Time == 0 {
				t.Errorf("end %d, sent %v: a frame has no time", k, f.Sent)
			}
		}
	}
}
