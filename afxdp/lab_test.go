//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
	"github.com/bywash/bywash/internal/lab/veth"
)

// ends are two contexts in namespaces of their own, connected.
type ends struct {
	tb   testing.TB
	pair *veth.Pair
	ctx  [2]driver.Context
	i    [2]driver.Instance
}

// newPair makes the namespaces, or skips.
func newPair(tb testing.TB, cfg veth.Config) *veth.Pair {
	tb.Helper()
	p, err := veth.New(cfg)
	if errors.Is(err, os.ErrPermission) {
		tb.Skip("needs root: ", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = p.Close() })
	return p
}

// openAt opens a context at one end of a pair.
func openAt(p *veth.Pair, end int, track driver.Track, options map[string]string) (driver.Context, error) {
	return openEnd(&p.Ends[end], driver.Hints{Track: track, Options: options})
}

// openEnd opens a context at one end of whatever it is.
func openEnd(end *veth.End, h driver.Hints) (driver.Context, error) {
	o := map[string]string{"netns": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), end.Namespace), "dead-time": "2s"}
	maps.Copy(o, h.Options)
	h.Device, h.Options = end.Device, o
	d, err := driver.Lookup("afxdp")
	if err != nil {
		return nil, err
	}
	nic, err := d.Query(h)
	if err != nil {
		return nil, err
	}
	return nic.Open(driver.Attributes{Secret: []byte("a secret of the test")})
}

// connected opens both ends and connects them.
func connected(tb testing.TB, cfg veth.Config, track driver.Track, options map[string]string) *ends {
	tb.Helper()
	e := &ends{tb: tb, pair: newPair(tb, cfg)}
	var err error
	for k := range e.ctx {
		if e.ctx[k], err = openAt(e.pair, k, track, options); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = e.ctx[k].Close() })
	}
	e.connect()
	return e
}

func (e *ends) connect() {
	e.tb.Helper()
	var err error
	for k := range e.i {
		if e.i[k], err = e.ctx[k].Connect(e.ctx[1-k].URL()); err != nil {
			e.tb.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for _, i := range e.i {
		if err := i.ConnectWait(ctx); err != nil {
			e.tb.Fatal(err)
		}
	}
}

const maxWait = 15 * time.Second

// sends sends one message of n bytes and receives it, every byte checked; the error is
// that of the connection.
func (e *ends) sends(from int, n int, seed byte) error {
	e.tb.Helper()
	out, in := make([]byte, n), make([]byte, n)
	for k := range out {
		out[k] = byte(k) ^ byte(k>>8) ^ seed
	}
	p, q := driver.Packet{IOV: [][]byte{out}}, driver.Packet{IOV: [][]byte{in}}
	a, b := e.i[from], e.i[1-from]
	if err := b.RecvPost(&q); err != nil {
		return err
	}
	p.RdvData = q.RdvData
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	received := make(chan error, 1)
	go func() { received <- b.(driver.RecvWaiter).RecvWait(ctx, &q) }()
	err := a.SendPost(&p)
	for ; err == driver.ErrBusy && ctx.Err() == nil; err = a.SendPost(&p) {
		runtime.Gosched()
	}
	if err == nil {
		err = a.(driver.SendWaiter).SendWait(ctx, &p)
	}
	if err != nil {
		cancel()
	}
	err = errors.Join(err, <-received)
	if errors.Is(err, context.DeadlineExceeded) {
		e.tb.Fatalf("%d bytes from end %d: not within %v", n, from, maxWait)
	}
	if err == nil && !bytes.Equal(out, in) {
		e.tb.Fatal(integrity.Errorf("the message differs"))
	}
	return err
}

// swaps sends messages of many sizes both ways.
func (e *ends) swaps(rounds int) {
	e.tb.Helper()
	for k := range rounds {
		for _, n := range []int{0, 1, 64, 1400, 5000, 8192} {
			for from := range 2 {
				if err := e.sends(from, n, byte(k)); err != nil {
					e.tb.Fatalf("round %d, %d bytes from end %d: %v", k, n, from, err)
				}
			}
		}
	}
}

func twoEnds(tb testing.TB, track driver.Track, options map[string]string) (a, b driver.Instance, ctxs [2]driver.Context) {
	e := connected(tb, veth.Config{MTU: 3498}, track, options)
	return e.i[0], e.i[1], e.ctx
}

// exchange sends n messages of size bytes to the other end, and receives as many from it, some under way each way.
// Rdv data, if there is any, goes through the channels, which have room for all.
func (e *ends) exchange(end, size, n int, mine chan<- []byte, theirs <-chan []byte) error {
	const under = 4
	var in, out [under]driver.Packet
	for k := range under {
		in[k].IOV, out[k].IOV = [][]byte{make([]byte, size)}, [][]byte{make([]byte, size)}
	}
	i := e.i[end]
	var posted, received, sending, sent int
	for limit := time.Now().Add(2 * maxWait); received < n || sent < n; runtime.Gosched() {
		if time.Now().After(limit) {
			return fmt.Errorf("end %d: %d messages of %d received, %d sent", end, received, n, sent)
		}
		if posted < n && posted-received < under {
			p := &in[posted%under]
			if err := i.RecvPost(p); err != nil {
				return err
			}
			mine <- append([]byte{}, p.RdvData...) // not nil
			posted++
		}
		if p := &out[sending%under]; sending < n && sending-sent < under {
			if p.RdvData == nil {
				select {
				case p.RdvData = <-theirs:
				default:
				}
			}
			if p.RdvData != nil {
				switch err := i.SendPost(p); err {
				case nil:
					sending++
				case driver.ErrBusy:
				default:
					return err
				}
			}
		}
		if sent < sending {
			done, err := i.SendPoll(&out[sent%under])
			if err != nil {
				return err
			}
			if done {
				out[sent%under].RdvData = nil
				sent++
			}
		}
		if received < posted {
			done, err := i.RecvPoll(&in[received%under])
			if err != nil {
				return err
			}
			if done {
				received++
			}
		}
	}
	return nil
}
