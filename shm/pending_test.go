//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/internal/rights/rightstest"
)

func eachKernel(t *testing.T, f func(*testing.T)) {
	t.Helper()
	rightstest.EachKernel(t, f)
}

// passed sends bytes with a descriptor, and gives up its own. It reports whether
// the kernel took it.
func passed(t testing.TB, s *net.UnixConn, b []byte, fd int) bool {
	t.Helper()
	err := rights.Send(s, b, false, fd)
	if err == nil {
		unix.Close(fd)
	} else { // it is the last reference
		rights.Discard(rights.Nobody, fd)
	}
	if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		t.Fatal(err)
	}
	return err == nil
}

// Descriptors that an unauthenticated dialer passes never block this process: neither reads nor closes of its socket,
// nor of the listener with sockets that were not accepted.
func TestUnauthenticatedDescriptorsNeverBlock(t *testing.T) {
	hello := func(c driver.Context) []byte {
		return (&message{kind: msgHello, flags: core(c).flags(), from: lowestInc, to: core(c).Incarnation}).append(nil)
	}
	garbage := func(driver.Context) []byte { return []byte("what is this") }
	for _, tt := range []struct {
		name string
		make func(testing.TB) int
		what func(driver.Context) []byte
		many int // messages on each socket: only the first is read
	}{
		{"hello with a socket", rightstest.Lingering, hello, 1},
		{"garbage with a socket", rightstest.Lingering, garbage, 1},
		{"more than is read", rightstest.Lingering, garbage, 3},
		{"a socket in a socket", rightstest.Nested, hello, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachKernel(t, func(t *testing.T) {
				c, err := query(t, driver.Small, nil).Open(driver.Attributes{Secret: []byte(ourSecret)})
				if err != nil {
					t.Fatal(err)
				}
				took := 0
				core(c).Mu.Lock() // nothing is read before our own descriptors are closed
				for range 24 {
					s := rawDial(t, c)
					defer s.Close()
					for range tt.many {
						if passed(t, s, tt.what(c), tt.make(t)) {
							took++
						}
					}
				}
				core(c).Mu.Unlock()
				if rights.Supported() == (took > 0) {
					t.Errorf("the kernel took %d descriptors for us", took)
				}
				ends(t, 10*time.Second, "close", func() {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				})
				// Not counted in threads, as Go keeps idle ones.
				within(t, 10*time.Second, "no goroutine is stuck", func() bool { return dialerGoroutines() == 0 })
			})
		})
	}
}

// dialerGoroutines counts goroutines that handle pending dialers.
func dialerGoroutines() int {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 2)
	return strings.Count(b.String(), "shm.(*hostContext).handleDialer(")
}

// Once it is a peer, what it passes is closed by workers: its connection ends, ours and Close go on.
func TestPeersDescriptorsNeverBlock(t *testing.T) {
	for _, tt := range []struct {
		name string
		m    message
		fds  int
	}{
		{"an arena that is a socket", message{kind: msgArena, arena: 7, size: 4096}, 1},
		{"goodbye with one", message{kind: msgGoodbye}, 1},
		{"more than a message has", message{kind: msgArena, arena: 7, size: 4096}, 9},
		{"forget with one", message{kind: msgForget, arena: 7}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachKernel(t, func(t *testing.T) {
				c, err := query(t, driver.Small, nil).Open(driver.Attributes{})
				if err != nil {
					t.Fatal(err)
				}
				i := newFakePeer(t)
				inst := i.connect(c)
				before := held()
				fds := make([]int, tt.fds)
				for k := range fds {
					fds[k] = rightstest.Nested(t)
				}
				if err := send(i.sock, &tt.m, fds...); err != nil {
					t.Fatal(err)
				}
				rights.Discard(rights.Nobody, fds...)
				before.fds += tt.fds // the ends that do not read belong to the test
				releasedAll(t, before)
				ends(t, 10*time.Second, "disconnect", func() { contractError(t, inst.Disconnect()) })
				ends(t, 10*time.Second, "close", func() {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				})
			})
		})
	}
}

