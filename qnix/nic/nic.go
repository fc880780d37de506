//go:build linux

package nic

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/internal/abi"
)

// NIC is an open network interface. Its methods can be called from any
// goroutine.
type NIC struct {
	host host
	info Info

	mu          sync.Mutex
	process     *Process
	registering context.CancelFunc // of a Register under way
	registered  chan struct{}      // closed when it has returned
	closed      bool
}

// host carries the calls of a NIC: through the module's device or a softnic's socket. Its errors are bare errnos, or
// complete.
type host interface {
	info(*abi.Info) error
	// register returns both mappings, which the caller must unmap.
	register(context.Context, *abi.Register) (vni, hps []byte, err error)
	deregister() error
	// translate translates memory of this process if fd is -1; otherwise t.Addr is the address of memory at offset in
	// fd.
	translate(t *abi.Translate, fd int, offset uint64) error
	untranslate(handle uint32) error
	join(context.Context, *abi.Group) error
	leave(*abi.Group) error
	// kick wakes the NIC. It does not allocate.
	kick() error
	// sleep blocks until the tail differs from seen, w differs from seenWakes, or d has passed. It may return early.
	sleep(tail *uint32, seen uint32, w *atomic.Uint32, seenWakes uint32, d time.Duration)
	// wake ends sleeps after w was changed.
	wake(tail *uint32, w *atomic.Uint32)
	// watch makes the host call f once when it has ended.
	watch(f func())
	statistics(*abi.Statistics) error
	// gone reports whether the host has ended or was given up.
	gone() bool
	// abandon gives up a host that does not answer: calls fail with ErrGone. abandoned reports whether the host was
	// given up.
	abandon()
	abandoned() bool
	// outside returns a channel that is closed once the host accesses no memory of this process any more: it has ended,
	// or has closed its end of the connection.
	outside() <-chan struct{}
	close() error
}

// Open opens a NIC: a device of the kernel module ("/dev/qnix0") or the socket of a NIC in user space ("…/qnix0.sock"),
// which a program finds by [DefaultPath] or gets from its user. It fails with ErrVersion if it does not know the NIC's
// version. Other errors wrap the kernel's errno and name the remedy. It waits at most a second for the answer of a
// softnic.
func Open(path string) (*NIC, error) {
	h, err := openHost(path)
	if err != nil {
		return nil, openError(path, err)
	}
	n := &NIC{host: h}
	var i abi.Info
	if err := h.info(&i); err != nil {
		_ = h.close()
		return nil, openError(path, err)
	}
	if err := checkInfo(&i); err != nil {
		_ = h.close()
		return nil, fmt.Errorf("qnix: open %s: %w", path, err)
	}
	n.info = makeInfo(&i)
	return n, nil
}

func openHost(path string) (host, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return openDevice(path)
	case unix.S_IFSOCK:
		return openSocket(path)
	}
	return nil, fmt.Errorf("neither a device nor a socket: %w", unix.EINVAL)
}

// checkInfo returns an error for a NIC with another version of the structures.
func checkInfo(i *abi.Info) error {
	if i.ABIVersion != abi.Version {
		older := "this program"
		if i.ABIVersion < abi.Version {
			older = "the module, or the softnic"
		}
		return fmt.Errorf("%w: the NIC has %d, this program %d (update %s)", ErrVersion, i.ABIVersion, abi.Version, older)
	}
	for _, s := range []struct {
		name      string
		got, want uint64
	}{
		{"command", uint64(i.SizeCommand), uint64(unsafe.Sizeof(abi.Command{}))},
		{"context", uint64(i.SizeContext), uint64(unsafe.Sizeof(abi.Context{}))},
		{"descriptor", uint64(i.SizeDescriptor), uint64(unsafe.Sizeof(abi.Descriptor{}))},
		{"memory info", uint64(i.SizeMemoryInfo), uint64(unsafe.Sizeof(abi.MemoryInfo{}))},
		{"status", uint64(i.SizeStatus), uint64(unsafe.Sizeof(abi.Status{}))},
		{"doorbell", uint64(i.SizeDoorbell), uint64(unsafe.Sizeof(abi.Doorbell{}))},
	} {
		if s.got != s.want {
			return fmt.Errorf("%w: a %s of %d bytes, here it has %d", ErrVersion, s.name, s.got, s.want)
		}
	}
	return nil
}

// makeInfo converts i, and cuts limits to those of the interface.
func makeInfo(i *abi.Info) Info {
	upTo := func(v uint32, most int) int { return int(min(v, uint32(most))) }
	return Info{
		Soft: i.Features&abi.FeatureSoft != 0, NIC: int(i.NIC), NICs: upTo(i.NICs, math.MaxUint16),
		PacketSize: upTo(i.PacketSize, math.MaxInt32), LocalMemory: upTo(i.LocalMemory, math.MaxInt32),
		MaxProcesses: upTo(i.MaxProcesses, math.MaxUint16), MaxPerUser: upTo(i.MaxPerUser, math.MaxUint16),
		MaxContexts: upTo(i.MaxContexts, abi.MaxContexts), MaxCommands: upTo(i.MaxCommands, abi.MaxCommands),
		MaxRegion: upTo(i.MaxRegion, abi.MaxRegion), MaxPool: upTo(i.MaxPool, abi.MaxPool),
		MaxMessage: upTo(i.MaxMessage, abi.MaxMessage), MaxTranslations: upTo(i.MaxTranslations, math.MaxInt32),
	}
}

// Info returns the properties that the NIC reported when it was opened.
func (n *NIC) Info() Info { return n.info }

// Close deregisters the process, if one is registered, and closes the NIC. A Register under way ends, with the module
// at its deadline. A second call fails with ErrClosed.
func (n *NIC) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return ErrClosed
	}
	n.closed = true
	registered := n.registered
	if n.registering != nil {
		n.registering()
	}
	p := n.process
	n.mu.Unlock()
	if registered != nil {
		<-registered
	}
	// Closing the host would deregister as well, but not wait for the end.
	if p != nil && p.Deregister() == ErrClosed {
		<-p.ended // by another call
	}
	return n.host.close()
}
