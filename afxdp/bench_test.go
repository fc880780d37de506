//go:build linux

package afxdp_test

import (
	"testing"

	"github.com/bywash/bywash/afxdp"
	"github.com/bywash/bywash/driver"
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
