//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/afxdp"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

func BenchmarkRate(bm *testing.B) {
	a, b, _ := twoEnds(bm, driver.Small, nil)
	done := make(chan error)
	go func() {
		q := driver.Packet{IOV: [][]byte{make([]byte, 64)}}
		for range bm.N {
			if err := b.RecvPost(&q); err != nil {
				done <- err
				return
			}
			for {
				ok, err := b.RecvPoll(&q)
				if err != nil {
					done <- err
					return
				}
				if ok {
					break
				}
			}
		}
		done <- nil
	}()
	bm.ReportAllocs()
	q := driver.Packet{IOV: [][]byte{make([]byte, 64)}}
	for range bm.N {
		for {
			err := a.SendPost(&q)
			if err == nil {
				break
			}
			if err != driver.ErrBusy {
				bm.Fatal(err)
			}
		}
		a.SendPoll(&q)
	}
	if err := <-done; err != nil {
		bm.Fatal(err)
	}
	bm.Logf("%s", afxdp.Describe(a))
}

func BenchmarkLatency(bm *testing.B) {
	a, b, _ := twoEnds(bm, driver.Small, nil)
	swap := func(i driver.Instance, first bool, n int) error {
		in, out := driver.Packet{IOV: [][]byte{make([]byte, 64)}}, driver.Packet{IOV: [][]byte{make([]byte, 64)}}
		for k := range 2 * n {
			if first == (k%2 == 0) {
				if err := i.SendPost(&out); err != nil {
					return err
				}
				if _, err := i.SendPoll(&out); err != nil {
					return err
				}
				continue
			}
			if err := i.RecvPost(&in); err != nil {
				return err
			}
			for {
				ok, err := i.RecvPoll(&in)
				if err != nil {
					return err
				}
				if ok {
					break
				}
			}
		}
		return nil
	}
	done := make(chan error)
	go func() { done <- swap(b, false, bm.N) }()
	bm.ReportAllocs()
	if err := swap(a, true, bm.N); err != nil {
		bm.Fatal(err)
	}
	if err := <-done; err != nil {
		bm.Fatal(err)
	}
	bm.ReportMetric(float64(bm.Elapsed().Nanoseconds())/float64(2*bm.N), "ns/half-rtt")
}

// BenchmarkBandwidth sends long messages one way, beside the kernel's TCP over the same devices with and without
// their offloads. CPU is that of both ends, the kernel's part included.
func BenchmarkBandwidth(bm *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		for _, mtu := range []int{3498, 9000, 16384, 32768, 65535} {
			for _, mode := range []string{"skb", "native"} {
				bm.Run(fmt.Sprintf("afxdp/%dK/mtu=%d/mode=%s", size>>10, mtu, mode), func(bm *testing.B) {
					e := connected(bm, veth.Config{MTU: mtu}, driver.Large, map[string]string{"mode": mode})
					counted(bm, size, func() { stream(bm, e, size, bm.N, false) })
				})
			}
			for _, offloads := range []bool{true, false} {
				name := map[bool]string{true: "tcp", false: "tcp-without-offloads"}[offloads]
				bm.Run(fmt.Sprintf("%s/%dK/mtu=%d", name, size>>10, mtu), func(bm *testing.B) {
					p := newPair(bm, veth.Config{MTU: mtu, Offloads: offloads})
					counted(bm, size, func() { streamTCP(bm, p, size) })
				})
			}
		}
	}
}

// counted runs f, which moves bm.N messages, and reports what it took.
func counted(bm *testing.B, size int, f func()) {
	var before, after unix.Rusage
	bm.SetBytes(int64(size))
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	bm.ResetTimer()
	f()
	bm.StopTimer()
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	bm.ReportMetric(float64(used)/float64(size)/float64(bm.N), "cpu-ns/B")
}

// stream sends n messages, of which it keeps some under way. Its ends poll, or block.
func stream(tb testing.TB, e *ends, size, n int, block bool) {
	const under = 4
	var out, in [under]driver.Packet
	for k := range under {
		out[k].IOV, in[k].IOV = [][]byte{make([]byte, size)}, [][]byte{make([]byte, size)}
	}
	received := func(p *driver.Packet) (bool, error) { return e.i[1].RecvPoll(p) }
	sent := func(p *driver.Packet) (bool, error) { return e.i[0].SendPoll(p) }
	if block {
		received = func(p *driver.Packet) (bool, error) {
			return true, e.i[1].(driver.RecvWaiter).RecvWait(context.Background(), p)
		}
		sent = func(p *driver.Packet) (bool, error) {
			return true, e.i[0].(driver.SendWaiter).SendWait(context.Background(), p)
		}
	}
	until := func(done func(*driver.Packet) (bool, error), p *driver.Packet) error {
		for {
			if ok, err := done(p); ok || err != nil {
				return err
			}
		}
	}
	rdv := make(chan []byte, under)
	done := make(chan error, 1)
	go func() {
		for k := range n + under {
			p := &in[k%under]
			if k >= under {
				if err := until(received, p); err != nil {
					done <- err
					return
				}
			}
			if k < n {
				if err := e.i[1].RecvPost(p); err != nil {
					done <- err
					return
				}
				rdv <- p.RdvData
			}
		}
		done <- nil
	}()
	for k := range n + under {
		p := &out[k%under]
		if k >= under {
			if err := until(sent, p); err != nil {
				tb.Fatal(err)
			}
		}
		if k < n {
			p.RdvData = <-rdv
			if err := e.i[0].SendPost(p); err != nil {
				tb.Fatal(err)
			}
		}
	}
	if err := <-done; err != nil {
		tb.Fatal(err)
	}
}

func streamTCP(bm *testing.B, p *veth.Pair, size int) {
	var l net.Listener
	err := p.Ends[1].Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(p.Ends[1].IPv4.Addr(), 0).String())
		return err
	})
	if err != nil {
		bm.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		b := make([]byte, size)
		for range bm.N {
			if _, err = io.ReadFull(c, b); err != nil {
				break
			}
		}
		done <- err
	}()
	var c net.Conn
	if err := p.Ends[0].Do(func() (err error) {
		c, err = net.Dial("tcp", l.Addr().String())
		return err
	}); err != nil {
		bm.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, size)
	for range bm.N {
		if _, err := c.Write(b); err != nil {
			bm.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		bm.Fatal(err)
	}
}
