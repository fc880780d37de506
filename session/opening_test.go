//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// envOpening is how a rank of TestRanksOpenOnlyWhatTheyNeed differs from others.
const (
	envOpening = "BYWASH_SESSION_TEST_OPENING"

	plainRank  = "plain"
	namedRank  = "named"   // its program names shm
	nearRank   = "near"    // its program names another driver
	allRank    = "all"     // its program wants all drivers
	withoutShm = "no shm"  // it cannot open shm
	sandboxed  = "sandbox" // it runs on a kernel of its own, or so it seems
	contained  = "inside"  // it runs in a container that does not share the directory of shm
)

// farDriver reaches, like a network, processes of all hosts: as they are on one, it is shm.
type farDriver struct{ driver.Driver }

func (farDriver) Name() string        { return "far" }
func (farDriver) MaxExclusivity() int { return 40 }

func (d farDriver) Query(h driver.Hints) (driver.NIC, error) {
	h.Options = map[string]string{"dir": os.Getenv(envDir)}
	n, err := d.Driver.Query(h)
	if err != nil {
		return nil, err
	}
	p := *n.Properties()
	p.Profile.Exclusivity = 40
	return &farNIC{n, &p}, nil
}

type farNIC struct {
	driver.NIC
	p *driver.Properties
}

func (n *farNIC) Properties() *driver.Properties { return n.p }

func (n *farNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	if n.p.Track == driver.Small {
		return farSmall{farContext{c, n.p}}, nil
	}
	return farContext{c, n.p}, nil
}

type farContext struct {
	driver.Context
	p *driver.Properties
}

func (c farContext) Properties() *driver.Properties { return c.p }

func (c farContext) Register(b []byte, a driver.Access) (driver.Region, error) {
	return c.Context.(driver.Registrar).Register(b, a)
}

// Reaches implements driver.Reacher: shm itself would report that another kernel is not reachable.
func (farContext) Reaches(string) error { return nil }
func (farContext) Domain() string       { return "everywhere" }

// farSmall is the small track's.
type farSmall struct{ farContext }

func (c farSmall) RecvProbeAny() (driver.Instance, error) {
	return c.Context.(driver.Prober).RecvProbeAny()
}

func (c farSmall) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	return c.Context.(driver.Prober).RecvWaitAny(ctx)
}

func (c farSmall) RecvCancelAny() error { return c.Context.(driver.Prober).RecvCancelAny() }
func (c farSmall) ConnectRequests(dst []uint64) []uint64 {
	return c.Context.(driver.ConnectRequestReceiver).ConnectRequests(dst)
}
func (c farSmall) OnConnectRequest(f func()) {
	c.Context.(driver.ConnectRequestReceiver).OnConnectRequest(f)
}

