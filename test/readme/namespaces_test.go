//go:build linux

package readme

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/lab/veth"
	"github.com/bywash/bywash/session/launch"
)

// program is the descriptor at which the program of README is open in every process here: a /tmp mounted over the folder
// of this test hides its file.
const program = "/proc/self/fd/3"

// container runs a command as an ordinary user, with what a container has of its own: shared memory, a table of processes,
// a /tmp. The arguments are the folder that is /tmp there, the user's number, and the command.
const container = `mount --bind "$1" /tmp && mount -t tmpfs tmpfs /dev/shm && mount -t proc proc /proc && user=$2 && shift 2 &&
exec setpriv --reuid "$user" --regid "$user" --clear-groups --inh-caps=-all --bounding-set=-all -- "$@"`

// rootless runs the program in a container that an ordinary user makes, with a /tmp of its own.
const rootless = `mount -t tmpfs tmpfs /tmp && exec ` + program

// openJob builds the program of README once, and opens it. The file is gone then.
var openJob = sync.OnceValues(func() (*os.File, error) {
	dir, err := os.MkdirTemp("", "job")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "job")
	if out, err := exec.Command("go", "build", "-o", path, "../../examples/job").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.Open(path)
})

func theJob(t *testing.T) *os.File {
	t.Helper()
	f, err := openJob()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// everybodys makes a folder as /tmp is.
func everybodys(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The program of README runs between two network namespaces, by ordinary users, with nothing set but the launcher. The
// containers are on one kernel and do not share the directory of shared memory's sockets, or their users differ.
func TestTheJobRunsBetweenNamespaces(t *testing.T) {
	for _, tool := range []string{"setpriv", "mount", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s (Debian: util-linux, mount)", tool)
		}
	}
	job := theJob(t)
	shared := everybodys(t)
	for _, tt := range []struct {
		name    string
		users   [2]string
		tmp     [2]string
		command []string
	}{
		{"one user", [2]string{"65534", "65534"}, [2]string{everybodys(t), everybodys(t)}, []string{program}},
		{"two users", [2]string{"65534", "65533"}, [2]string{shared, shared}, []string{program}},
		{"two users, apart", [2]string{"65534", "65533"}, [2]string{everybodys(t), everybodys(t)}, []string{program}},
		{"rootless", [2]string{"65534", "65534"}, [2]string{shared, shared}, []string{"unshare", "-Urm", "sh", "-c", rootless}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pair := newPair(t)
			if tt.command[0] == "unshare" {
				needUserNamespaces(t, tt.users[0])
			}
			runJob(t, pair, "tcp:", func(r int) *exec.Cmd {
				c := exec.Command("sh", append([]string{"-c", container, "sh", tt.tmp[r], tt.users[r]}, tt.command...)...)
				c.Env, c.ExtraFiles = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent"}, []*os.File{job}
				c.SysProcAttr = &syscall.SysProcAttr{
					Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC, Unshareflags: syscall.CLONE_NEWNS,
				}
				return c
			})
		})
	}
}

// A rail may have its short messages from one driver and its long ones from another.
func TestTheJobRunsOverARailOfTwoDrivers(t *testing.T) {
	pair, job := newPair(t), theJob(t)
	said := runJob(t, pair, "afxdp+tcp:", func(r int) *exec.Cmd {
		c := exec.Command(program)
		c.Env, c.ExtraFiles = []string{"BYWASH_DRIVERS=afxdp:" + pair.Ends[r].Device + "+tcp"}, []*os.File{job}
		c.SysProcAttr = new(syscall.SysProcAttr)
		return c
	})
	for r, s := range said {
		if !strings.HasSuffix(s, ", long tcp\n") {
			t.Errorf("rank %d said %q, and not that long messages go by tcp", r, s)
		}
	}
}

// newPair makes two network namespaces with a cable between them.
func newPair(t *testing.T) *veth.Pair {
	t.Helper()
	pair, err := veth.New(veth.Config{Offloads: true})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pair.Close() })
	return pair
}

// runJob runs a rank at each end, which must say that the message of the other came by what is given, and nothing else.
// It returns what they said.
func runJob(t *testing.T, pair *veth.Pair, by string, rank func(r int) *exec.Cmd) [2]string {
	t.Helper()
	var ln net.Listener
	err := pair.Ends[0].Do(func() (err error) {
		ln, err = launch.Listen(t.Context(), pair.Ends[0].IPv4.Addr().String()+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	secret := launch.NewSecret()
	server := launch.Serve(ln, 2, secret)
	t.Cleanup(func() { _ = server.Close() })
	var ranks [2]*exec.Cmd
	var out [2]bytes.Buffer
	for r := range ranks {
		c := rank(r)
		c.Env = append(c.Env, launch.RankEnv(server.Addr(), r, 2, secret)...)
		c.Stdout, c.Stderr, c.SysProcAttr.Pdeathsig = &out[r], &out[r], syscall.SIGKILL
		if err := pair.Ends[r].Start(c); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() })
		ranks[r] = c
	}
	late := time.AfterFunc(time.Minute, func() {
		for _, c := range ranks {
			_ = c.Process.Kill()
		}
	})
	defer late.Stop()
	var said [2]string
	for r, c := range ranks {
		err := c.Wait()
		said[r] = out[r].String()
		want := fmt.Sprintf("rank %d: hello from rank %d of 2, by %s", r, 1-r, by)
		if err != nil || !strings.HasPrefix(said[r], want) || strings.Count(said[r], "\n") != 1 {
			t.Errorf("got %q (%v), want %q", said[r], err, want)
		}
	}
	return said
}

// needUserNamespaces skips the test if a user may not make a user namespace.
func needUserNamespaces(t *testing.T, user string) {
	t.Helper()
	c := exec.Command("setpriv", "--reuid", user, "--clear-groups", "--", "unshare", "-Urm", "true")
	if out, err := c.CombinedOutput(); err != nil {
		t.Skipf("needs user namespaces for ordinary users: %v: %s", err, out)
	}
}
