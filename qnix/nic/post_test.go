//go:build linux && !(386 || arm || mips || mipsle)

package nic

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/internal/abi"
)

func TestPostFillsContextAndQueue(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{Sends: 4, Receives: 4, PoolEntries: 10})
	to := name(t, "peer")
	d := []Descriptor{{Handle: 5, Len: 100, Offset: 7}, {Handle: 6, Len: 200, Offset: 1 << 40}}
	if err := p.Post(Send, 2, &Message{Peer: to, Tag: 77, Len: 300, Flags: Doorbell, Descriptors: d}); err != nil {
		t.Fatal(err)
	}
	c := view[abi.Context](f.vni, f.m.SendContexts, f.m.Sends)[2]
	if want := (abi.Context{Process: to, Tag: 77, Flags: abi.CtxDoorbell, Len: 300, Descriptors: 2}); c != want {
		t.Errorf("context %+v, want %+v", c, want)
	}
	got := view[abi.Descriptor](f.vni, f.m.SendRegions+2*f.m.RegionSize, 2)
	for k, x := range d {
		if want := (abi.Descriptor{Handle: uint32(x.Handle), Len: x.Len, Offset: x.Offset}); got[k] != want {
			t.Errorf("descriptor %+v, want %+v", got[k], want)
		}
	}
	if want := (abi.Command{Command: abi.CmdSend, Context: 2}); f.commands()[0] != want {
		t.Errorf("command %+v, want %+v", f.commands()[0], want)
	}
	if err := p.Post(Receive, 3, &Message{Peer: to, Len: 50, Flags: FromPool, Pool: 4, PoolCount: 6}); err != nil {
		t.Fatal(err)
	}
	c = view[abi.Context](f.vni, f.m.ReceiveContexts, f.m.Receives)[3]
	if want := (abi.Context{Process: to, Flags: abi.CtxPool, Len: 50, Descriptors: 6, PoolIndex: 4}); c != want {
		t.Errorf("context %+v, want %+v", c, want)
	}
	if want := (abi.Command{Command: abi.CmdReceive, Context: 3}); f.commands()[1] != want {
		t.Errorf("command %+v, want %+v", f.commands()[1], want)
	}
	var names []Name
	for i := range 4 {
		names = append(names, name(t, fmt.Sprint("n", i)))
	}
	if err := p.Multicast(0, names, &Message{Len: 8}, true); err != nil {
		t.Fatal(err)
	}
	if want := (abi.Command{Command: abi.CmdMulticastShort, Size: 4}); f.commands()[2] != want {
		t.Errorf("command %+v, want %+v", f.commands()[2], want)
	}
	for k, want := range []abi.Names{
		{Command: abi.CmdNames, Names: [3][20]byte{names[0], names[1], names[2]}},
		{Command: abi.CmdNames, Names: [3][20]byte{names[3]}},
	} {
		if got := *(*abi.Names)(unsafe.Pointer(&f.commands()[3+k])); got != want {
			t.Errorf("names %+v, want %+v", got, want)
		}
	}
	for _, x := range []struct {
		post func() error
		want abi.Command
	}{
		{func() error { return p.Broadcast(1, to, &Message{Len: 1, Flags: Inline}, false) }, abi.Command{Command: abi.CmdBroadcast, Context: 1, Name: to}},
		{func() error { return p.Broadcast(1, to, &Message{Len: 1}, true) }, abi.Command{Command: abi.CmdBroadcastShort, Context: 1, Name: to}},
		{func() error { return p.JoinGroup(3, to, 9) }, abi.Command{Command: abi.CmdJoinGroup, Context: 3, Name: to, Size: 9}},
		{func() error { p.FreeSend(3); return p.LeaveGroup(3, to) }, abi.Command{Command: abi.CmdLeaveGroup, Context: 3, Name: to, Size: 1}},
		{func() error { p.FreeSend(3); return p.Barrier(3, to, 2) }, abi.Command{Command: abi.CmdBarrier, Context: 3, Name: to, Size: 2}},
		{func() error { return p.CancelSend(2) }, abi.Command{Command: abi.CmdCancelSend, Context: 2}},
		{func() error { return p.CancelReceive(3) }, abi.Command{Command: abi.CmdCancelReceive, Context: 3}},
	} {
		at := p.queue.tail.Load()
		if err := x.post(); err != nil {
			t.Errorf("%+v: %v", x.want, err)
		} else if got := f.commands()[at]; got != x.want {
			t.Errorf("command %+v, want %+v", got, x.want)
		}
	}
}

