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

// task is what a child is told.
type task struct {
	Track   driver.Track
	Options map[string]string
	Secret  string
	Limit   int           // exhaust: of descriptors
	Rounds  int           // churn
	Wait    time.Duration // meet: for the peer
}

// report is what a child says.
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

// meetRole connects to the url that it is told, and receives one long message
// whose rdv data it tells.
func meetRole(in *json.Decoder) error {
	k := task{Wait: 10 * time.Second}
	c, err := k.open(in)
	if err != nil {
		return err
	}
	say(report{URL: c.URL(), PID: os.Getpid()})
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
		say(report{Err: err.Error(), Auth: errors.Is(err, driver.ErrAuth)})
		return c.Close()
	}
	say(report{})
	if c.Properties().Track == driver.Large {
		p := driver.Packet{IOV: [][]byte{make([]byte, 300<<10)}}
		if err := i.RecvPost(&p); err != nil {
			return err
		}
		say(p.RdvData)
		if err := i.(driver.RecvWaiter).RecvWait(ctx, &p); err != nil {
			return err
		}
		say(report{Path: i.Path()})
	}
	var end any
	_ = in.Decode(&end) // until told, or killed
	return c.Close()
}

// leaveRole opens a context and says where, to be killed.
func leaveRole(in *json.Decoder) error {
	c, err := new(task).open(in)
	if err != nil {
		return err
	}
	say(report{URL: c.URL(), Path: core(c).path})
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
	say(report{})
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
		say(report{Err: err.Error()})
	}
	left, _ := filepath.Glob(k.Options["dir"] + "/*")
	say(report{Left: len(left), Path: "done"})
	return nil
}

func connectOnce(k task) error {
	nic, err := shmDriver{}.Query(driver.Hints{Options: k.Options})
	if err != nil {
		return err
	}
	a, err := nic.Open(driver.Attributes{})
	if err != nil {
		return err
	}
	defer a.Close()
	i, err := a.Connect(a.URL())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return i.ConnectWait(ctx)
}

// Without descriptors there is an error that says so, and nothing is left.
func TestTooFewDescriptors(t *testing.T) {
	c := startChild(t, "exhaust", nil)
	c.tell(task{Limit: 3, Options: map[string]string{"dir": t.TempDir()}})
	failures := 0
	for {
		var r report
		c.hear(&r)
		if r.Path == "done" {
			if r.Left != 0 {
				t.Errorf("%d files are left behind", r.Left)
			}
			break
		}
		failures++
		oneLine(t, errors.New(r.Err), "ulimit -n")
	}
	if failures == 0 {
		t.Error("no limit was too low: the test tests nothing")
	}
}

// A process that was killed leaves a socket, which the next open removes.
func TestSocketsOfKilledProcessesAreSwept(t *testing.T) {
	opts := map[string]string{"dir": t.TempDir()}
	c := startChild(t, "leave", nil)
	c.tell(task{Options: opts})
	var r report
	c.hear(&r)
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
		c.tell(task{Options: opts, Rounds: rounds})
		all = append(all, c)
	}
	for _, c := range all {
		c.hear(new(report))
	}
	if left, _ := os.ReadDir(opts["dir"]); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// greet connects a context of this process to a child's.
func greet(t *testing.T, c *child, ours driver.Context, k task) (driver.Instance, report, error) {
	t.Helper()
	c.tell(k)
	var r, outcome report
	c.hear(&r)
	c.tell(ours.URL())
	i, err := ours.Connect(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.Wait)
	defer cancel()
	err = i.ConnectWait(ctx)
	c.hear(&outcome)
	outcome.PID = r.PID
	return i, outcome, err
}

const nobody = 65534

// A peer of another user is refused unless both sides admit it. The kernel's credentials decide, not what the peer
// sends.
func TestOtherUsersNeedAdmission(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: starts a peer as another user")
	}
	for _, tt := range []struct {
		name         string
		ours, theirs string
		stands       bool
	}{
		{"nobody is admitted", "", "", false},
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
				c := startChild(t, "meet", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}})
				_, r, err := greet(t, c, ours, task{Options: with(dir, tt.theirs), Wait: 500 * time.Millisecond})
				if tt.stands {
					if err != nil || r.Err != "" {
						t.Errorf("got %v here, %q there, want a connection", err, r.Err)
					}
					return
				}
				if !errors.Is(err, driver.ErrAuth) && !errors.Is(err, driver.ErrBroken) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want ErrAuth", err)
				}
				if r.Err == "" {
					t.Error("the connection stands there")
				}
				if !errors.Is(err, driver.ErrAuth) && !r.Auth {
					t.Errorf("got %v here, %q there, want ErrAuth on the side that is told", err, r.Err)
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
			c := startChild(t, "meet", &tt.attr)
			i, r, err := greet(t, c, ours, task{Track: driver.Large, Options: opts, Wait: 10 * time.Second})
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
			c.hear(&p.RdvData)
			if err := i.SendPost(&p); err != nil {
				t.Fatal(err)
			}
			if err := i.(driver.SendWaiter).SendWait(soon(t), &p); err != nil {
				t.Fatal(err)
			}
			c.hear(&r)
			// It cannot name us, so that it does not attach.
			for _, path := range []string{i.Path(), r.Path} {
				if strings.Contains(path, "cma-both") || strings.Contains(path, "cma-get") || strings.Contains(path, "arena") && !tt.arena {
					t.Errorf("path is %s, want one that the namespaces admit", path)
				}
			}
			c.tell("end")
		})
	}
}
