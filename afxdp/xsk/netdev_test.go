//go:build linux && !(386 || arm || mips || mipsle)

package xsk

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/lab/veth"
)

// setQueues changes the numbers of queues in use (ETHTOOL_SCHANNELS).
func setQueues(t *testing.T, e *veth.End, rx, tx uint32) {
	t.Helper()
	err := e.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		c := ethtoolChannels{cmd: unix.ETHTOOL_SCHANNELS, rx: rx, tx: tx}
		return ethtool(fd, e.Device, unsafe.Pointer(&c))
	})
	if err != nil {
		t.Fatalf("set %d receive and %d transmit queues: %v", rx, tx, err)
	}
}

func TestQueueWithoutATransmitQueueIsReported(t *testing.T) {
	p, err := veth.New(veth.Config{Queues: 2})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	e := &p.Ends[0]
	setQueues(t, e, 2, 1)
	u, err := NewUMEM(UMEMConfig{Chunks: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	err = e.Do(func() error {
		cfg := Config{Device: e.Device, Match: Match{All: true}, UMEM: u}
		d, err := Open(cfg)
		if err == nil {
			d.Close()
		}
		if !errors.Is(err, ErrNoTxQueue) {
			t.Errorf("open: got %v, want ErrNoTxQueue", err)
		}
		// To receive alone is possible.
		cfg.Socket.Tx = -1
		if d, err = Open(cfg); err != nil {
			return err
		}
		if err := d.Close(); err != nil {
			return err
		}
		s, err := NewSocket(u, SocketConfig{Device: e.Device, Queue: 1})
		if err != nil {
			return err
		}
		defer s.Close()
		s.Transmit([]Desc{{Addr: 0, Len: 64}})
		if err := s.Kick(); err != ErrNoTxQueue {
			t.Errorf("kick: got %v, want ErrNoTxQueue", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