// A user has a limited number of unauthenticated dialers; the oldest is dropped, genuine peers connect, and other users
// do not notice. The bound is maxUnproven.
func TestUnauthenticatedDialersAreBoundedPerUser(t *testing.T) {
	opts := map[string]string{"dir": t.TempDir()}
	c, genuine := open(t, driver.Small, opts), open(t, driver.Small, opts)
	before := held()
	var socks []*net.UnixConn
	for range maxUnproven + 32 {
		var s *net.UnixConn
		within(t, 10*time.Second, "dial", func() (ok bool) { // the queue may be full
			var err error
			s, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: core(c).path, Net: "unixpacket"})
			return err == nil
		})
		socks = append(socks, s)
	}
	for range 8 {
		join(t, c, genuine)
	}
	within(t, 10*time.Second, "the oldest are gone", func() bool {
		n := core(c)
		n.Mu.Lock()
		defer n.Mu.Unlock()
		var all int
		for _, l := range n.pendingDialers.unproven {
			all += len(l)
		}
		return all <= maxUnproven && len(n.pendingDialers.leaving) == 0
	})
	var m message
	if _, err := receive(socks[0], &m, 0); err != nil || m.kind != msgReject || m.code != rejectBusy {
		t.Errorf("the oldest got %+v, %v, want reject with code %d", m, err, rejectBusy)
	}
	for _, s := range socks {
		s.Close()
	}
	before.fds, before.maps, before.goroutines = before.fds+64, before.maps+256, before.goroutines+64
	releasedAll(t, before)
	within(t, 5*time.Second, "no counters are left", func() bool {
		core(c).Mu.Lock()
		defer core(c).Mu.Unlock()
		v := &core(c).pendingDialers
		return len(v.unproven)+len(v.leaving)+len(v.ofPeer)+len(v.ofUser) == 0
	})
}

