//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// child is a peer in a process of its own.
type child struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	inc  uint64
	card string
}

// actRole is the child's main: it writes its incarnation and card, reads those of its peer, and follows orders:
// "start", "exit".
func actRole(string) int {
	inc, _ := strconv.ParseUint(os.Getenv("CONNECT_TEST_INC"), 10, 64)
	if os.Getenv("CONNECT_TEST_ROLE") == "rdmacm" {
		device = openDevice(nil)
	}
	m, err := Open(testConfig(inc), aPort("child"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(inc, m.Card())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		f := strings.Fields(in.Text())
		switch f[0] {
		case "start":
			peer, _ := strconv.ParseUint(f[1], 10, 64)
			_, err := m.NewEndpoint(&EndpointConfig{PeerIncarnation: peer, PeerCard: f[2], QPs: []QP{&fakeQP{num: 1}}})
			fmt.Println("started", err)
		case "close":
			_ = m.Close()
			return 0
		}
	}
	return 0
}

func aChild(t *testing.T, inc uint64) *child {
	t.Helper()
	c := &child{cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), "CONNECT_TEST_ROLE="+managerName(), fmt.Sprintf("CONNECT_TEST_INC=%d", inc))
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	c.in, c.out = in, bufio.NewScanner(out)
	if !c.out.Scan() {
		t.Fatal("child sends nothing")
	}
	if _, err := fmt.Sscan(c.out.Text(), &c.inc, &c.card); err != nil {
		t.Fatalf("child sent %q", c.out.Text())
	}
	return c
}

func (c *child) start(t *testing.T, h *host) {
	t.Helper()
	fmt.Fprintf(c.in, "start %d %s\n", h.inc, h.m.Card())
	if !c.out.Scan() || c.out.Text() != "started <nil>" {
		t.Fatalf("child sent %q", c.out.Text())
	}
}

// stop stops the child, and returns when none of its threads runs any more.
func (c *child) stop(t *testing.T) {
	t.Helper()
	_ = c.cmd.Process.Signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || !status.Stopped() {
			t.Fatalf("wait for the child to stop: status %#x, %v", status, err)
		}
		return
	}
}

// A killed process is noticed at once, by connected endpoints and by those that wait for it.
func TestKilledPeerIsLostAtOnce(t *testing.T) { eachManager(t, killedPeerIsLostAtOnce) }

func killedPeerIsLostAtOnce(t *testing.T) {
	for _, inc := range []uint64{1 << 40, 1} { // it answers, and it asks
		c := aChild(t, inc)
		h := aHost(t, func(cfg *Config, _ *Port) { cfg.Incarnation += 1 << 20 })
		x := h.endpointTo(c.inc, c.card, nil)
		c.start(t, h)
		x.mustConnect(t)
		waits := h.endpointTo(c.inc, c.card, nil)
		time.Sleep(20 * time.Millisecond)
		begin := time.Now()
		_ = c.cmd.Process.Kill()
		x.mustFail(t, Lost, driver.ErrBroken)
		waits.mustFail(t, Failed, driver.ErrBroken)
		if d := time.Since(begin); d > scaled(time.Second) {
			t.Errorf("noticed after %v, want at once (the timeout is twice that)", d)
		}
		x.finalize(t)
		_ = c.cmd.Wait()

		again := aChild(t, inc+1<<50)
		y := h.endpointTo(again.inc, again.card, nil)
		again.start(t, h)
		y.mustConnect(t)
	}
}

// A stopped process is not dead: established connections remain, and continue when the process does. Connections that
// are being made fail after the time-out.
func TestStoppedPeer(t *testing.T) { eachManager(t, stoppedPeer) }

// Both roles at once: the test mostly waits.
func stoppedPeer(t *testing.T) {
	for role, inc := range map[string]uint64{"answers": 1 << 40, "asks": 1} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			stoppedPeerOf(t, inc)
		})
	}
}

func stoppedPeerOf(t *testing.T, inc uint64) {
	c := aChild(t, inc)
	h := aHost(t, func(cfg *Config, _ *Port) { cfg.Incarnation += 1 << 20; cfg.Timeout = scaled(time.Second) })
	x := h.endpointTo(c.inc, c.card, nil)
	c.start(t, h)
	x.mustConnect(t)
	c.stop(t)
	waits := h.endpointTo(c.inc, c.card, nil)
	waits.mustFail(t, Failed, driver.ErrBroken)
	if x.State() != Ready {
		t.Errorf("endpoint to a stopped peer is %v: %v, want ready", x.State(), x.Err())
	}
	waits.finalize(t)
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	y := h.endpointTo(c.inc, c.card, nil)
	c.start(t, h)
	y.mustConnect(t)
	if x.State() != Ready {
		t.Errorf("endpoint to a peer that was stopped is %v: %v, want ready", x.State(), x.Err())
	}
}
