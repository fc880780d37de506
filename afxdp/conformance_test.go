//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/drivertest"
	"github.com/bywash/bywash/internal/lab/veth"
)

// The lab is network namespaces on a switch: the tests run in the first, each peer process in one of
// its own; and a mount namespace for all of them. They vanish with the process that made them.

const (
	envLab  = "BYWASH_AFXDP_LAB" // process, and its descriptors of the namespaces
	labEnds = 26
)

var lab struct {
	mu   sync.Mutex
	free []string // paths of namespaces
	why  string   // there is none
}

func TestMain(m *testing.M) {
	if v := os.Getenv(envLab); v != "" {
		pid, fds, _ := strings.Cut(v, ":")
		for _, fd := range strings.Split(fds, ",") {
			lab.free = append(lab.free, "/proc/"+pid+"/fd/"+fd)
		}
		if err := ownSharedMemory(pid); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		drivertest.Main(m)
		return
	}
	s, err := veth.NewSwitch(labEnds, veth.Config{})
	if errors.Is(err, os.ErrPermission) {
		lab.why = err.Error()
		drivertest.Main(m)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(runInside(s))
}

// runInside runs this test binary again, in the first namespace.
func runInside(s *veth.Switch) int {
	defer s.Close()
	var fds []string
	for k := range s.Ends[1:] {
		fds = append(fds, strconv.Itoa(s.Ends[k+1].Namespace))
	}
	start := func(flags uintptr) (*exec.Cmd, error) {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Args[0] = os.Args[0]
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d:%s", envLab, os.Getpid(), strings.Join(fds, ",")))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Unshareflags: flags}
		return cmd, s.Ends[0].Start(cmd)
	}
	stop := make(chan os.Signal, 4)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	var cmd *exec.Cmd
	err := errors.ErrUnsupported
	if os.Getenv("VM_ADDR") == "" { // in a machine of hack/vm nothing runs beside, and the root is no mount
		cmd, err = start(syscall.CLONE_NEWNS)
	}
	if err != nil { // as in a chroot: no other package's tests may run meanwhile
		cmd, err = start(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		for sig := range stop {
			_ = cmd.Process.Signal(sig)
		}
	}()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// ownSharedMemory mounts an empty file system over /dev/shm if the process that made the lab has started this one in
// another mount namespace. Files of other packages' tests there would look like leaks. Peers have it from here.
func ownSharedMemory(maker string) error {
	theirs, err := os.Readlink("/proc/" + maker + "/ns/mnt")
	if err != nil {
		return err
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil || ours == theirs || maker != strconv.Itoa(os.Getppid()) {
		return err
	}
	const dir = "/dev/shm"
	err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// launch starts a peer in a namespace of its own.
func launch(ctx context.Context, cmd *exec.Cmd) {
	lab.mu.Lock()
	defer lab.mu.Unlock()
	if len(lab.free) == 0 {
		cmd.Err = errors.New("the lab has no namespace left")
		return
	}
	ns := lab.free[0]
	lab.free = lab.free[1:]
	context.AfterFunc(ctx, func() {
		lab.mu.Lock()
		defer lab.mu.Unlock()
		lab.free = append(lab.free, ns)
	})
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		cmd.Err = err
		return
	}
	cmd.Args = append([]string{nsenter, "--net=" + ns, "--", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = nsenter
}

func config(t *testing.T, track driver.Track, options map[string]string) drivertest.Config {
	if lab.why != "" {
		t.Skip("needs root: " + lab.why)
	}
	o := map[string]string{"dead-time": "1s"} // many wait for it
	for k, v := range options {
		o[k] = v
	}
	c := drivertest.Config{
		Driver: "afxdp", Hints: driver.Hints{Track: track, Device: "eth0", Options: o}, Launch: launch, Deaths: 12,
	}
	if testing.Short() {
		c.Deaths = 4
		c.Only = []string{
			"OpenOnce", "Properties", "URL", "AbsentFeatures", "ConnectSelf", "ConnectTwice", "EveryForm", "Busy", "Truncation",
			"CancelRace", "NoLostWakeup", "DisconnectDelivers", "CloseFrees", "NoAllocations",
		}
		if track == driver.Small { // how connections are made does not depend on the track
			c.Only = append(c.Only, "ConnectInAnyOrder", "ConnectAbsentPeer", "ConnectForeignURL", "ConnectSecret",
				"Order", "ProbeConcurrent", "ProbeEnd")
		}
	}
	return c
}

func TestConformanceSmall(t *testing.T) { drivertest.Run(t, config(t, driver.Small, nil)) }

func TestConformanceLarge(t *testing.T) { drivertest.Run(t, config(t, driver.Large, nil)) }

// TestConformanceVariants runs what the way that frames travel can change, over the other ways.
func TestConformanceVariants(t *testing.T) {
	for _, v := range []struct {
		name    string
		options map[string]string
		brief   driver.Track // the only one with -short
	}{
		{"udp6", map[string]string{"carrier": "udp6"}, driver.Small},
		{"ether", map[string]string{"carrier": "ether"}, driver.Small},
		{"encrypted", map[string]string{"encrypt": "on", "checksum": "on"}, driver.Large},
		{"native", map[string]string{"mode": "native"}, driver.Small},
	} {
		t.Run(v.name, func(t *testing.T) {
			for _, track := range []driver.Track{driver.Small, driver.Large} {
				if testing.Short() && track != v.brief {
					continue
				}
				t.Run(track.String(), func(t *testing.T) {
					t.Parallel() // the two share the device: its options are the same
					c := config(t, track, v.options)
					c.Attributes.Secret = []byte("what encryption needs")
					c.Only = []string{"ConnectTwice", "EveryForm", "Truncation", "DisconnectDelivers"}
					if !testing.Short() {
						c.Only = append(c.Only, "Order", "CancelRace")
					}
					drivertest.Run(t, c)
				})
			}
		})
	}
}
