//go:build linux

package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/lab/attack"
	"github.com/bywash/bywash/internal/lab/qnixko"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// suite is what a program on a QNIX network interface is told.
type suite struct {
	Path string
	Kind string
	Seed uint64
}

const (
	moduleFile = "BYWASH_QNIX_KO" // the kernel module, in a virtual machine
	nobody     = 65534
)

// mapped is memory of a sealed memfd, which every NIC can reach.
type mapped struct {
	b  []byte
	fd int
}

func mapMemory(n int) (*mapped, error) {
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	m := &mapped{fd: fd}
	if err = unix.Ftruncate(fd, int64(n)); err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err == nil {
			m.b, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
	}
	return m, err
}

func (m *mapped) free() { _ = unix.Munmap(m.b); unix.Close(m.fd) }

// guest is a registration with a NIC, and memory that the NIC knows.
type guest struct {
	n    *nic.NIC
	p    *nic.Process
	name nic.Name
	mem  *mapped
	h    nic.Handle
}

func enter(path, name string, c nic.Config, bytes int) (g *guest, err error) {
	g = new(guest)
	if g.n, err = nic.Open(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			g.leave()
		}
	}()
	c.Name = name
	if g.name, err = nic.MakeName(name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), attack.MaxWait)
	defer cancel()
	if g.p, err = g.n.Register(ctx, c); err != nil || bytes == 0 {
		return g, err
	}
	if g.mem, err = mapMemory(bytes); err == nil {
		g.h, err = g.p.TranslateFile(g.mem.b, g.mem.fd, 0, nic.Read|nic.Write)
	}
	return g, err
}

func (g *guest) leave() {
	_ = g.n.Close()
	if g.mem != nil {
		g.mem.free()
	}
}

// rung waits until a doorbell has rung, and returns an error unless all went well.
func (g *guest) rung(what string, doorbell func(int) (nic.State, int)) error {
	for end := time.Now().Add(attack.MaxWait); ; {
		seen := g.p.RingTail()
		if s, _ := doorbell(0); s == nic.Done {
			return nil
		} else if s.Rung() {
			return fmt.Errorf("%s: %v", what, s)
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: not within %v", what, attack.MaxWait)
		}
		if err := g.p.Wait(seen, time.Second); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

const letter = 100_000 // bytes of a long message

// exchange sends a long and a short message from one guest to another, and checks every byte.
func exchange(from, to *guest, key uint64) error {
	fill(from.mem.b, key)
	clear(to.mem.b)
	m := nic.Message{Peer: from.name, Tag: 1, Len: letter, Flags: nic.Doorbell, Descriptors: []nic.Descriptor{{Handle: to.h, Len: letter}}}
	if err := to.p.Post(nic.Receive, 0, &m); err != nil {
		return err
	}
	m = nic.Message{Peer: to.name, Tag: 1, Len: letter, Flags: nic.Doorbell, Descriptors: []nic.Descriptor{{Handle: from.h, Len: letter}}}
	if err := from.p.Post(nic.Send, 0, &m); err != nil {
		return err
	}
	if err := errors.Join(to.p.Kick(), from.p.Kick(), to.rung("receive", to.p.ReceiveDoorbell), from.rung("send", from.p.SendDoorbell)); err != nil {
		return err
	}
	if !bytes.Equal(from.mem.b, to.mem.b) {
		return errWrong
	}
	n := copy(from.p.SendRegion(0), from.mem.b[:200])
	if err := to.p.ReceiveShort(0, from.name, 2, n); err != nil {
		return err
	}
	if err := from.p.SendShort(0, to.name, 2, n); err != nil {
		return err
	}
	if err := errors.Join(to.p.Kick(), from.p.Kick(), to.rung("receive", to.p.ReceiveDoorbell), from.rung("send", from.p.SendDoorbell)); err != nil {
		return err
	}
	if !bytes.Equal(to.p.ReceiveRegion(0)[:n], from.mem.b[:n]) {
		return errWrong
	}
	return nil
}

// neighbourProgram uses a NIC as it is meant to be: two processes that exchange messages, begin anew again and again
// under new names, and join a group each time. It says how many lives went well.
func neighbourProgram(in *json.Decoder, out *json.Encoder) error {
	var k suite
	if err := in.Decode(&k); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(k.Seed, 11))
	for life := 1; ; life++ {
		a, err := enter(k.Path, fmt.Sprintf("a%d.%d", os.Getpid(), life), nic.Config{}, letter)
		if err != nil {
			return fmt.Errorf("life %d: register: %w", life, err)
		}
		b, err := enter(k.Path, fmt.Sprintf("b%d.%d", os.Getpid(), life), nic.Config{}, letter)
		if err != nil {
			return fmt.Errorf("life %d: register: %w", life, err)
		}
		for range 10 {
			if err := errors.Join(exchange(a, b, rng.Uint64()), exchange(b, a, rng.Uint64())); err != nil {
				return fmt.Errorf("life %d: %w", life, err)
			}
		}
		if err := meet(a, b, fmt.Sprintf("g%d.%d", os.Getpid(), life)); err != nil {
			return fmt.Errorf("life %d: join: %w", life, err)
		}
		a.leave()
		b.leave()
		if err := out.Encode(life); err != nil {
			return nil // the test is over
		}
		time.Sleep(time.Millisecond)
	}
}

// meet has both join a group.
func meet(a, b *guest, name string) error {
	group, err := nic.MakeName(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), attack.MaxWait)
	defer cancel()
	joined := make(chan error, 1)
	go func() { joined <- a.p.Join(ctx, group, 2) }()
	return errors.Join(b.p.Join(ctx, group, 2), <-joined)
}

