package qnix_test

import (
	"fmt"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix"
)

// ends are two contexts of this process on the NIC of the tests. One goroutine plays both, so that on two processors the
// NIC has one.
type ends struct {
	c    [2]driver.Context
	i    [2]driver.Instance
	p, q driver.Packet
}

func newEnds(bm *testing.B, h driver.Hints) *ends {
	bm.Helper()
	qnix.NeedNIC(bm)
	e := &ends{c: [2]driver.Context{openFor(bm, h), openFor(bm, h)}}
	var err error
	if e.i[0], err = e.c[0].Connect(e.c[1].URL()); err == nil {
		e.i[1], err = e.c[1].Connect(e.c[0].URL())
	}
	for _, i := range e.i {
		if err == nil {
			err = i.ConnectWait(bm.Context())
		}
	}
	if err != nil {
		bm.Fatal(err)
	}
	return e
}

func openFor(bm *testing.B, h driver.Hints) driver.Context {
	bm.Helper()
	d, err := driver.Lookup("qnix")
	if err != nil {
		bm.Fatal(err)
	}
	h.Device = lab.nic
	n, err := d.Query(h)
	if err != nil {
		bm.Fatal(err)
	}
	c, err := n.Open(driver.Attributes{})
	if err != nil {
		bm.Fatal(err)
	}
	bm.Cleanup(func() { _ = c.Close() })
	return c
}

// transfer moves one message from end k to the other. With probe its receiver asks the context.
func (e *ends) transfer(bm *testing.B, k int, large, probe bool) {
	if large {
		must(bm, e.i[1-k].RecvPost(&e.q))
		e.p.RdvData = e.q.RdvData
	}
	for {
		err := e.i[k].SendPost(&e.p)
		if err == nil {
			break
		}
		if err != driver.ErrBusy {
			bm.Fatal(err)
		}
	}
	for probe {
		i, err := e.c[1-k].(driver.Prober).RecvProbeAny()
		if err == nil && i == e.i[1-k] {
			break
		}
		if err != nil && err != driver.ErrAgain {
			bm.Fatal(err)
		}
	}
	if !large {
		must(bm, e.i[1-k].RecvPost(&e.q))
	}
	poll(bm, e.i[1-k].RecvPoll, &e.q)
	poll(bm, e.i[k].SendPoll, &e.p)
}

func must(bm *testing.B, err error) {
	if err != nil {
		bm.Fatal(err)
	}
}

func poll(bm *testing.B, f func(*driver.Packet) (bool, error), p *driver.Packet) {
	for {
		done, err := f(p)
		if err != nil {
			bm.Fatal(err)
		}
		if done {
			return
		}
	}
}

func (e *ends) memory(bm *testing.B, size int, arena bool) {
	a, b := make([]byte, size), make([]byte, size)
	if arena {
		m, err := driver.NewArena(2*size + 8192)
		must(bm, err)
		bm.Cleanup(func() { _ = m.Close() })
		a, b = m.Alloc(size), m.Alloc(size)
	}
	e.p, e.q = driver.Packet{IOV: [][]byte{a}}, driver.Packet{IOV: [][]byte{b}}
}

// BenchmarkShort is half a round trip on the small track.
func BenchmarkShort(bm *testing.B) {
	for _, size := range []int{8, 4096} {
		bm.Run(fmt.Sprint(size), func(bm *testing.B) {
			e := newEnds(bm, driver.Hints{})
			e.memory(bm, size, false)
			bm.SetBytes(int64(size))
			bm.ReportAllocs()
			k := 0
			for bm.Loop() {
				e.transfer(bm, k, false, false)
				k = 1 - k
			}
		})
	}
}

// BenchmarkIdlePeers is half a round trip, by probes, with idle connections beside.
func BenchmarkIdlePeers(bm *testing.B) {
	for _, peers := range []int{1, 64} {
		bm.Run(fmt.Sprint(peers), func(bm *testing.B) {
			e := newEnds(bm, driver.Hints{Peers: peers + 1})
			for range peers - 1 {
				c := openFor(bm, driver.Hints{Options: map[string]string{"contexts": "64"}})
				for _, x := range e.c {
					i, err := x.Connect(c.URL())
					must(bm, err)
					j, err := c.Connect(x.URL())
					must(bm, err)
					must(bm, i.ConnectWait(bm.Context()))
					must(bm, j.ConnectWait(bm.Context()))
				}
			}
			e.memory(bm, 8, false)
			bm.ReportAllocs()
			k := 0
			for bm.Loop() {
				e.transfer(bm, k, false, true)
				k = 1 - k
			}
		})
	}
}

// BenchmarkLong is a message of the large track, one at a time.
func BenchmarkLong(bm *testing.B) {
	for _, arena := range []bool{true, false} {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			bm.Run(fmt.Sprintf("%s/%dK", map[bool]string{true: "arena", false: "heap"}[arena], size>>10), func(bm *testing.B) {
				e := newEnds(bm, driver.Hints{Track: driver.Large})
				e.memory(bm, size, arena)
				bm.SetBytes(int64(size))
				bm.ReportAllocs()
				k := 0
				for bm.Loop() {
					e.transfer(bm, k, true, false)
					k = 1 - k
				}
			})
		}
	}
}
