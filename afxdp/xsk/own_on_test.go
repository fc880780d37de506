//go:build linux && !(386 || arm || mips || mipsle) && (race || xskdebug)

package xsk_test

import (
	"testing"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

func TestHandingOverAChunkTwicePanics(t *testing.T) {
	p := lab(t, veth.Config{})
	d := open(t, &p.Ends[0], xsk.Config{})
	s := d.Sockets[0]
	desc := func(chunk int) []xsk.Desc { return []xsk.Desc{{Addr: d.UMEM.Addr(chunk), Len: 64}} }
	fill := func(chunks ...int) {
		for _, c := range chunks {
			s.Fill([]uint64{d.UMEM.Addr(c) + 7})
		}
	}
	tests := []struct {
		name string
		do   func()
	}{
		{"filled twice", func() { fill(0, 0) }},
		{"filled, then sent", func() { fill(1); s.Transmit(desc(1)) }},
		{"sent twice", func() { s.Transmit(desc(2)); s.Transmit(desc(2)) }},
		{"sent, then filled", func() { s.Transmit(desc(3)); fill(3) }},
	}
	for _, tt := range tests {
		if !panics(tt.do) {
			t.Errorf("%s: nobody noticed", tt.name)
		}
	}
	if panics(func() { fill(4, 5); s.Transmit(desc(6)) }) {
		t.Error("what is allowed panicked")
	}
}