// neighbour follows a program of that kind.
type neighbour struct {
	tb    testing.TB
	lives atomic.Int64
	over  chan struct{}
}

func newNeighbour(tb testing.TB, p *attack.Program) *neighbour {
	n := &neighbour{tb: tb, over: make(chan struct{})}
	go func() {
		defer close(n.over)
		for life := int64(0); p.Out.Decode(&life) == nil; {
			n.lives.Store(life)
		}
	}()
	return n
}

// goesOn checks that lives go on.
func (n *neighbour) goesOn(what string) {
	n.tb.Helper()
	lives := n.lives.Load()
	attack.Await(n.tb, "another user of the NIC goes on "+what, func() bool {
		select {
		case <-n.over:
			n.tb.Fatalf("another user of the NIC failed %s, in life %d", what, n.lives.Load()+1)
		default:
		}
		return n.lives.Load() > lives+1
	})
}

// greeds are what a tenant wants all of. Each returns when it can have no more, or has had it for a while.
var greeds = map[string]func(t *tenant) error{
	"lives": (*tenant).leaveUndelivered, "names": (*tenant).takeNames, "groups": (*tenant).takeGroups,
	"broadcasts": (*tenant).broadcastBytes, "registrations": (*tenant).takeMemory,
}

// tenant is a user of a NIC who wants it all.
type tenant struct {
	path  string
	rng   *rand.Rand
	wants atomic.Int64 // requests that it made
	id    int
	sink  *guest
}

func (t *tenant) enter(c nic.Config, bytes int) (*guest, error) {
	t.id++
	t.wants.Add(1)
	return enter(t.path, fmt.Sprintf("t%d.%d", os.Getpid(), t.id), c, bytes)
}

// tenantProgram takes what it can until it is killed.
func tenantProgram(in *json.Decoder, out *json.Encoder) error {
	var k suite
	if err := in.Decode(&k); err != nil {
		return err
	}
	t := &tenant{path: k.Path, rng: rand.New(rand.NewPCG(k.Seed, 12))}
	go func() {
		for ; ; time.Sleep(20 * time.Millisecond) {
			_ = out.Encode(t.wants.Load())
		}
	}()
	greed, known := greeds[k.Kind]
	for {
		if !known { // all of them
			for _, f := range greeds {
				greed = f
				break
			}
		}
		if err := greed(t); err != nil && t.wants.Load() < 2 {
			return err
		}
		runtime.GC() // collect guests that did not leave
	}
}

