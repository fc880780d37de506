//go:build linux

package xsk_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/bywash/bywash/afxdp/veth"
	"github.com/bywash/bywash/afxdp/xsk"
)

// transmit writes frames of size bytes, numbered from first on, and sends them.
func transmit(t testing.TB, s *xsk.Socket, head []byte, addrs []uint64, first, size int) {
	t.Helper()
	descs := make([]xsk.Desc, len(addrs))
	for i, a := range addrs {
		writeFrame(s.UMEM().Frame(a)[:size], head, first+i)
		descs[i] = xsk.Desc{Addr: a, Len: uint32(size)}
	}
	if got := s.Transmit(descs); got != len(descs) {
		t.Fatalf("queued %d frames, want %d", got, len(descs))
	}
	if err := s.Kick(); err != nil {
		t.Fatal(err)
	}
}

// writeFrame fills a frame with a header and words that depend on its number.
func writeFrame(b, head []byte, number int) {
	copy(b, head)
	for at := len(head); at < len(b); at += 4 {
		var word [4]byte
		binary.BigEndian.PutUint32(word[:], uint32(number*1000+at))
		copy(b[at:], word[:])
	}
}

func checkFrame(t testing.TB, got, head []byte, number, size int) {
	t.Helper()
	want := make([]byte, size)
	writeFrame(want, head, number)
	if !bytes.Equal(got, want) {
		t.Fatalf("frame %d: got %d bytes % x…, want %d bytes % x…", number, len(got), got[:min(len(got), 32)],
			len(want), want[:min(len(want), 32)])
	}
}

func TestFramesArriveInOrder(t *testing.T) {
	for _, mode := range modes {
		for _, chunk := range []int{2048, 4096} {
			t.Run(mode.name, func(t *testing.T) {
				p := lab(t, veth.Config{})
				cfg := xsk.Config{Attach: mode.attach, Memory: xsk.UMEMConfig{ChunkSize: chunk, Chunks: 1024}}
				a, b := open(t, &p.Ends[0], cfg), open(t, &p.Ends[1], cfg)
				if a.Mode() != mode.want {
					t.Errorf("got mode %s, want %s", a.Mode(), mode.want)
				}
				free := halves(t, a)
				halves(t, b)
				head := header(&p.Ends[0], &p.Ends[1])
				const rounds, batch, size = 20, 256, 64
				for round := range rounds {
					transmit(t, a.Sockets[0], head, free[:batch], round*batch, size)
					descs := receive(t, b.Sockets[0], batch)
					refill := make([]uint64, batch)
					for i, d := range descs {
						checkFrame(t, b.UMEM.Data(d), head, round*batch+i, size)
						refill[i] = d.Addr
					}
					b.Sockets[0].Fill(refill)
					complete(t, a.Sockets[0], batch)
				}
			})
		}
	}
}
