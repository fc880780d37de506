//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// task is the order to a child.
type task struct {
	Track   driver.Track
	Options map[string]string
	Secret  string
	Limit   int           // exhaust: of descriptors
	Pair    bool          // exhaust: two contexts, not one that connects to itself
	Rounds  int           // churn
	Wait    time.Duration // connect: for the peer
}

// report is what a child sends.
type report struct {
	URL, Path string
	Err       string
	Auth      bool
	Left      int
	PID       int
}

func (k *task) open(in *json.Decoder) (driver.Context, error) {
	if err := in.Decode(k); err != nil {
		return nil, err
	}
	nic, err := shmDriver{}.Query(driver.Hints{Track: k.Track, Options: k.Options})
	if err != nil {
		return nil, err
	}
	return nic.Open(driver.Attributes{Secret: []byte(k.Secret)})
}

// connectRole connects to the url that it reads, and receives one long message
// whose rdv data it sends.
func connectRole(in *json.Decoder) error {
	k := task{Wait: 10 * time.Second}
	c, err := k.open(in)
	if err != nil {
		return err
	}
	reply(report{URL: c.URL(), PID: os.Getpid()})
	var url string
	if err := in.Decode(&url); err != nil {
		return err
	}
	i, err := c.Connect(url)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.Wait)
	defer cancel()
	if err := i.ConnectWait(ctx); err != nil {
		reply(report{Err: err.Error(), Auth: errors.Is(err, driver.ErrAuth)})
		return c.Close()
	}
	reply(report{})
	if c.Properties().Track == driver.Large {
		p := driver.Packet{IOV: [][]byte{make([]byte, 300<<10)}}
		if err := i.RecvPost(&p); err != nil {
			return err
		}
		reply(p.RdvData)
		if err := i.(driver.RecvWaiter).RecvWait(ctx, &p); err != nil {
			return err
		}
		reply(report{Path: i.Path()})
	}
	var end any
	_ = in.Decode(&end) // until it reads an order, or is killed
	return c.Close()
}

// leaveRole opens a context and sends its url, to be killed.
func leaveRole(in *json.Decoder) error {
	c, err := new(task).open(in)
	if err != nil {
		return err
	}
	reply(report{URL: c.URL(), Path: core(c).path})
	var end any
	_ = in.Decode(&end)
	return nil
}

// churnRole opens and closes contexts, and checks that each stays reachable.
func churnRole(in *json.Decoder) error {
	var k task
	if err := in.Decode(&k); err != nil {
		return err
	}
	for range k.Rounds {
		nic, err := shmDriver{}.Query(driver.Hints{Options: k.Options})
		if err != nil {
			return err
		}
		c, err := nic.Open(driver.Attributes{})
		if err != nil {
			return err
		}
		if _, err := os.Stat(core(c).path); err != nil {
			return fmt.Errorf("a live socket was swept: %w", err)
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	reply(report{})
	return nil
}

// exhaustRole runs out of descriptors at every step of a connection.
func exhaustRole(in *json.Decoder) error {
	var k task
	if err := in.Decode(&k); err != nil {
		return err
	}
	if err := connectOnce(k); err != nil { // the runtime needs descriptors of its own
		return err
	}
	for limit := k.Limit; ; limit++ {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: 4096}); err != nil {
			return err
		}
		err := connectOnce(k)
		if err == nil {
			break
		}
		reply(report{Err: err.Error()})
	}
	left, _ := filepath.Glob(k.Options["dir"] + "/*")
	reply(report{Left: len(left), Path: "done"})
	return nil
}

func connectOnce(k task) error {
	a, err := openForOnce(k)
	if err != nil {
		return err
	}
	defer a.Close()
	if k.Pair {
		return connectPair(k, a)
	}
	i, err := a.Connect(a.URL())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return i.ConnectWait(ctx)
}

// connectPair connects a and another context of this process. The error is those of both ends.
func connectPair(k task, a driver.Context) error {
	b, err := openForOnce(k)
	if err != nil {
		return err
	}
	defer b.Close()
	i, err := a.Connect(b.URL())
	if err != nil {
		return err
	}
	j, err := b.Connect(a.URL())
	if err != nil {
		return err
	}
	wait := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		return errors.Join(i.ConnectWait(ctx), j.ConnectWait(ctx))
	}
	err = wait(500 * time.Millisecond)
	if err != nil && toldToPeer(err.Error()) {
		err = wait(10 * time.Second)
	}
	return err
}

// toldToPeer reports whether an end lacks descriptors for a connection of which the other end knows, and has to be told.
func toldToPeer(err string) bool {
	return strings.Contains(err, "memfd_create") || strings.Contains(err, "receive the peer's memory")
}

func openForOnce(k task) (driver.Context, error) {
	nic, err := shmDriver{}.Query(driver.Hints{Options: k.Options})
	if err != nil {
		return nil, err
	}
	return nic.Open(driver.Attributes{})
}

// Without descriptors there is an error that names them, at both ends, and nothing is left.
func TestTooFewDescriptors(t *testing.T) {
	for _, tt := range []struct {
		name string
		pair bool
	}{{"self", false}, {"pair", true}} {
		t.Run(tt.name, func(t *testing.T) {
			c := startChild(t, "exhaust", nil)
			c.write(task{Limit: 3, Pair: tt.pair, Options: map[string]string{"dir": t.TempDir()}})
			failures, told := 0, 0
			var r report
			for c.read(&r); r.Path != "done"; c.read(&r) {
				failures++
				if toldToPeer(r.Err) {
					told++
				}
				for _, line := range strings.Split(r.Err, "\n") {
					if tt.pair && !toldToPeer(r.Err) && strings.Contains(line, "has not answered") {
						continue
					}
					oneLine(t, errors.New(line), "ulimit -n")
				}
			}
			if r.Left != 0 {
				t.Errorf("%d files are left behind", r.Left)
			}
			if failures == 0 || told == 0 {
				t.Errorf("%d failures, %d told to the other end: the test tests nothing", failures, told)
			}
		})
	}
}

