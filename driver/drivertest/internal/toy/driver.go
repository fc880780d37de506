//go:build linux

package toy

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"golang.org/x/sys/unix"
)

const (
	name    = "toy"
	version = 2

	bufferSize = 4096
	smallMax   = 64 << 10
	largeMax   = 64 << 20
	depth      = kit.LargeDepth // of the large track, and of what waits to be written
	opDepth    = 8
	maxPut     = 1 << 20
	// updateFrom is the length from which the large track asks for an update
	// of the rdv data before anything is sent.
	updateFrom = 1 << 20
)

func init() { driver.Register(Driver{}) }

// Driver is the toy.
type Driver struct{}

// Name implements driver.Driver.
func (Driver) Name() string { return name }

// Devices implements driver.Driver.
func (Driver) Devices() []driver.Device {
	return []driver.Device{{Name: "toy0", Description: "Unix sockets"}}
}

// Query implements driver.Driver.
func (Driver) Query(h driver.Hints) (driver.NIC, error) {
	fault, dir := h.Options["fault"], h.Options["dir"]
	if _, known := Faults[fault]; fault != "" && !known {
		return nil, wrap("query", fmt.Errorf("%w: fault %q", driver.ErrInvalid, fault))
	}
	for o := range h.Options {
		if o != "fault" && o != "dir" && fault != "any-option" {
			return nil, wrap("query", fmt.Errorf("%w: option %q", driver.ErrInvalid, o))
		}
	}
	if h.Device != "" && h.Device != "toy0" {
		return nil, &driver.UnavailableError{Driver: name, Device: h.Device, Reason: "there is no device of that name"}
	}
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "bywash-toy")
	}
	return &nic{fault: fault, dir: dir, prop: properties(h.Track, fault)}, nil
}

func properties(track driver.Track, fault string) driver.Properties {
	small := track == driver.Small
	p := driver.Properties{Driver: name, Device: "toy0", Track: track}
	p.Profile = driver.Profile{Latency: 10 * time.Microsecond, Bandwidth: 1e9}
	c := &p.Capabilities
	*c = driver.Capabilities{
		MaxMessage: largeMax, IOVec: true, Data: true,
		SendWait: true, RecvWait: true, SendDepth: depth, RecvDepth: depth,
		Prefetch: !small, RdvUpdate: !small, BufferSend: small, BufferRecv: small,
		Probe: small, Ordered: small, DeadTime: 400 * time.Millisecond,
		OneSided: &driver.OneSidedCapabilities{
			Put: true, Get: true, MaxPut: maxPut, MaxGet: maxPut, PutAlignment: 1, GetAlignment: 1,
			Atomics32: driver.AllAtomics, Atomics64: driver.AllAtomics,
			Fetch32: driver.AllAtomics, Fetch64: driver.AllAtomics,
			AtomicWithCPU: true, KeySize: keySize, Depth: opDepth,
		},
	}
	if small {
		c.MaxMessage, c.BufferSize = smallMax, bufferSize
		c.SendDepth, c.RecvDepth = kit.PacketQueueDepth, kit.PacketQueueDepth
	} else {
		c.RdvSize = rdvSize
	}
	if fault == "hidden-wait" {
		c.RecvWait = false
	}
	return p
}

type nic struct {
	fault, dir string
	prop       driver.Properties
	opened     atomic.Bool
}

func (n *nic) Properties() *driver.Properties { return &n.prop }

func (n *nic) Open(a driver.Attributes) (driver.Context, error) {
	if n.opened.Swap(true) && n.fault != "second-open" {
		return nil, wrap("open", fmt.Errorf("%w: opened before", driver.ErrInvalid))
	}
	key, err := kit.NewKey(a.Secret)
	if err != nil && n.fault == "short-secret" {
		key, err = kit.NewKey(nil)
	}
	if err == nil {
		err = os.MkdirAll(n.dir, 0o700)
	}
	if err != nil {
		return nil, wrap("open", err)
	}
	if n.fault != "no-sweep" {
		sweep(n.dir)
	}
	c := &nicContext{nic: n, fault: n.fault, key: key}
	if err := c.open(a); err != nil {
		return nil, wrap("open", err)
	}
	driver.Opened(c.Self())
	return c.Self(), nil
}

// sweep removes the sockets of processes that were killed.
func sweep(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.sock"))
	for _, f := range files {
		var pid int
		_, err := fmt.Sscanf(filepath.Base(f), "%d-", &pid)
		if err == nil && unix.Kill(pid, 0) == unix.ESRCH {
			os.Remove(f)
		}
	}
}

func random() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func wrap(op string, err error) error { return &driver.Error{Driver: name, Op: op, Err: err} }
