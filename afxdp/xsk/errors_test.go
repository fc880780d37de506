//go:build linux && !(386 || arm || mips || mipsle)

package xsk

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestErrorsMatchTheirText(t *testing.T) {
	tests := []struct {
		err, is error
		output  string
	}{
		{unsupported("x", "6.6", nil), errors.ErrUnsupported, "requires Linux >= 6.6"},
		{unsupported("x", "6.6", io.EOF), errors.ErrUnsupported, "requires Linux >= 6.6"},
		{unsupported("x", "6.6", io.EOF), io.EOF, "EOF"},
		{ErrLinkDown, unix.ENETDOWN, "down"},
		{ErrDeviceGone, unix.ENXIO, "gone"},
		{ErrNoTxQueue, unix.EINVAL, "ethtool"},
		{ErrClosed, os.ErrClosed, "closed"},
		{ErrQueueBusy, unix.EBUSY, "queue"},
		{ErrProgramAttached, unix.EBUSY, "attached"},
	}
	for _, tt := range tests {
		if !errors.Is(tt.err, tt.is) || !strings.Contains(tt.err.Error(), tt.output) {
			t.Errorf("got %q, want it to match %v and contain %q", tt.err, tt.is, tt.output)
		}
	}
}