// leaveUndelivered lives shortly, and dies with a message on its way to a process that takes none.
func (t *tenant) leaveUndelivered() (err error) {
	if t.sink == nil {
		if t.sink, err = t.enter(nic.Config{}, 0); err != nil {
			return err
		}
	}
	g, err := t.enter(nic.Config{}, 4096)
	if err != nil {
		return err
	}
	defer g.leave()
	for i := range g.p.Sends() {
		m := nic.Message{Peer: t.sink.name, Tag: uint16(t.rng.IntN(64)), Len: 4096, Descriptors: []nic.Descriptor{{Handle: g.h, Len: 4096}}}
		if g.p.Post(nic.Send, i, &m) == nil {
			t.wants.Add(1)
		}
	}
	return g.p.Kick()
}

// takeNames registers as often as it may, with the largest interface that there is.
func (t *tenant) takeNames() error {
	var all []*guest
	defer func() {
		for _, g := range all {
			g.leave()
		}
	}()
	for range 1200 {
		g, err := t.enter(nic.Config{Commands: 1024, Sends: 256, Receives: 256}, 0)
		if err != nil {
			return err
		}
		all = append(all, g)
	}
	return nil
}

// takeGroups joins groups that nobody else joins.
func (t *tenant) takeGroups() error {
	g, err := t.enter(nic.Config{}, 0)
	if err != nil {
		return err
	}
	defer g.leave()
	for k := range 5000 {
		name, err := nic.MakeName(fmt.Sprintf("x%d.%d", os.Getpid(), t.rng.IntN(1<<30)))
		if err != nil {
			return err
		}
		t.wants.Add(1)
		for g.p.JoinGroup(k%g.p.Sends(), name, 2+t.rng.IntN(100)) != nil {
			if err := g.p.Kick(); err != nil {
				return err
			}
			if s, _ := g.p.SendDoorbell(k % g.p.Sends()); !s.Rung() {
				break // it waits for others for ever
			}
		}
	}
	return nil
}

// broadcastBytes sends to a group of its own processes, one byte a descriptor.
func (t *tenant) broadcastBytes() error {
	const members, pieces = 100, 1000
	name := fmt.Sprintf("y%d.%d", os.Getpid(), t.rng.IntN(1<<30))
	group, err := nic.MakeName(name)
	if err != nil {
		return err
	}
	var all []*guest
	defer func() {
		for _, g := range all {
			g.leave()
		}
	}()
	for range members {
		g, err := t.enter(nic.Config{PoolEntries: 2 * pieces}, 2*pieces)
		if err != nil {
			return err
		}
		all = append(all, g)
	}
	for i, g := range all {
		if err := g.p.JoinGroup(0, group, members); err != nil {
			return err
		}
		for k := range pieces {
			if err := g.p.SetPool(k, nic.Descriptor{Handle: g.h, Len: 1, Offset: uint64(2 * k)}); err != nil {
				return err
			}
		}
		_ = g.p.Kick()
		if i > 0 {
			m := nic.Message{Peer: all[0].name, Tag: 5, Len: pieces, Flags: nic.Doorbell | nic.FromPool, PoolCount: pieces}
			_ = g.p.Post(nic.Receive, 0, &m)
			_ = g.p.Kick()
		}
	}
	for i := range 40 {
		m := nic.Message{Tag: 5, Len: pieces, Flags: nic.Doorbell | nic.FromPool, PoolCount: pieces}
		if all[0].p.Broadcast(1+i, group, &m, false) == nil {
			t.wants.Add(members)
		}
	}
	return all[0].p.Kick()
}

