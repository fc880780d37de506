//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/integrity"
	"github.com/bywash/bywash/internal/rights"
)

// A peer that has not read the goodbye message yet sees the word closed, and does not enter.
func TestPutAfterThePeerHasClosed(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(driver.Instance) error
		want error
	}{
		{"disconnect", func(i driver.Instance) error { return i.Disconnect() }, driver.ErrClosed},
		{"broken", func(i driver.Instance) error {
			connOf(i).breakWith(fmt.Errorf("%w: broken by the test", driver.ErrBroken))
			return i.Disconnect()
		}, driver.ErrBroken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair(t, driver.Small, nil)
			ar, err := driver.NewArena(4096)
			if err != nil {
				t.Fatal(err)
			}
			fillCanary(ar.Bytes())
			r, err := connOf(a).ctx.Register(ar.Bytes(), driver.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			remote, err := b.(driver.OneSided).Import(r.Key())
			if err != nil {
				t.Fatal(err)
			}
			mu := &connOf(b).ctx.Mu // without it the goodbye message is not handled
			mu.Lock()
			err = tt.end(a)
			put := make(chan error, 1)
			go func() {
				op := driver.Op{Local: make([]byte, 64), Remote: remote}
				if err := b.(driver.OneSided).PutPost(&op); err != nil {
					t.Error(err)
				}
				_, err := b.(driver.OneSided).OpPoll(&op)
				put <- err
			}()
			within(t, 10*time.Second, "the put is refused", func() bool {
				stacks := make([]byte, 1<<20)
				for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
					if strings.Contains(stack, ").progressOps(") && strings.Contains(stack, ").breakWith(") {
						return true // it waits for the lock
					}
				}
				return len(put) > 0
			})
			mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			if err := <-put; !errors.Is(err, tt.want) {
				t.Errorf("put after the peer has closed: got %v, want %v", err, tt.want)
			}
			if st := connOf(b).State(); tt.want == driver.ErrBroken && st != kit.StateBroken {
				t.Errorf("after a put has found the connection broken it is in state %v", st)
			}
			if at := written(ar.Bytes()); at >= 0 {
				t.Errorf("byte %d was written after the connection was closed", at)
			}
		})
	}
}

// A dialer may be inside a region as soon as it has the segment, before the connection is established on this side; and
// it stays inside when the connection is never established.
func TestPeerInsideBeforeEstablished(t *testing.T) {
	for _, tt := range []struct {
		name   string
		close  bool // the context, or only the connection
		hangUp bool // the peer closes its socket before it leaves
	}{{"given up, left", false, false}, {"given up, hung up", false, true}, {"closed, left", true, false}} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := query(t, driver.Small, nil).Open(driver.Attributes{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			r, err := c.(driver.Registrar).Register(make([]byte, 64), driver.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			i := newFakePeer(t)
			inst, err := c.Connect(i.url)
			if err != nil {
				t.Fatal(err)
			}
			i.accepted(c)
			atomic.StoreUint64(&i.seg.ctl.side[1].hazard, uint64(r.(*region).index)+1)
			busy := func(when string) {
				t.Helper()
				if err := r.Deregister(); !errors.Is(err, driver.ErrBusy) {
					t.Fatalf("deregister %s: got %v, want ErrBusy", when, err)
				}
			}
			busy("before the dialer has confirmed")
			if tt.close {
				err = c.Close()
			} else {
				err = inst.Disconnect()
			}
			if err != nil {
				t.Fatal(err)
			}
			busy("after the connection was given up")
			_ = i.confirm()
			within(t, 10*time.Second, "the dialer is notified", func() bool {
				return atomic.LoadUint32(&i.seg.ctl.side[0].closed) == closedLeft
			})
			busy("after the dialer was notified")
			if tt.hangUp {
				i.sock.Close()
				busy("while a living peer that has hung up is inside")
			}
			atomic.StoreUint64(&i.seg.ctl.side[1].hazard, 0)
			within(t, 10*time.Second, "deregister", func() bool {
				err := r.Deregister()
				return err == nil || errors.Is(err, driver.ErrClosed)
			})
			within(t, 10*time.Second, "the segment is let go", func() bool {
				k := core(c)
				k.Mu.Lock()
				defer k.Mu.Unlock()
				return len(k.hazards) == 0 && k.Conns.Len() == 0
			})
		})
	}
}