// openingRank joins as a job of several that names no drivers, and exchanges messages with all ranks.
func openingRank() error {
	kind := os.Getenv(envOpening)
	// Without the interfaces of the machine, and on a thread that ends with this process.
	runtime.LockOSThread()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	defer cancel()
	job, err := launch.Find(ctx) // over the loopback interface
	if err != nil {
		return err
	}
	defer job.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil && os.Geteuid() == 0 {
		return err
	}
	d, err := driver.Lookup("shm")
	if err != nil {
		return err
	}
	driver.Register(farDriver{d})
	cfg := session.Config{Job: job, Explain: os.Stdout}
	switch kind {
	case namedRank:
		cfg.Rails = []session.Rail{{Driver: "shm"}}
	case nearRank:
		cfg.Rails = []session.Rail{{Driver: "far"}}
	case allRank:
		cfg.AllDrivers = true
	case withoutShm:
		os.Setenv("XDG_RUNTIME_DIR", "")
		os.Setenv("TMPDIR", "/nonexistent")
	case sandboxed:
		if err := otherKernel(); err != nil {
			return err
		}
	case contained:
		if err := otherDirectory(); err != nil {
			return err
		}
	}
	s, err := session.Join(ctx, cfg)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, 2*s.Size())
	for r := range s.Size() {
		wg.Go(func() { errs[2*r] = s.Gate(r).Send(ctx, 1, make([]byte, 100_000)) })
		wg.Go(func() { _, errs[2*r+1] = s.Gate(r).Recv(ctx, 1, make([]byte, 100_000)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.Close(ctx)
}

// otherKernel gives this thread the boot identity of another kernel.
func otherKernel() error {
	id := filepath.Join(os.Getenv(envDir), "boot_id")
	if err := os.WriteFile(id, []byte("another\n"), 0o600); err != nil {
		return err
	}
	if err := ownMounts(); err != nil {
		return err
	}
	return unix.Mount(id, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "")
}

// otherDirectory gives this thread another directory of shm's sockets, at the same path.
func otherDirectory() error {
	dir := fmt.Sprintf("%s/bywash-%d", os.TempDir(), os.Getuid())
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := ownMounts(); err != nil {
		return err
	}
	return unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700")
}

// ownMounts gives this thread a mount namespace.
func ownMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// Ranks of one host that all have opened shm open nothing else. As soon as one of them is elsewhere, or lacks it, or
// has other drivers, all open what they have, and all reach all.
func TestRanksOpenOnlyWhatTheyNeed(t *testing.T) {
	all := []string{"far", "shm"}
	for _, tt := range []struct {
		ranks []string
		opens [][]string // by rank
	}{
		{[]string{plainRank, plainRank, plainRank}, [][]string{{"shm"}, {"shm"}, {"shm"}}},
		{[]string{plainRank, allRank}, [][]string{{"shm"}, all}},
		{[]string{plainRank, namedRank}, [][]string{{"shm"}, {"shm"}}},
		{[]string{plainRank, plainRank, nearRank}, [][]string{all, all, {"far"}}},
		{[]string{plainRank, plainRank, withoutShm}, [][]string{all, all, {"far"}}},
		{[]string{withoutShm, withoutShm}, [][]string{{"far"}, {"far"}}},
		{[]string{plainRank, plainRank, sandboxed}, [][]string{all, all, all}},
		{[]string{plainRank, plainRank, contained}, [][]string{all, all, all}},
	} {
		t.Run(strings.Join(tt.ranks, " "), func(t *testing.T) {
			if (slices.Contains(tt.ranks, sandboxed) || slices.Contains(tt.ranks, contained)) && os.Geteuid() != 0 {
				t.Skip("needs root: mounts another boot_id or directory")
			}
			for i, output := range startOpeningRanks(t, tt.ranks) {
				var opened []string
				for _, name := range all {
					if strings.Contains(output, ": "+name+":host opened, ") {
						opened = append(opened, name)
					}
				}
				if !slices.Equal(opened, tt.opens[i]) {
					t.Errorf("rank %d opened %q, want %q: output:\n%s", i, opened, tt.opens[i], output)
				}
				best := tt.opens[i][0]
				needed := strings.Contains(output, "tcp left out: not needed: all ranks reach each other by "+best+", ")
				if want := len(tt.opens[i]) == 1 && (tt.ranks[i] == plainRank || tt.ranks[i] == withoutShm && best == "far" && i < 2); needed != want {
					t.Errorf("rank %d reports that drivers are not needed: %v, want %v:\n%s", i, needed, want, output)
				}
			}
		})
	}
}

// startOpeningRanks starts ranks and returns the output of each.
func startOpeningRanks(t *testing.T, kinds []string) []string {
	t.Helper()
	dir, err := os.MkdirTemp("", "far-*") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ln, err := launch.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	secret := launch.NewSecret()
	server := launch.Serve(ln, len(kinds), secret)
	t.Cleanup(func() { _ = server.Close() })
	output := make([]string, len(kinds))
	var wg sync.WaitGroup
	for r, kind := range kinds {
		env := append(launch.RankEnv(server.Addr(), r, len(kinds), secret),
			envRole+"=opening", envOpening+"="+kind, launch.EnvDrivers+"=", nic.EnvPath+"=/nonexistent", "XDG_RUNTIME_DIR=")
		c, log := rankCommand(t, dir, env...)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() })
		wg.Go(func() {
			b, _ := io.ReadAll(out)
			output[r] = string(b)
			if err := c.Wait(); err != nil {
				t.Errorf("rank %d, %s: %v, %s\n%s", r, kind, err, log, b)
			}
			server.Ended(launch.End{Rank: r, How: launch.Lost})
		})
	}
	wg.Wait()
	return output
}
