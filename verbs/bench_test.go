//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"testing"

	"github.com/bywash/bywash/driver"
)

// BenchmarkMessage is what a message costs the processor, both ends in one
// goroutine.
func BenchmarkMessage(b *testing.B) {
	x, y := pair(b, driver.Small, nil)
	out, in := driver.Packet{IOV: [][]byte{make([]byte, 8)}}, driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	b.ReportAllocs()
	for b.Loop() {
		if err := y.api.RecvPost(&in); err != nil {
			b.Fatal(err)
		}
		if err := x.api.SendPost(&out); err != nil {
			b.Fatal(err)
		}
		for done := false; !done; {
			done, _ = x.api.SendPoll(&out)
		}
		for done := false; !done; {
			done, _ = y.api.RecvPoll(&in)
		}
		x, y = y, x
	}
}

// BenchmarkEmptyPoll is what looking for nothing costs.
func BenchmarkEmptyPoll(b *testing.B) {
	_, y := pair(b, driver.Small, nil)
	in := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err := y.api.RecvPost(&in); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = y.api.RecvPoll(&in)
	}
}