// On a connection to oneself, and with two connections to one peer, the one that is used counts.
func TestEachConnectionHasAHazard(t *testing.T) {
	c := open(t, driver.Small, nil)
	other := open(t, driver.Small, nil)
	_, b1 := join(t, c, other)
	_, b2 := join(t, c, other)
	self, err := c.Connect(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.ConnectWait(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := c.(driver.Registrar).Register(make([]byte, 64), driver.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	index := uint64(r.(*region).index) + 1
	for k, i := range []driver.Instance{self, b1, b2} {
		hazard := &connOf(i).mine.hazard
		atomic.StoreUint64(hazard, index)
		if err := r.Deregister(); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("connection %d: deregister while it is inside: got %v, want ErrBusy", k, err)
		}
		atomic.StoreUint64(hazard, index+1) // another region
	}
	if err := r.Deregister(); err != nil {
		t.Error(err)
	}
	for _, i := range []driver.Instance{self, b1, b2} {
		atomic.StoreUint64(&connOf(i).mine.hazard, 0)
	}
}

// Keys of a peer that has closed its context fail with ErrClosed, not ErrRemoteKey: the message can take another rail.
func TestKeysOfAClosedContextAreErrClosed(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	r, err := connOf(a).ctx.Register(make([]byte, 64), driver.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	one := b.(driver.OneSided)
	remote, err := one.Import(r.Key())
	if err != nil {
		t.Fatal(err)
	}
	mu := &connOf(b).ctx.Mu // without it the goodbye message is not handled
	mu.Lock()
	defer mu.Unlock()
	if err := connOf(a).ctx.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Import(r.Key()); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("import: got %v, want ErrClosed", err)
	}
	op := driver.Op{Local: make([]byte, 64), Remote: remote}
	if err := one.PutPost(&op); err != nil {
		t.Fatal(err)
	}
	if done, err := one.OpPoll(&op); !done || !errors.Is(err, driver.ErrClosed) {
		t.Errorf("put: got %v, %v, want ErrClosed", done, err)
	}
}

// What a peer moved before it closed counts, also where it moves it and closes while this end looks for progress.
func TestPeerClosesDuringALook(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options map[string]string
		n       int
		receive bool // this end receives
		late    bool // the send is posted during the look, too
	}{
		{"receive through the ring", map[string]string{"path": "ring"}, 10_000, true, false},
		{"receive of nothing", map[string]string{"path": "ring"}, 0, true, true},
		{"send that the receiver copies", map[string]string{"path": "cma", "ends": "receiver"}, 100_000, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair(t, driver.Large, tt.options)
			out, in := driver.Packet{IOV: [][]byte{random(tt.n)}}, driver.Packet{IOV: [][]byte{make([]byte, tt.n)}}
			sender, receiver := a, b
			if !tt.receive {
				sender, receiver = b, a
			}
			if err := receiver.RecvPost(&in); err != nil {
				t.Fatal(err)
			}
			post := func() {
				out.RdvData = bytes.Clone(in.RdvData)
				if err := sender.SendPost(&out); err != nil {
					t.Fatal(err)
				}
			}
			poll, peer := func() (bool, error) { return b.SendPoll(&out) }, func() (bool, error) { return a.RecvPoll(&in) }
			if tt.receive {
				poll, peer = func() (bool, error) { return b.RecvPoll(&in) }, func() (bool, error) { return a.SendPoll(&out) }
			}
			if !tt.late {
				post()
			}
			opts := &connOf(b).ctx.opts
			opts.looked = func() {
				opts.looked = nil
				if tt.late {
					post()
				}
				if err := await(t, peer); err != nil {
					t.Fatal(err)
				}
				if err := a.Disconnect(); err != nil {
					t.Fatal(err)
				}
				within(t, 10*time.Second, "the goodbye to arrive", func() bool { return connOf(b).State() == kit.StatePeerClosed })
			}
			if err := await(t, poll); err != nil {
				t.Fatalf("got %v, want success", err)
			}
			if !bytes.Equal(in.IOV[0], out.IOV[0]) {
				t.Error(integrity.Errorf("the bytes differ"))
			}
		})
	}
}