func TestPostRefusesWhatCannotBe(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{Sends: 2, Receives: 2, RegionSize: 64, PoolEntries: 4, Commands: 4})
	for what, m := range map[string]Message{
		"negative length":        {Len: -1},
		"too long":               {Len: MaxMessage + 1},
		"tag of a system":        {Tag: MaxTag + 1},
		"inline too long":        {Len: 65, Flags: Inline},
		"inline, descriptors":    {Len: 5, Flags: Inline, Descriptors: make([]Descriptor, 1)},
		"many descriptors":       {Len: 5, Descriptors: make([]Descriptor, 5)},
		"pool, descriptors":      {Len: 5, Flags: FromPool, PoolCount: 1, Descriptors: make([]Descriptor, 1)},
		"beyond the pool":        {Len: 5, Flags: FromPool, Pool: 2, PoolCount: 3},
		"negative pool":          {Len: 5, Flags: FromPool, Pool: -1, PoolCount: 3},
		"inline and from a pool": {Len: 5, Flags: FromPool | Inline, PoolCount: 3},
	} {
		if err := p.Post(Send, 0, &m); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	ok := Message{Flags: Inline | Doorbell}
	for _, i := range []int{-1, 2, 1 << 40} {
		if err := p.Post(Send, i, &ok); !errors.Is(err, ErrInvalid) {
			t.Errorf("context %d: %v, want ErrInvalid", i, err)
		}
		if err := p.CancelReceive(i); !errors.Is(err, ErrInvalid) {
			t.Errorf("cancel context %d: %v, want ErrInvalid", i, err)
		}
	}
	if err := p.Post(Command(3), 0, &ok); !errors.Is(err, ErrInvalid) {
		t.Errorf("command 3: %v, want ErrInvalid", err)
	}
	if err := p.Multicast(0, make([]Name, 10), &ok, true); !errors.Is(err, ErrInvalid) {
		t.Errorf("multicast longer than the queue: %v, want ErrInvalid", err)
	}
	if s, _ := p.SendDoorbell(0); s != Free {
		t.Errorf("the doorbell is %v after posts that failed", s)
	}
	if n := p.queue.tail.Load(); n != 0 {
		t.Errorf("%d commands were posted", n)
	}
}

func TestContextUnderWayIsInUse(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{})
	m := Message{Flags: Inline | Doorbell}
	if err := p.Post(Send, 0, &m); err != nil {
		t.Fatal(err)
	}
	if err := p.Post(Send, 0, &m); !errors.Is(err, ErrInUse) {
		t.Errorf("%v, want ErrInUse", err)
	}
	f.ring(false, 0, abi.Doorbell{State: abi.DBDone})
	if err := p.Post(Send, 0, &m); err != nil {
		t.Errorf("after the doorbell: %v", err)
	}
	// Without a doorbell this cannot be detected.
	quiet := Message{Flags: Inline}
	for range 2 {
		if err := p.Post(Send, 1, &quiet); err != nil {
			t.Errorf("without a doorbell: %v", err)
		}
		if s, _ := p.SendDoorbell(1); s != Free {
			t.Errorf("its doorbell is %v, want free", s)
		}
	}
}

func TestFullQueueIsBusyAndLosesNothing(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{Commands: 2})
	m, long := Message{Flags: Inline | Doorbell}, Message{Flags: Inline | Doorbell, Len: 100}
	if err := errors.Join(p.Post(Send, 0, &m), p.Post(Send, 5, &long)); err != nil {
		t.Fatal(err)
	}
	f.ring(false, 5, abi.Doorbell{State: abi.DBDone, Len: 100})
	if err := p.Post(Send, 5, &m); !errors.Is(err, ErrBusy) {
		t.Errorf("%v, want ErrBusy", err)
	}
	if s, n := p.SendDoorbell(5); s != Done || n != 100 {
		t.Errorf("doorbell %v with %d bytes after ErrBusy, want what it was", s, n)
	}
	if err := p.CancelSend(0); !errors.Is(err, ErrBusy) {
		t.Errorf("cancel: %v, want ErrBusy", err)
	}
	atomic.StoreUint32(&f.commands()[0].Command, 0)
	if err := p.Post(Send, 5, &m); err != nil {
		t.Errorf("after the NIC has read: %v", err)
	}
}

