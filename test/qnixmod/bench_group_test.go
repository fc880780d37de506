package qnixmod

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Eight processes sleep while they wait, on both sides of the comparison: there are fewer processors.
const (
	members = 8
	cargo   = 64 << 10 // bytes of a broadcast
)

func init() {
	roles["member"] = func(args []string) error { return unlessGone(roleMember(args[0])) }
	roles["receiver"] = func(args []string) error { return unlessGone(roleReceiver(args[0])) }
	roles["unix member"] = func([]string) error { return roleUnixMember() }
	roles["unix receiver"] = func([]string) error { return roleUnixReceiver() }
}

// group is the registration of one of n processes: it returns when all are there.
func group(who string, n int) registerArg {
	r := small(who)
	r.Group, r.GroupSize, r.TimeoutMs = name("all"), uint32(n), 120_000
	return r
}

func (p *process) barrier(n int) error {
	if err := p.command(cmdBarrier, 0, sendContext{Flags: flagDoorbell | flagInline}, command{Size: uint32(n), Name: name("all")}); err != nil {
		return err
	}
	return p.succeeds(false, 0)
}

// command fills Send Context i and posts a command that names it.
func (p *process) command(cmd uint32, i int, s sendContext, c command) error {
	*p.context(false, i) = s
	p.clear(false, i)
	c.Command, c.Context = cmd, uint16(i)
	return p.post(c)
}

func (p *process) succeeds(receive bool, i int) error {
	state, _, err := p.await(receive, i)
	switch {
	case err != nil:
		return err
	case state == stateGone:
		return errGone
	case state != stateDone:
		return fmt.Errorf("doorbell tells state %d", state)
	}
	return nil
}

// errGone: the benchmark has ended.
var errGone = errors.New("the other process is gone")

func unlessGone(err error) error {
	if err == errGone {
		return nil
	}
	return err
}

func roleMember(rank string) error {
	p, err := register(0, group("member"+rank, members))
	for err == nil {
		err = p.barrier(members)
	}
	return err
}

func roleReceiver(rank string) error {
	p, err := register(0, group("receiver"+rank, members+1))
	if err != nil {
		return err
	}
	memory, err := anonymous(cargo)
	if err != nil {
		return err
	}
	h, err := p.translate(memory, accessWrite)
	if err != nil {
		return err
	}
	// Two receives, so that one is there when the next message comes.
	post := func(i int) error {
		p.describe(true, i, descriptor{Handle: h, Len: cargo})
		return p.transfer(cmdReceive, i, sendContext{Process: name("root"), Flags: flagDoorbell, Len: cargo, Descriptors: 1})
	}
	for i := 0; err == nil && i < 2; i++ {
		err = post(i)
	}
	if err == nil {
		err = p.barrier(members + 1)
	}
	for i := 0; err == nil; i = 1 - i {
		if err = p.succeeds(true, i); err == nil {
			err = post(i)
		}
	}
	return err
}

// crowd starts n processes that play a role, each with a socket to this one if it wants one. They end with the benchmark.
func crowd(b *testing.B, role string, n int, sockets bool) (fds []int) {
	for i := range n {
		cmd := child(b, role, strconv.Itoa(i))
		var peer *os.File
		if sockets {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				b.Fatal(err)
			}
			fds = append(fds, pair[0])
			b.Cleanup(func() { unix.Close(pair[0]) })
			peer = os.NewFile(uintptr(pair[1]), "peer")
			cmd.ExtraFiles = []*os.File{peer}
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		if peer != nil {
			peer.Close()
		}
		b.Cleanup(func() { end(cmd) })
	}
	return fds
}

func end(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

// repeated returns what measures f, in ns.
func repeated(n int, f func() error) func(*testing.B) float64 {
	return func(b *testing.B) float64 {
		start := time.Now()
		for range n {
			if err := f(); err != nil {
				b.Fatal(err)
			}
		}
		return float64(time.Since(start).Nanoseconds()) / float64(n)
	}
}

func BenchmarkBarrierOf8(b *testing.B) {
	load(b, "nics=1")
	fds := crowd(b, "unix member", members-1, true)
	theirs := repeated(100, func() error { return unixBarrier(fds) })
	crowd(b, "member", members-1, false)
	p := mustRegister(b, 0, group("root", members))
	beside(b, "unix", repeated(100, func() error { return p.barrier(members) }), theirs)
}

// unixBarrier is that of the process that has a socket to each other one.
func unixBarrier(fds []int) error {
	var one [1]byte
	for _, fd := range fds {
		if err := readFull(fd, one[:]); err != nil {
			return err
		}
	}
	for _, fd := range fds {
		if _, err := unix.Write(fd, one[:]); err != nil {
			return err
		}
	}
	return nil
}

func roleUnixMember() error {
	var one [1]byte
	for {
		if _, err := unix.Write(3, one[:]); err != nil {
			return err
		}
		if err := readFull(3, one[:]); err != nil {
			return err
		}
	}
}

func BenchmarkBroadcast64KTo8(b *testing.B) {
	load(b, "nics=1")
	fds := crowd(b, "unix receiver", members, true)
	memory := mustMap(b, cargo)
	theirs := repeated(50, func() error { return unixBroadcast(fds, memory) })
	crowd(b, "receiver", members, false)
	p := mustRegister(b, 0, group("root", members+1))
	h, err := p.translate(memory, accessRead)
	if err == nil {
		err = p.barrier(members + 1)
	}
	if err != nil {
		b.Fatal(err)
	}
	beside(b, "unix", repeated(50, func() error {
		p.describe(false, 1, descriptor{Handle: h, Len: cargo})
		err := p.command(cmdBroadcast, 1, sendContext{Flags: flagDoorbell, Len: cargo, Descriptors: 1}, command{Name: name("all")})
		if err != nil {
			return err
		}
		return p.succeeds(false, 1)
	}), theirs)
}

// unixBroadcast is done when all say that they have it, as a broadcast's doorbell is.
func unixBroadcast(fds []int, memory []byte) error {
	for _, fd := range fds {
		for sent := 0; sent < len(memory); {
			n, err := unix.Write(fd, memory[sent:])
			if err != nil && err != unix.EINTR {
				return err
			}
			sent += max(n, 0)
		}
	}
	var one [1]byte
	for _, fd := range fds {
		if err := readFull(fd, one[:]); err != nil {
			return err
		}
	}
	return nil
}

func roleUnixReceiver() error {
	memory := make([]byte, cargo)
	for {
		if err := readFull(3, memory); err != nil {
			return err
		}
		if _, err := unix.Write(3, memory[:1]); err != nil {
			return err
		}
	}
}

func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return unix.EPIPE
		default:
			b = b[n:]
		}
	}
	return nil
}
