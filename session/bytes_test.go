//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// Numbers travel in their own memory: whole slices, parts of them, and columns of a matrix.
func TestBytesAreTheNumbersThemselves(t *testing.T) {
	if b := session.Bytes([]float64(nil)); len(b) != 0 {
		t.Errorf("no numbers are %d bytes", len(b))
	}
	f := make([]float64, 3, 10)
	if b := session.Bytes(f); len(b) != 24 || cap(b) != 24 {
		t.Errorf("3 numbers of 8 bytes are %d bytes with room for %d", len(b), cap(b))
	}
	session.Bytes(f)[15] = 0x3f // the sign and the exponent
	session.Bytes(f)[14] = 0xf0
	if f[1] != 1 {
		t.Errorf("%v, want 1 in the middle", f)
	}
	if b := session.Bytes([]int16{1, -1}); !bytes.Equal(b, []byte{1, 0, 255, 255}) {
		t.Errorf("% x", b)
	}
	s := joinAll(t, 2, nil)
	const rows, columns = 4, 3
	matrix := make([]float64, rows*columns)
	for k := range matrix {
		matrix[k] = math.Sqrt(float64(k))
	}
	column, err := driver.NewStrided(session.Bytes(matrix[1:]), 8, 8*columns, rows)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- s[0].Gate(1).SendMsg(deadline(t), &session.Out{Tag: 1, Layout: column}) }()
	got := make([]float64, rows)
	if _, err := s[1].Gate(0).Recv(deadline(t), 1, session.Bytes(got)); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	for row, x := range got {
		if x != matrix[row*columns+1] {
			t.Errorf("row %d: %v, want %v", row, x, matrix[row*columns+1])
		}
	}
}
