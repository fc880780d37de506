//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/userdir"
)

func init() { driver.Register(shmDriver{}) }

type shmDriver struct{}

// Optional interfaces of a driver, which sessions and the bywash command find by type assertions.
var (
	_ driver.Configurable = shmDriver{}
	_ driver.Ranked       = shmDriver{}
)

func (shmDriver) Name() string { return Name }

// exclusivity of all its NICs; see driver.Profile.
const exclusivity = 48

func (shmDriver) MaxExclusivity() int { return exclusivity }

// Devices implements driver.Driver: there is one, this host.
func (shmDriver) Devices() []driver.Device {
	d := driver.Device{Name: "host", Description: "processes on this host"}
	if err := probeKernel(); err != nil {
		d.Err = err
		return []driver.Device{d}
	}
	dir, err := socketDir("")
	if err != nil {
		d.Err = &driver.UnavailableError{Driver: Name, Device: d.Name, Reason: "no directory for its socket", Err: err}
		return []driver.Device{d}
	}
	d.Details = []driver.Detail{
		{Name: "directory", Value: dir},
		{Name: "membarrier", Value: yesNo(registerBarrier(), "yes", "no: senders pay a fence a message")},
		{Name: "cross-memory attach", Value: yesNo(selfAttach(), "yes", "no: private memory is copied twice")},
		{Name: "memory per connection", Value: fmt.Sprintf("%d KiB small track, %d KiB large track", segmentFileSize(false)>>10, segmentFileSize(true)>>10)},
	}
	return []driver.Device{d}
}

func yesNo(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// probeKernel returns an error for what the kernel lacks and the driver requires.
func probeKernel() error {
	fd, err := unix.MemfdCreate("bywash-probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return &driver.UnavailableError{Driver: Name, Device: "host", Reason: "memfd_create is refused (requires Linux 3.17)", Err: err,
			Remedy: "admit memfd_create in the seccomp profile, raise ulimit -n"}
	}
	return unix.Close(fd)
}

func (shmDriver) Query(h driver.Hints) (driver.NIC, error) {
	if h.Device != "" && h.Device != "host" {
		return nil, &driver.UnavailableError{Driver: Name, Device: h.Device, Reason: "there is only the device host"}
	}
	if h.Track > driver.Large {
		return nil, &driver.Error{Driver: Name, Op: "query", Err: fmt.Errorf("%w: unknown track %d (want Small or Large)", driver.ErrInvalid, h.Track)}
	}
	o, err := optionTable.Parse(h.Options)
	if err != nil {
		return nil, &driver.Error{Driver: Name, Op: "query", Err: err}
	}
	if err := probeKernel(); err != nil {
		return nil, err
	}
	props := driver.Properties{
		Driver: Name, Device: "host", Track: h.Track,
		Capabilities: capabilities(h.Track), Profile: profile(h.Track),
	}
	return kit.NewNIC(props, func(a driver.Attributes) (*hostContext, error) { return openContext(props, o, a) }), nil
}

func capabilities(t driver.Track) driver.Capabilities {
	c := driver.Capabilities{
		IOVec: true, Data: true, SendWait: true, RecvWait: true,
		DeadTime: time.Second,
		OneSided: &driver.OneSidedCapabilities{
			Put: true, Get: true, MaxPut: maxTransfer, MaxGet: maxTransfer,
			PutAlignment: 1, GetAlignment: 1,
			Atomics32: driver.AllAtomics, Atomics64: driver.AllAtomics,
			Fetch32: driver.AllAtomics, Fetch64: driver.AllAtomics,
			AtomicWithCPU: true, AtomicArenaOnly: true,
			KeySize: keyBytes, Depth: opDepth,
		},
	}
	if t == driver.Small {
		c.MaxMessage, c.BufferSize = maxSmall, maxSmall
		c.BufferSend, c.BufferRecv, c.Probe = true, true, true
		c.SendDepth, c.RecvDepth = kit.PacketQueueDepth, kit.PacketQueueDepth
		c.Ordered = true
		return c
	}
	c.MaxMessage = maxTransfer
	c.RdvSize = rdvBytes
	c.SendDepth, c.RecvDepth = transferDepth, transferDepth
	return c
}

func profile(t driver.Track) driver.Profile {
	p := driver.Profile{Latency: 100 * time.Nanosecond, Bandwidth: 10e9, Exclusivity: exclusivity}
	if t == driver.Large {
		p.Latency, p.Bandwidth = 600*time.Nanosecond, 40e9
	}
	return p
}

// socketDir finds and, if it is our own, makes the directory for sockets:
// the given one, else bywash in XDG_RUNTIME_DIR, else one in the directory for
// temporary files that only this user can enter.
func socketDir(given string) (string, error) {
	if given != "" {
		st, err := os.Stat(given)
		switch {
		case err != nil:
			return "", fmt.Errorf("option dir: %w", err)
		case !st.IsDir():
			return "", fmt.Errorf("%w: option dir: %s is not a directory", driver.ErrInvalid, given)
		}
		return filepath.Abs(given) // the url needs it
	}
	dir := userdir.Path()
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", resourceError(opDirectory, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", fmt.Errorf("stat %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 {
		return "", fmt.Errorf("%w: %s is not a directory that only this user can enter (remove it, or set the option dir)", driver.ErrAuth, dir)
	}
	return dir, nil
}