// Each command comes to the NIC once and whole, with its names behind it.
func TestManyGoroutinesPost(t *testing.T) {
	f := newFake(t)
	const posters, each = 8, 2000
	p := register(t, f, Config{Commands: 16, Sends: posters})
	group := name(t, "group")
	var seen [posters]int
	stop := make(chan struct{})
	var nic sync.WaitGroup
	nic.Go(func() {
		for head := uint32(0); ; {
			e := &f.commands()[head&15]
			switch c := atomic.LoadUint32(&e.Command); c {
			case abi.CmdNone:
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
				continue
			case abi.CmdMulticastShort:
				for k := uint32(1); k <= 2; k++ {
					n := (*abi.Names)(unsafe.Pointer(&f.commands()[(head+k)&15]))
					if atomic.LoadUint32(&n.Command) != abi.CmdNames || n.Names[0] != group {
						t.Errorf("names are missing behind a multicast")
					}
					atomic.StoreUint32(&n.Command, 0)
				}
				seen[e.Context]++
				atomic.StoreUint32(&e.Command, 0)
				head += 2
			case abi.CmdBroadcastShort:
				if e.Name != group {
					t.Errorf("command without its name: %+v", *e)
				}
				seen[e.Context]++
				atomic.StoreUint32(&e.Command, 0)
			default:
				t.Errorf("command %d", c)
			}
			head++
		}
	})
	var wg sync.WaitGroup
	for i := range posters {
		wg.Go(func() {
			names := []Name{group, group, group, group}
			for k := range each {
				for {
					var err error
					if k%3 == 0 {
						err = p.Multicast(i, names, &Message{}, true)
					} else {
						err = p.Broadcast(i, group, &Message{}, true)
					}
					if err == nil {
						break
					}
					if !errors.Is(err, ErrBusy) {
						t.Error(err)
						return
					}
					runtime.Gosched()
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	nic.Wait()
	for i, n := range seen {
		if n != each {
			t.Errorf("context %d: %d commands came, want %d", i, n, each)
		}
	}
}

func TestKickWakesOnlyANICThatSleeps(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{})
	wakeup := func() uint64 {
		var v uint64
		_, _ = unix.Read(f.wakeup, unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8))
		return v
	}
	if err := p.Kick(); err != nil || wakeup() != 0 {
		t.Errorf("kick of a NIC that is awake: %v", err)
	}
	atomic.StoreUint32(&f.status().NeedWakeup, 1)
	if err := p.Kick(); err != nil || wakeup() != 1 {
		t.Errorf("kick of a NIC that sleeps did not reach it: %v", err)
	}
}

// A command that is published behind another goroutine's wakes the NIC, which sleeps in front of it after that one's Kick.
func TestLatePostKicks(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{})
	kicked := func() bool {
		_, err := unix.Read(f.wakeup, make([]byte, 8))
		return err == nil
	}
	to := name(t, "peer")
	late, ok := p.queue.claim(1)
	if !ok {
		t.Fatal("no room")
	}
	if err := p.SendShort(0, to, 1, 8); err != nil {
		t.Fatal(err)
	}
	atomic.StoreUint32(&f.status().NeedWakeup, 1)
	p.queue.publish(late, abi.CmdCancelSend)
	if p.published(late + 1); !kicked() {
		t.Error("the NIC sleeps on")
	}
	if err := p.SendShort(1, to, 1, 8); err != nil {
		t.Fatal(err)
	}
	if kicked() {
		t.Error("the last command wakes the NIC, which is left to Kick")
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{PoolEntries: 4})
	atomic.StoreUint32(&f.status().NeedWakeup, 1)
	m := Message{Peer: name(t, "peer"), Len: 64, Flags: Doorbell, Descriptors: []Descriptor{{1, 64, 0}}}
	var seen uint32
	n := testing.AllocsPerRun(1000, func() {
		if p.Post(Send, 0, &m) != nil || p.ReceiveShort(0, m.Peer, 1, 8) != nil || p.SendShort(1, m.Peer, 1, 8) != nil {
			t.Fatal("post failed")
		}
		_ = p.Kick()
		clear(f.commands())
		f.ring(false, 0, abi.Doorbell{State: abi.DBDone, Len: 64})
		f.ring(false, 1, abi.Doorbell{State: abi.DBDone, Len: 8})
		f.ring(true, 0, abi.Doorbell{State: abi.DBDone, Len: 8})
		_ = p.Wait(seen, -1)
		for range 3 {
			if _, ok := p.Rung(&seen); !ok {
				t.Fatal("no ring")
			}
		}
		s, k := p.SendDoorbell(0)
		r, j := p.ReceiveDoorbell(0)
		if s != Done || k != 64 || r != Done || j != 8 {
			t.Fatal("doorbells")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPostAndDoorbell(b *testing.B) {
	f := newFake(b)
	p := register(b, f, Config{})
	m := Message{Peer: name(b, "peer"), Len: 8, Flags: Doorbell | Inline}
	db := &view[uint64](f.hps, f.m.SendDoorbells, f.m.Sends)[0]
	done := join(abi.Doorbell{State: abi.DBDone, Len: 8})
	var head uint32
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Post(SendShort, 0, &m); err != nil {
			b.Fatal(err)
		}
		_ = p.Kick()
		f.commands()[head&(f.m.Commands-1)].Command = 0
		head++
		*db = done
		if s, _ := p.SendDoorbell(0); s != Done {
			b.Fatal(s)
		}
	}
}