// Watchers prove the secret, too, and are bounded: without it no process can hold descriptors for longer than an
// unauthenticated dialer. The bounds are maxWaitingPeer for a peer and maxWaitingUser for a user.
func TestWatchersAreBounded(t *testing.T) {
	c, err := query(t, driver.Small, nil).Open(driver.Attributes{Secret: []byte(ourSecret)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	watch := func(secret string) (*net.UnixConn, message) {
		s := rawDial(t, c)
		t.Cleanup(func() { s.Close() })
		_ = s.SetReadDeadline(time.Now().Add(10 * time.Second))
		hello := message{kind: msgHello, flags: core(c).flags() | flagWatch, from: lowestInc, to: core(c).Incarnation}
		var challenge message
		if err := send(s, &hello); err != nil {
			t.Fatal(err)
		}
		if _, err := expect(s, &challenge, msgChallenge, 0); err != nil {
			t.Fatal(err)
		}
		proof := message{kind: msgProof, mac: testKey(t, secret).MAC(dialerProof, proven(&hello, &challenge)...)}
		if err := send(s, &proof); err != nil {
			t.Fatal(err)
		}
		return s, hello
	}
	watchers := func() int {
		core(c).Mu.Lock()
		defer core(c).Mu.Unlock()
		return len(core(c).watched[lowestInc])
	}
	refused := func(s *net.UnixConn, code uint32) {
		t.Helper()
		var m message
		if _, err := receive(s, &m, 0); err != nil || m.kind != msgReject || m.code != code {
			t.Errorf("got %+v, %v, want reject with code %d", m, err, code)
		}
	}
	s, _ := watch("theirs, long enough")
	refused(s, rejectAuth)
	if n := watchers(); n != 0 {
		t.Errorf("%d watch without the secret", n)
	}
	for range maxWaitingPeer {
		watch(ourSecret)
	}
	within(t, 10*time.Second, "all watch", func() bool { return watchers() == maxWaitingPeer })
	s, _ = watch(ourSecret)
	refused(s, rejectWaiting)
	oneLine(t, rejectError(rejectWaiting), fmt.Sprint(maxWaitingPeer), fmt.Sprint(maxWaitingUser))
}

// An unauthenticated dialer that names another rank cannot fail the connection that waits for that rank.
func TestUnauthenticatedDialerFailsNoConnection(t *testing.T) {
	c, err := query(t, driver.Small, nil).Open(driver.Attributes{Secret: []byte(ourSecret)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	i := newFakePeer(t)
	inst, err := c.Connect(i.url)
	if err != nil {
		t.Fatal(err)
	}
	i.dial(c)
	if err := send(i.sock, &message{kind: msgProof}); err != nil {
		t.Fatal(err)
	}
	var m message
	if _, err := receive(i.sock, &m, 0); err != nil || m.code != rejectAuth {
		t.Fatalf("got %+v, %v, want reject with code %d", m, err, rejectAuth)
	}
	if s := connOf(inst).State(); s != kit.StateConnecting {
		t.Errorf("state %d, want %d", s, kit.StateConnecting)
	}
}

// Files whose close blocks for ever are held up to a limit; then that user's connections are refused with an error that
// names it. Established connections go on, and so does Close.
func TestUserWhoseDescriptorsBlockIsRefused(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		f := rightstest.MountFuse(t)
		opts := map[string]string{"dir": t.TempDir()}
		c, other := open(t, driver.Small, opts), open(t, driver.Small, opts)
		x, y := join(t, c, other)
		user := uint32(os.Getuid())
		for rights.Held(user) < rights.MaxHeld {
			i := newFakePeer(t)
			inst := i.connect(c)
			for range 2 {
				fd := f.Open()
				if err := send(i.sock, &message{kind: msgGoodbye}, fd, fd, fd); err != nil && !errors.Is(err, unix.EPIPE) {
					t.Fatal(err)
				}
				rights.Discard(rights.Nobody, fd)
			}
			n := connOf(inst)
			within(t, 5*time.Second, "it has left", func() bool { return n.State() != kit.StateUp })
			ends(t, 5*time.Second, "disconnect", func() { contractError(t, inst.Disconnect()) })
		}
		i := newFakePeer(t)
		if _, err := c.Connect(i.url); err != nil {
			t.Fatal(err)
		}
		s := rawDial(t, c)
		defer s.Close()
		var m message
		if _, err := receive(s, &m, 0); err != nil || m.kind != msgReject || m.code != rejectStuck {
			t.Errorf("got %+v, %v, want reject with code %d", m, err, rejectStuck)
		}
		oneLine(t, rejectError(m.code), "64 descriptors", "end these processes")
		p, q := driver.Packet{IOV: [][]byte{make([]byte, 8)}}, driver.Packet{IOV: [][]byte{make([]byte, 8)}}
		if err := errors.Join(x.SendPost(&p), y.RecvPost(&q)); err != nil {
			t.Fatal(err)
		}
		if err := await(t, func() (bool, error) { return y.RecvPoll(&q) }); err != nil {
			t.Error(err)
		}
		ends(t, 10*time.Second, "close", func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		f.Release()
		within(t, 10*time.Second, "all are closed", func() bool {
			return rights.Held(user)+rights.Held(rights.Nobody) == 0
		})
	})
}

// A dialer that this side's Connect answers may just have gone. The connection waits for the next one then.
func TestAnswerToADialerThatHasGone(t *testing.T) {
	c := open(t, driver.Small, nil)
	i, err := c.Connect(newFakePeer(t).url)
	if err != nil {
		t.Fatal(err)
	}
	sock := rawDial(t, c)
	sock.Close()
	core(c).offer(&pendingDialer{sock: sock}, connOf(i))
	if st := connOf(i).State(); st != kit.StateConnecting {
		t.Errorf("the connection is %v: %v", st, i.ConnectWait(t.Context()))
	}
}