// takeMemory makes all memory known to the NIC that it may, again and again.
func (t *tenant) takeMemory() error {
	g, err := t.enter(nic.Config{PoolEntries: 4096}, 16<<20)
	if err != nil {
		return err
	}
	defer g.leave()
	var all []nic.Handle
	for range 4096 {
		n := 4096 << t.rng.IntN(12)
		h, err := g.p.TranslateFile(g.mem.b[:n], g.mem.fd, 0, nic.Read|nic.Write)
		t.wants.Add(1)
		if err != nil {
			break
		}
		if all = append(all, h); t.rng.IntN(3) == 0 {
			_ = g.p.Untranslate(all[0])
			all = all[1:]
		}
	}
	return nil
}

// A user of a NIC who wants all of it gets no more than a share: another user's processes register, exchange messages
// and join groups meanwhile, and when he is gone nothing of his is left. In a virtual machine the NIC is the kernel
// module's.
func TestTenant(t *testing.T) {
	for _, kind := range []string{"lives", "names", "groups", "broadcasts", "registrations", "all of it"} {
		t.Run(kind, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("needs root: the tenant is another user")
			}
			rng := attack.Seed(t)
			path, left := tenement(t)
			n := newNeighbour(t, attack.Start(t, "neighbour", suite{Path: path, Seed: rng.Uint64()}))
			n.goesOn("at first")
			before := attack.Settled()
			var tenants [2]*attack.Program
			var wants [2]int64
			for i := range tenants {
				tenants[i] = attack.Start(t, "tenant", suite{path, kind, rng.Uint64()}, asNobody)
				for wants[i] == 0 {
					tenants[i].Receive(&wants[i])
				}
				go func() {
					for tenants[i].Out.Decode(&wants[i]) == nil {
					}
				}()
			}
			each := attack.Duration(t)
			if each <= attack.Brief {
				each /= 3
			}
			most := attack.Peak(func() {
				for end := time.Now().Add(each); time.Now().Before(end); {
					n.goesOn("beside the tenant")
				}
			})
			most.Within(t, before, attack.Holdings{FDs: 2 * 2048, Goroutines: 2 * 2048, Heap: 64, Threads: 32})
			for _, p := range tenants {
				p.Kill()
			}
			t.Logf("the tenants have asked %v times; the neighbour has lived %d times; at most %+v", wants, n.lives.Load(), most)
			n.goesOn("after the tenant")
			attack.Await(t, "the tenants' processes are gone from the NIC", func() bool { return left(tenants[:]) == 0 })
			attack.Left(t, "after the tenant", before)
		})
	}
}

// asNobody makes a program that of another user.
func asNobody(p *attack.Program) {
	p.Cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	p.Cmd.Dir = "/"
}

// tenement is a NIC for several users; left reports how many processes it has of some programs.
func tenement(t *testing.T) (path string, left func([]*attack.Program) int) {
	if ko := os.Getenv(moduleFile); ko != "" {
		if err := qnixko.Load(ko, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := qnixko.Unload(); err != nil {
				t.Error(err)
			}
		})
		path = "/dev/qnix0"
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		return path, func(of []*attack.Program) (n int) {
			list, err := os.ReadFile("/sys/kernel/debug/qnix/qnix0/processes")
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range of {
				n += bytes.Count(list, fmt.Appendf(nil, "t%d.", p.Cmd.Process.Pid))
			}
			return n
		}
	} else {
		if err := softnic.Supported(); err != nil {
			t.Skip(err)
		}
		dir, err := os.MkdirTemp("", "tenement")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(dir, "q.sock")
		s, err := softnic.Start(softnic.Config{Sockets: []string{path}, AllowUIDs: []int{nobody}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
	}
	look, err := nic.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = look.Close() })
	return path, func([]*attack.Program) int {
		s, err := look.Statistics()
		if err != nil {
			t.Fatal(err)
		}
		return max(0, int(s.Processes)-2) // the neighbour has two
	}
}