// A process that was killed leaves a socket, which the next open removes.
func TestSocketsOfKilledProcessesAreSwept(t *testing.T) {
	opts := map[string]string{"dir": t.TempDir()}
	c := startChild(t, "leave", nil)
	c.write(task{Options: opts})
	var r report
	c.read(&r)
	open(t, driver.Small, opts)
	if _, err := os.Stat(r.Path); err != nil {
		t.Errorf("the socket of a live process was swept: %v", err)
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	open(t, driver.Small, opts)
	if _, err := os.Stat(r.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a dead process stays: %v", err)
	}
}

// Processes that open and close contexts in one directory never remove the sockets of live contexts, and leave none
// behind.
func TestLiveSocketsAreNeverSwept(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	opts := map[string]string{"dir": t.TempDir()}
	var all []*child
	for range 4 {
		c := startChild(t, "churn", nil)
		c.write(task{Options: opts, Rounds: rounds})
		all = append(all, c)
	}
	for _, c := range all {
		c.read(new(report))
	}
	if left, _ := os.ReadDir(opts["dir"]); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// connectChild connects a context of this process to a child's.
func connectChild(t *testing.T, c *child, ours driver.Context, k task) (driver.Instance, report, error) {
	t.Helper()
	c.write(k)
	var r, outcome report
	c.read(&r)
	c.write(ours.URL())
	i, err := ours.Connect(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.Wait)
	defer cancel()
	err = i.ConnectWait(ctx)
	c.read(&outcome)
	outcome.PID = r.PID
	return i, outcome, err
}

const otherUID = 65534

// A peer of another user is refused unless both sides admit it. The kernel's credentials decide, not what the peer
// sends.
func TestOtherUsersNeedAdmission(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: starts a peer as another user")
	}
	for _, tt := range []struct {
		name         string
		ours, theirs string
		admitted     bool
	}{
		{"no user is admitted", "", "", false},
		{"only we admit", "65534", "", false},
		{"only they admit", "", "0", false},
		{"both admit", "65534", "0", true},
	} {
		for range 3 { // either side dials
			t.Run(tt.name, func(t *testing.T) {
				with := func(dir, uids string) map[string]string {
					o := map[string]string{"dir": dir, "path": "arena"}
					if uids != "" {
						o["allow-uids"] = uids
					}
					return o
				}
				dir := openDir(t)
				ours := open(t, driver.Small, with(dir, tt.ours))
				c := startChild(t, "connect", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}})
				_, r, err := connectChild(t, c, ours, task{Options: with(dir, tt.theirs), Wait: 500 * time.Millisecond})
				if tt.admitted {
					if err != nil || r.Err != "" {
						t.Errorf("got %v here, %q there, want a connection", err, r.Err)
					}
					return
				}
				if !errors.Is(err, driver.ErrAuth) && !errors.Is(err, driver.ErrBroken) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want ErrAuth", err)
				}
				if r.Err == "" {
					t.Error("the connection is established there")
				}
				if !errors.Is(err, driver.ErrAuth) && !r.Auth {
					t.Errorf("got %v here, %q there, want ErrAuth on the side that gets the reason", err, r.Err)
				}
			})
		}
	}
}

// Processes that cannot name each other connect, and find a way for long messages that needs no names. A process that
// cannot be named is never attached to.
func TestContainersThatShareADirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes namespaces")
	}
	for _, tt := range []struct {
		name  string
		attr  syscall.SysProcAttr
		arena bool
	}{
		{"own pids", syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}, false},
		{"own pids, arena", syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}, true},
		{"own users and pids", syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWPID | unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opts := map[string]string{"dir": t.TempDir()}
			ours := open(t, driver.Large, opts)
			c := startChild(t, "connect", &tt.attr)
			i, r, err := connectChild(t, c, ours, task{Track: driver.Large, Options: opts, Wait: 10 * time.Second})
			if err != nil || r.Err != "" {
				t.Fatalf("got %v here, %q there, want a connection", err, r.Err)
			}
			if r.PID != 1 {
				t.Fatalf("the peer is process %d of its namespace, want 1", r.PID)
			}
			src := random(300 << 10)
			if tt.arena {
				ar, err := driver.NewArena(1 << 20)
				if err != nil {
					t.Fatal(err)
				}
				src = ar.Alloc(300 << 10)
			}
			p := driver.Packet{IOV: [][]byte{src}}
			c.read(&p.RdvData)
			if err := i.SendPost(&p); err != nil {
				t.Fatal(err)
			}
			if err := i.(driver.SendWaiter).SendWait(soon(t), &p); err != nil {
				t.Fatal(err)
			}
			c.read(&r)
			// It cannot name us, so that it does not attach.
			for _, path := range []string{i.Path(), r.Path} {
				if strings.Contains(path, "cma-both") || strings.Contains(path, "cma-get") || strings.Contains(path, "arena") && !tt.arena {
					t.Errorf("path is %s, want one that the namespaces admit", path)
				}
			}
			c.write("end")
		})
	}
}
