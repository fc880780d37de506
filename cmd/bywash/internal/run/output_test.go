//go:build linux

package run

import (
	"bytes"
	"os"
	"testing"
	"time"
)

// After its deadline a pipe gives what it holds, however slow its reader is, and then ends: it does not wait for a
// process that still has it open.
func TestPipeAfterItsDeadline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	printed := bytes.Repeat([]byte("0123456789\n"), 5000)
	if _, err := w.Write(printed); err != nil {
		t.Fatal(err)
	}
	p := &pipe{File: r}
	if err := p.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for b := make([]byte, 1000); err == nil; {
		var n int
		n, err = p.Read(b)
		if got = append(got, b[:n]...); len(got) == 1000 {
			if _, err := w.WriteString("too late"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(got, printed) {
		t.Errorf("%d bytes, want %d: %v", len(got), len(printed), err)
	}
}
