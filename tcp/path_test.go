//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/attack"
)

// fault is what a host on the path does to the connections that it carries.
type fault int32

const (
	carries  fault = iota
	delays         // each piece comes 2 ms later
	splits         // into single bytes
	pauses         // both directions, for less than the dead time
	silences       // both directions, for good
	cuts           // ends the stream in the middle of a piece
	halves         // ends one direction
	resets
)

var faultNames = map[fault]string{
	delays: "delay", splits: "split", pauses: "pause", silences: "silence",
	cuts: "cut", halves: "half-close", resets: "reset",
}

// harmless reports whether nothing may be lost.
func (f fault) harmless() bool { return f <= pauses }

// path is a host that forwards bytes until the test injects a fault.
type path struct {
	does atomic.Int32
	over chan struct{} // closed when the test ends
}

func (p *path) carry(to, from *net.TCPConn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			_ = to.CloseWrite()
			return
		}
		for rest := b[:n]; len(rest) > 0; {
			piece := len(rest)
			switch fault(p.does.Load()) {
			case delays:
				time.Sleep(2 * time.Millisecond)
			case splits:
				piece = 1
			case pauses, silences:
				select {
				case <-p.over:
					return
				case <-time.After(time.Millisecond):
				}
				continue
			case cuts:
				_, _ = to.Write(rest[:len(rest)/2])
				_ = to.CloseWrite()
				return
			case halves:
				_ = to.CloseWrite()
				return
			case resets:
				reset(to)
				reset(from)
				return
			}
			if _, err := to.Write(rest[:piece]); err != nil {
				return
			}
			rest = rest[piece:]
		}
	}
}

// exchange sends message k of n bytes from a to b.
func exchange(ctx context.Context, a, b driver.Instance, track driver.Track, n, k int) error {
	in := driver.Packet{IOV: [][]byte{make([]byte, n)}}
	text := bytes.Repeat([]byte{byte(k), byte(k >> 8), 7}, n/3+1)[:n]
	out := driver.Packet{IOV: [][]byte{text}}
	if err := b.RecvPost(&in); err != nil {
		return err
	}
	if track == driver.Large {
		out.RdvData = bytes.Clone(in.RdvData)
	}
	sent := make(chan error, 1)
	go func() {
		err := a.SendPost(&out)
		if err == nil {
			err = a.(driver.SendWaiter).SendWait(ctx, &out)
		}
		sent <- err
	}()
	err := b.(driver.RecvWaiter).RecvWait(ctx, &in)
	if other := <-sent; err == nil {
		err = other
	}
	if err == nil && !bytes.Equal(in.IOV[0], text) {
		err = fmt.Errorf("message %d of %d bytes arrives changed", k, n)
	}
	return err
}

// moments are what happens on the connection when the fault begins, by the length of messages; 0 is none.
var moments = []struct {
	name  string
	track driver.Track
	size  int
}{
	{"idle", driver.Small, 0}, {"small", driver.Small, 3000},
	{"large", driver.Large, 1 << 20}, {"idle large", driver.Large, 0},
}

// Whatever a host on the path does: what it delays or divides arrives; what it ends is noticed at once, and silence in
// the dead time, on both sides, as a broken connection; another connection of the same contexts goes on; closing ends;
// and nothing is left.
func TestFaultsOnPath(t *testing.T) {
	before := attack.Settled()
	t.Run("all", func(t *testing.T) {
		for f := delays; f <= resets; f++ {
			for _, m := range moments {
				for _, encrypt := range []string{"off", "on"} {
					if encrypt == "on" && (m.size == 0 || testing.Short()) {
						continue
					}
					t.Run(faultNames[f]+"/"+m.name+"/encrypt="+encrypt, func(t *testing.T) {
						t.Parallel()
						strike(t, f, m.track, m.size, encrypt)
					})
				}
			}
		}
	})
	attack.Left(t, "after all faults", before)
}

func strike(t *testing.T, f fault, track driver.Track, size int, encrypt string) {
	options := map[string]string{"encrypt": encrypt, "dead-time": "2s"}
	if f == silences {
		options["dead-time"] = "500ms"
	}
	p := &path{over: make(chan struct{})}
	a, b := aContext(t, track, options), aContext(t, track, options)
	x, y := connected(t, a, aContext(t, track, options))
	i := through(t, a, b, p)
	ctx, cancel := context.WithTimeout(t.Context(), attack.MaxWait/2)
	defer cancel()
	for k := range 8 {
		if err := exchange(ctx, i[0], i[1], track, max(size, 100), k); err != nil {
			t.Fatal(err)
		}
	}
	struck := make(chan struct{})
	time.AfterFunc(2*time.Millisecond, func() { p.does.Store(int32(f)); close(struck) })
	if size == 0 {
		<-struck
	}
	if f == pauses {
		time.AfterFunc(150*time.Millisecond, func() { p.does.Store(int32(carries)) })
	}
	length := max(size, 100)
	if f == splits { // a system call each
		length = min(length, 20000)
	}
	var err error
	for k, more := 0, 5; err == nil && (more > 0 || !f.harmless()); k++ {
		err = exchange(ctx, i[k%2], i[1-k%2], track, length, k)
		select {
		case <-struck:
			more--
		default:
		}
	}
	if f.harmless() && err != nil {
		t.Errorf("messages do not arrive: %v", err)
	}
	if !f.harmless() {
		for n := range i {
			var err error
			attack.Await(t, fmt.Sprintf("side %d has ended", n), func() bool {
				err = i[n].(driver.Ender).Err()
				return err != nil
			})
			if !errors.Is(err, driver.ErrBroken) || strings.Contains(err.Error(), "silent") && f != silences {
				t.Errorf("side %d: %v, want %v before the dead time", n, err, driver.ErrBroken)
			}
		}
	}
	if err := exchange(ctx, x, y, track, 100, 0); err != nil {
		t.Errorf("another connection: %v", err)
	}
}

// through are the ends of a connection that leads over a path.
func through(t *testing.T, a, b *share, p *path) (i [2]driver.Instance) {
	t.Helper()
	ma, mb := newMiddle(t, portOf(a), p.carry), newMiddle(t, portOf(b), p.carry)
	t.Cleanup(func() { close(p.over) })
	var err error
	if i[0], err = a.Connect(mb.before(b)); err == nil {
		i[1], err = b.Connect(ma.before(a))
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), attack.MaxWait/2)
	defer cancel()
	for _, x := range i {
		if err := x.ConnectWait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

// portOf is the port that a context listens at.
func portOf(c *share) int { return c.listeners[0].Addr().(*net.TCPAddr).Port }
