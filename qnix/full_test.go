//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// OwnNIC starts a softnic as a process of its own, and returns its path and pid.
func OwnNIC(t *testing.T) (path string, pid int) {
	t.Helper()
	NeedNIC(t)
	path = filepath.Join(t.TempDir(), "nic.sock")
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	if err := softnic.EnsureConfig(ctx, softnic.Config{Sockets: []string{path}, Idle: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	s, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cred, err := rights.Peer(s)
	if err != nil {
		t.Fatal(err)
	}
	return path, int(cred.Pid)
}

// Halted reports whether all threads of a process are stopped.
func Halted(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if at := bytes.LastIndexByte(b, ')'); err != nil || at+2 >= len(b) || b[at+2] != 'T' {
			return false
		}
	}
	return len(stats) > 0
}

// A receive that finds the Command Queue full, because the NIC is stopped, is posted when the NIC goes on, also if no
// goroutine polls.
func TestReceivesWaitForTheCommandQueue(t *testing.T) {
	path, pid := OwnNIC(t)
	t.Setenv(nic.EnvPath, path)
	m, i := newFakePeer(t, driver.Small, testSecret)
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) }) // before the contexts are closed
	s, v := i.(*small), m.victim
	// whileFull lets the victim see what send has caused when its Command Queue is full, until lacks.
	whileFull := func(send func(), lacks func() bool) {
		t.Helper()
		v.doorbells.mustLock()
		send()
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		m.eventually("the NIC stops", func() bool { return Halted(pid) })
		err := error(nil)
		for err == nil {
			err = v.proc.CancelReceive(v.opts.contexts - 1)
		}
		v.doorbells.unlock()
		if err != nic.ErrBusy {
			t.Fatal(err)
		}
		m.eventually("receives find no room", func() bool { v.Drain(); return lacks() })
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	posted := func() {
		t.Helper()
		m.eventually("receives are posted", func() bool { return !s.lacksReceives.Load() && !s.lacksCredit.Load() })
	}

	whileFull(func() { m.sendControl(control{kind: kindCall, call: m.mine}) }, s.lacksCredit.Load)
	j := m.receiveControl(kindJoin)
	mac := testKey(t, testSecret).MAC(listenerProof, proven(&m.theirs, &m.mine)...)
	m.sendControl(control{kind: kindWelcome, mine: j.yours, yours: j.mine, mac: mac})
	if err := connected(i); err != nil {
		t.Fatal(err)
	}
	posted()

	credit := func() { m.send(m.theirs.tags+m.theirs.receives, binary.LittleEndian.AppendUint32(nil, 8)) }
	whileFull(credit, s.lacksCredit.Load)
	posted()
	credit()
	m.eventually("the second credit", func() bool { v.Drain(); return s.creditsCame.Load() == 2 })

	p := &driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err := i.RecvPost(p); err != nil {
		t.Fatal(err)
	}
	whileFull(func() { m.send(m.theirs.tags, make([]byte, dataHead)) }, func() bool { _, _ = i.RecvPoll(p); return s.lacksReceives.Load() })
	posted()
	if n := s.posted; n != 9 {
		t.Errorf("%d receives were posted, want 9", n)
	}
}

// As many peers as Hints names get a connection each, however many that is: the windows are shorter then.
func TestExpectedPeersFit(t *testing.T) {
	NeedNIC(t)
	const peers = 400
	q, err := qnixDriver{}.Query(driver.Hints{Device: os.Getenv(nic.EnvPath), Track: driver.Small, Peers: peers})
	if err != nil {
		t.Fatal(err)
	}
	c, err := q.Open(driver.Attributes{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := c.(smallContext).process
	for k := range peers {
		tags := newIDAllocator(1, maxTags-1)
		p.Mu.Lock()
		n, err := p.newConn(nil, &tags)
		p.Mu.Unlock()
		if err != nil {
			t.Fatalf("peer %d of %d: %v", k+1, peers, err)
		}
		defer p.giveBack(n.sends, n.receives)
	}
}
