//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

// etherType of the tests' frames: local experimental (IEEE 802).
const etherType = 0x88b5

// missing is what a lab cannot be had for.
var missing = sync.OnceValue(func() error {
	p, err := veth.New(veth.Config{})
	if err != nil {
		return err
	}
	return p.Close()
})

// needLab skips a test that cannot have a lab, before it starts subtests: one
// whose subtests are skipped would count as passed.
func needLab(t testing.TB) {
	t.Helper()
	if err := missing(); errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		t.Skip("needs root and veth: creates network namespaces: ", err)
	}
}

// needFeature skips a test of what the kernel does not have.
func needFeature(t testing.TB, f xsk.Feature) {
	t.Helper()
	err := xsk.Probe(f)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		t.Skip("the kernel: ", err)
	case errors.Is(err, os.ErrPermission):
		t.Skip("needs CAP_NET_RAW: ", err)
	case err != nil:
		t.Fatal(err)
	}
}

// lab is two namespaces joined by veth.
func lab(t testing.TB, cfg veth.Config) *veth.Pair {
	t.Helper()
	needLab(t)
	p, err := veth.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error("close the lab: ", err)
		}
	})
	return p
}

// open opens the device of an end, until the end of the test.
func open(t testing.TB, e *veth.End, cfg xsk.Config) *xsk.Device {
	t.Helper()
	d, err := tryOpen(e, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error("close: ", err)
		}
	})
	return d
}

func tryOpen(e *veth.End, cfg xsk.Config) (d *xsk.Device, err error) {
	cfg.Device = e.Device
	if cfg.Match == (xsk.Match{}) {
		cfg.Match.EtherType = etherType
	}
	if inside := e.Do(func() error { d, err = xsk.Open(cfg); return nil }); inside != nil {
		return nil, inside
	}
	return d, err
}

// modes are those that every veth has.
var modes = []struct {
	name   string
	attach xsk.Attachment
	want   string
}{
	{"skb", xsk.AttachGeneric, "skb-copy"},
	{"native", xsk.AttachNative, "native-copy"},
}

// header is the 14 bytes before a test frame's payload.
func header(from, to *veth.End) []byte {
	return binary.BigEndian.AppendUint16(append(append([]byte{}, to.MAC...), from.MAC...), etherType)
}

// halves gives the first half of a UMEM to the fill ring and returns the other
// half's addresses.
func halves(t testing.TB, d *xsk.Device) (forTx []uint64) {
	t.Helper()
	n := d.UMEM.Chunks()
	var fill []uint64
	for i := range n {
		if i < n/2 {
			fill = append(fill, d.UMEM.Addr(i))
		} else {
			forTx = append(forTx, d.UMEM.Addr(i))
		}
	}
	for i, s := range d.Sockets {
		part := fill[i*len(fill)/len(d.Sockets) : (i+1)*len(fill)/len(d.Sockets)]
		part = part[:min(len(part), s.FillFree())]
		if got := s.Fill(part); got != len(part) {
			t.Fatalf("filled %d chunks, want %d", got, len(part))
		}
	}
	return forTx
}

// deadline bounds what a test waits for; nothing comes close to it.
const deadline = 10 * time.Second

// receive waits until n descriptors are there.
func receive(t testing.TB, s *xsk.Socket, n int) []xsk.Desc {
	t.Helper()
	descs := make([]xsk.Desc, n)
	end := time.Now().Add(deadline)
	got := 0
	for got < n {
		got += s.Receive(descs[got:])
		if got == n {
			break
		}
		if time.Now().After(end) {
			st, _ := s.Stats()
			t.Fatalf("received %d frames, want %d; %+v", got, n, st)
		}
		if _, err := s.Wait(xsk.EventRx, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	return descs
}

// kick sends what is queued. Before Linux 6.17 a descriptor that is dropped ends
// the call, which looks like a device that takes no more.
func kick(t testing.TB, s *xsk.Socket) {
	t.Helper()
	end := time.Now().Add(deadline)
	for {
		err := s.Kick()
		if err == nil {
			return
		}
		if err != xsk.ErrAgain || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// complete waits until n chunks are back.
func complete(t testing.TB, s *xsk.Socket, n int) []uint64 {
	t.Helper()
	addrs := make([]uint64, n)
	end := time.Now().Add(deadline)
	for got := 0; got < n; {
		got += s.Complete(addrs[got:])
		if time.Now().After(end) {
			t.Fatalf("completed %d frames, want %d", got, n)
		}
		if err := s.Kick(); err != nil && err != xsk.ErrAgain {
			t.Fatal(err)
		}
	}
	return addrs
}

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
