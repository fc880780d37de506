//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	roles["lives"] = func(args []string) error { return roleLives(args[0]) }
	roles["joins"] = func([]string) error { return roleJoins() }
	roles["crumbs"] = func(args []string) error { return roleCrumbs(args[0]) }
}

const mallory = 1000 // an unprivileged user

// tally is what a role could do, and the first errno that stopped it.
type tally struct {
	Count int
	Errno syscall.Errno
}

func (t tally) say() error { return json.NewEncoder(os.Stdout).Encode(t) }

// roleLives registers again and again, and each time leaves a message that nobody receives.
func roleLives(lives string) error {
	n, err := strconv.Atoi(lives)
	if err != nil {
		return err
	}
	for i := range n {
		r := registerArg{Name: name(fmt.Sprint("m", i)), Commands: 8, Sends: 1, Receives: 1, RegionSize: 64}
		p, err := register(0, r)
		if err != nil {
			var errno syscall.Errno
			errors.As(err, &errno)
			return tally{i, errno}.say()
		}
		if err := p.transfer(cmdSendShort, 0, sendContext{Process: name("deaf"), Tag: 1, Flags: flagDoorbell, Len: 8}); err != nil {
			return err
		}
		if _, _, err := p.await(false, 0); err != nil {
			return err
		}
		p.close()
	}
	return tally{n, 0}.say()
}

// roleJoins joins groups of one until it is refused.
func roleJoins() error {
	p, err := register(0, small("joiner"))
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		err := ioctl(p.fd, iocJoin, unsafe.Pointer(&groupArg{Name: name(fmt.Sprint("mine", i)), Size: 1, TimeoutMs: 5000}))
		var errno syscall.Errno
		if errors.As(err, &errno) {
			if err := (tally{i, errno}).say(); err != nil {
				return err
			}
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until its input ends
			return nil
		}
	}
}

const crumbs = 65536

// roleCrumbs broadcasts a message of one-byte descriptors to so many members, which are all this process.
func roleCrumbs(members string) error {
	n, err := strconv.Atoi(members)
	if err != nil {
		return err
	}
	ps := make([]*process, n+1)
	errs := make([]error, n+1)
	var wait sync.WaitGroup
	for i := range ps {
		wait.Go(func() {
			r := registerArg{Name: name(fmt.Sprint("c", i)), Group: name("crumbs"), GroupSize: uint32(n + 1), Commands: 8,
				Sends: 1, Receives: 1, RegionSize: 64}
			if i == 0 {
				r.PoolEntries = crumbs
			}
			ps[i], errs[i] = register(0, r)
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	memory, err := anonymous(crumbs)
	if err != nil {
		return err
	}
	for i, p := range ps {
		h, err := p.translate(memory, accessRead|accessWrite)
		if err != nil {
			return err
		}
		if i > 0 {
			p.describe(true, 0, descriptor{Handle: h, Len: crumbs})
			err := p.transfer(cmdReceive, 0, sendContext{Process: name("c0"), Flags: flagDoorbell, Len: crumbs, Descriptors: 1})
			if err != nil {
				return err
			}
			continue
		}
		pool := unsafe.Slice((*descriptor)(unsafe.Pointer(&p.vni[p.info.BufferPool])), crumbs)
		for k := range pool {
			pool[k] = descriptor{Handle: h, Len: 1, Offset: uint64(k)}
		}
	}
	*ps[0].context(false, 0) = sendContext{Flags: flagDoorbell | flagPool, Len: crumbs, Descriptors: crumbs}
	fmt.Println("go")
	if err := ps[0].post(command{Command: cmdBroadcast, Name: name("crumbs")}); err != nil {
		return err
	}
	if _, _, err := ps[0].await(false, 0); err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

// user starts a role as a user who may open the devices and has no other right.
func user(t *testing.T, uid uint32, nics int, role string, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	for i := range nics {
		if err := os.Chmod(device(i), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	cmd := child(t, role, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: unix.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewReader(out)
}

func heard(t *testing.T, out *bufio.Reader) (got tally) {
	t.Helper()
	if err := json.NewDecoder(out).Decode(&got); err != nil {
		t.Fatalf("the role ended without a word: %v", err)
	}
	return got
}

// A user whose processes die with messages that nobody receives stops nobody's registration.
func TestUserWhoDiesOftenStopsNobody(t *testing.T) {
	load(t, "nics=2 processes=64 names=128")
	mustRegister(t, 1, small("deaf"))
	_, out := user(t, mallory, 2, "lives", "200")
	if got := heard(t, out); got != (tally{Count: 200}) {
		t.Errorf("the user lived %d times, then %v; want 200 times", got.Count, got.Errno)
	}
	for nic := range 2 {
		mustRegister(t, nic, small(fmt.Sprint("root", nic)))
	}
	_, out = user(t, mallory+1, 2, "lives", "10")
	if got := heard(t, out); got != (tally{Count: 10}) {
		t.Errorf("another user lived %d times, then %v; want 10 times", got.Count, got.Errno)
	}
}

// A user who joins all groups that he may leaves some to others, on every NIC.
func TestUserWhoJoinsOftenStopsNobody(t *testing.T) {
	load(t, "nics=2 groups=64")
	_, out := user(t, mallory, 2, "joins")
	if got := heard(t, out); got.Count == 0 || got.Count > 32 || got.Errno != unix.EDQUOT {
		t.Errorf("the user joined %d groups, then %v; want 1 to 32, then %v", got.Count, got.Errno, unix.EDQUOT)
	}
	for nic := range 2 {
		p := mustRegister(t, nic, small(fmt.Sprint("root", nic)))
		arg := groupArg{Name: name(fmt.Sprint("roots", nic)), Size: 1, TimeoutMs: 5000}
		if err := ioctl(p.fd, iocJoin, unsafe.Pointer(&arg)); err != nil {
			t.Errorf("root's join at NIC %d: %v", nic, err)
		}
	}
}

// While a broadcast of one-byte descriptors is under way others' messages pass, and whoever posted it can be killed.
func TestBroadcastOfCrumbsHoldsNobodyUp(t *testing.T) {
	load(t, "nics=1 packet_size=65536")
	a, b := mustRegister(t, 0, small("a")), mustRegister(t, 0, small("b"))
	begin := func(members string) (cmd *exec.Cmd, out *bufio.Reader) {
		cmd, out = user(t, mallory, 1, "crumbs", members)
		if line, err := out.ReadString('\n'); line != "go\n" {
			t.Fatalf("got %q (%v), want go", line, err)
		}
		return cmd, out
	}
	_, out := begin("10")
	over := make(chan string, 1)
	go func() {
		line, _ := out.ReadString('\n')
		over <- line
	}()
	passed, longest, all, start := 0, time.Duration(0), time.Duration(0), time.Now()
	for line := ""; line == ""; {
		before := time.Now()
		checkShort(t, a, b, passed)
		longest = max(longest, time.Since(before))
		select {
		case line = <-over:
			if line != "done\n" {
				t.Fatalf("the broadcast ended with %q, want done", line)
			}
		default:
			passed++
		}
	}
	all = time.Since(start)
	t.Logf("%d messages in the %v of the broadcast, the longest took %v", passed, all, longest)
	if passed < 20 || longest > all/2 {
		t.Errorf("%d messages of others passed during the broadcast, want 20 at least; one took %v of its %v, want less than half",
			passed, longest, all)
	}
	cmd, _ := begin("30")
	start = time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	t.Logf("killed: it had ended after %v", time.Since(start))
	checkShort(t, a, b, 0)
	// The process is gone from the NIC, as its name can be taken.
	mustRegister(t, 0, small("c0"))
}
