//go:build linux

package run

import (
	"io"
	"testing"
)

// A reader that does not read blocks nobody who has something to say, and learns later how much it has missed.
func TestNoticesDropWhatHasNoRoom(t *testing.T) {
	r, w := io.Pipe()
	n := newNotices(w, 2)
	n.say("0")
	if b := make([]byte, 1); func() error { _, err := r.Read(b); return err }() != nil { // the writer has taken it, and is blocked
		t.Fatal("no line")
	}
	for i := 1; i < 6; i++ {
		n.say("%d", i)
	}
	go func() { n.end(); w.Close() }()
	got, err := io.ReadAll(r)
	want := "ywash: 0\nbywash: 1\nbywash: 3 more messages were dropped: standard error was not read\nbywash: 2\n"
	if string(got) != want || err != nil {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}
