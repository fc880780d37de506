package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/pcapng"
)

// Frames of several NICs are written in the order of their times, those with the same time as they came, and frames
// after the limit later.
func TestFramesAreWrittenInOrder(t *testing.T) {
	frame := func(nic uint32, at int64) pcapng.Packet {
		b := bytes.Repeat([]byte{byte(nic), byte(at)}, 300<<10) // three frames fill more than a chunk
		return pcapng.Packet{Interface: nic, Time: at, Length: len(b), Data: b}
	}
	file := func(write func(w *pcapng.Writer) error) []byte {
		var b bytes.Buffer
		w := pcapng.NewWriter(&b, "test")
		for range 2 {
			if _, err := w.Interface(pcapng.Interface{LinkType: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := write(w); err != nil || w.Flush() != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	var q frameQueue
	for _, p := range []pcapng.Packet{frame(0, 1), frame(0, 5), frame(1, 5), frame(1, 2), frame(0, 8), frame(1, 7)} {
		q.add(p)
	}
	got := file(func(w *pcapng.Writer) error { return q.write(w, time.Unix(0, 5)) })
	want := file(func(w *pcapng.Writer) (err error) {
		for _, p := range []pcapng.Packet{frame(0, 1), frame(1, 2), frame(0, 5), frame(1, 5)} {
			err = w.Packet(p)
		}
		return err
	})
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d of four frames in order", len(got), len(want))
	}
	if len(q.frames) != 2 || q.frames[0].Time != 7 || q.bytes != 2*600<<10 {
		t.Errorf("%d frames of %d bytes are left, want those at 7 and 8", len(q.frames), q.bytes)
	}
}