// Who polls only receives may wait for answers to messages that still wait for room here.
func TestReceivingSendsWhatWaits(t *testing.T) {
	for _, how := range []string{"poll", "wait"} {
		t.Run(how, func(t *testing.T) {
			a, b := pair(t, driver.Small, nil)
			const n = 192 // more than the ring takes
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			answered := make(chan error, 1)
			go func() {
				var err error
				for k := 0; k < n && err == nil; k++ {
					in := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
					if err = b.RecvPost(&in); err == nil {
						err = b.(driver.RecvWaiter).RecvWait(ctx, &in)
					}
				}
				if err == nil {
					err = b.SendPost(&driver.Packet{IOV: [][]byte{make([]byte, 8)}})
				}
				answered <- err
			}()
			sent, in := make([]driver.Packet, n), driver.Packet{IOV: [][]byte{make([]byte, 8)}}
			for k := range sent {
				sent[k].IOV = [][]byte{make([]byte, 8)}
				if err := a.SendPost(&sent[k]); err != nil {
					t.Fatal(err)
				}
			}
			err := a.RecvPost(&in)
			if how == "wait" && err == nil {
				err = a.(driver.RecvWaiter).RecvWait(ctx, &in)
			} else if err == nil {
				err = await(t, func() (bool, error) { return a.RecvPoll(&in) })
			}
			if err := errors.Join(err, <-answered); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The goodbye message may not fit into the socket of a peer that does not read: the word in shared memory tells the same.
func TestOrderlyEndWithoutGoodbye(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	connOf(a).publishClosed(kit.StateUp)
	rights.HangUp(connOf(a).sock)
	within(t, 10*time.Second, "the end", func() bool { return connOf(b).State() != kit.StateUp })
	if st := connOf(b).State(); st != kit.StatePeerClosed {
		t.Errorf("state %v, want that the peer has closed: %v", st, connOf(b).Failure("test"))
	}
}

// A message whose pieces the sender has copied, all of them, is received, whatever the receiver does afterwards.
func TestCancelOfACompleteMessage(t *testing.T) {
	if !selfAttach() {
		t.Skip("needs process_vm_writev, which this sandbox refuses")
	}
	for _, n := range []int{0, 100_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			a, b := pair(t, driver.Large, map[string]string{"path": "cma", "ends": "sender"})
			out, in := driver.Packet{IOV: [][]byte{random(n)}}, driver.Packet{IOV: [][]byte{make([]byte, n)}}
			if err := b.RecvPost(&in); err != nil {
				t.Fatal(err)
			}
			out.RdvData = bytes.Clone(in.RdvData)
			if err := a.SendPost(&out); err != nil {
				t.Fatal(err)
			}
			if err := await(t, func() (bool, error) { return a.SendPoll(&out) }); err != nil {
				t.Fatal(err)
			}
			if err := b.RecvCancel(&in); err != nil {
				t.Fatal(err)
			}
			if err := await(t, func() (bool, error) { return b.RecvPoll(&in) }); err != nil {
				t.Errorf("got %v, want success", err)
			}
			if in.N != n || !bytes.Equal(in.IOV[0], out.IOV[0]) {
				t.Error(integrity.Errorf("%d bytes of %d, equal %v", in.N, n, bytes.Equal(in.IOV[0], out.IOV[0])))
			}
		})
	}
}

// A region that is revoked while its key is read is an expired one, not a damaged key: the importer can then
// distinguish a peer that has closed from a fault.
func TestImportOfARegionThatIsRevokedMeanwhile(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	own := connOf(a).ctx
	r, err := own.Register(make([]byte, 4096), driver.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	atomic.StoreUint32(&connOf(a).mine.closed, closedLeft)
	defer atomic.StoreUint32(&connOf(a).mine.closed, closedNot)
	x, live := &own.regions.mem[r.(*region).index].generation, r.(*region).gen
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				atomic.StoreUint64(x, live+1)
				atomic.StoreUint64(x, live)
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	for range 2_000_000 {
		if _, err := connOf(b).parseKey(r.Key()); err != nil && !errors.Is(err, driver.ErrClosed) {
			t.Fatalf("got %v, want ErrClosed", err)
		}
	}
}

// A call that ends beside Close touches no memory of the connection any more once it has left it.
func TestNameIsTakenBackAfterClose(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	s := b.(*small)
	for _, c := range []*hostContext{connOf(a).ctx, connOf(b).ctx} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	within(t, 10*time.Second, "the ring is unmapped", func() bool { return !mapped(t, s.recv.slots) })
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	s.named, s.popped = 1, true
	s.unname()
	if s.named != 0 {
		t.Error("the name stays")
	}
}

// mapped reports whether there is memory at p.
func mapped(t *testing.T, p unsafe.Pointer) bool {
	t.Helper()
	var vec [1]byte
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(p)&^4095, 4096, uintptr(unsafe.Pointer(&vec)))
	return errno == 0
}

// Import does not wait for an arena that the peer's table names: a peer may name one that it never shows. Put and get
// reach its memory by CMA; where that is impossible they wait, and then fail.
func TestImportDoesNotWaitForArenas(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	own := connOf(a).ctx
	r, err := own.Register(make([]byte, 64), driver.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	own.regions.mem[r.(*region).index].arena = 1 << 40
	start := time.Now()
	one := b.(driver.OneSided)
	remote, err := one.Import(r.Key())
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > arenaTime/2 {
		t.Errorf("import took %v", d)
	}
	op := driver.Op{Local: make([]byte, 64), Remote: remote}
	if err := one.PutPost(&op); err != nil {
		t.Fatal(err)
	}
	if done, err := one.OpPoll(&op); !done || err != nil {
		t.Errorf("put by CMA: %v, %v", done, err)
	}
	connOf(b).attaches = false
	if err := one.PutPost(&op); err != nil {
		t.Fatal(err)
	}
	if done, err := one.OpPoll(&op); done {
		t.Errorf("the put has ended already: %v", err)
	}
	remote.(*remoteRegion).until = time.Now()
	if done, err := one.OpPoll(&op); !done || !errors.Is(err, driver.ErrRemoteKey) {
		t.Errorf("the put in vain: %v, %v", done, err)
	}
}

// Private memory of a process that cannot be attached to cannot be imported, so that a layer above can send messages.
func TestImportWithoutAttaching(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	connOf(b).attaches = false
	r, err := connOf(a).ctx.Register(make([]byte, 64), driver.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.(driver.OneSided).Import(r.Key()); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("got %v, want ErrUnsupported", err)
	}
}
