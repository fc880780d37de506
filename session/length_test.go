//go:build linux && !(386 || arm || mips || mipsle)

package session

import (
	"errors"
	"testing"

	"github.com/bywash/bywash/session/internal/header"
)

// A peer may change a request in shared memory between its check and its copy: the length that a probe reports is
// bounded all the same.
func TestLengthThatChangesIsBounded(t *testing.T) {
	s := &Session{cfg: Config{MaxMessage: 1000}}
	for _, tt := range []struct {
		total uint64
		want  int
		err   error
	}{{1000, 1000, nil}, {1001, 0, header.ErrMalformed}, {1 << 60, 0, header.ErrMalformed}, {1 << 63, 0, header.ErrMalformed}} {
		u := &unexpected{g: &Gate{s: s}, h: header.Header{Kind: header.RTS}, buf: make([]byte, header.Size+header.BodySize(header.RTS))}
		req := header.Request{ID: 1, Total: tt.total}
		req.Put(u.buf[header.Size:])
		if got := u.status().Len; got != tt.want {
			t.Errorf("a message of %d bytes is reported with %d, want %d", tt.total, got, tt.want)
		}
		if err := u.parse(&req); !errors.Is(err, tt.err) {
			t.Errorf("a message of %d bytes is received with %v, want %v", tt.total, err, tt.err)
		}
	}
}
