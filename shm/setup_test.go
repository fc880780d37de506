//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func openWith(t testing.TB, track driver.Track, opts map[string]string, a driver.Attributes) driver.Context {
	t.Helper()
	c, err := query(t, track, opts).Open(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Both sides learn at once why they cannot connect, whichever side dials. The secrets or the tracks differ, or only one
// side has a secret.
func TestBothSidesGetTheReason(t *testing.T) {
	secret := func(s string) driver.Attributes { return driver.Attributes{Secret: []byte(s)} }
	for _, tt := range []struct {
		name         string
		a, b         driver.Attributes
		trackA, want any
	}{
		{"other secret", secret("secret number one"), secret("secret number two"), driver.Small, driver.ErrAuth},
		{"one without secret", secret("secret number one"), secret(""), driver.Small, driver.ErrAuth},
		{"other track", secret(""), secret(""), driver.Large, driver.ErrInvalid},
	} {
		for range 4 { // either side dials
			t.Run(tt.name, func(t *testing.T) {
				dir := map[string]string{"dir": t.TempDir()}
				a, b := openWith(t, tt.trackA.(driver.Track), dir, tt.a), openWith(t, driver.Small, dir, tt.b)
				before := held()
				x, err := a.Connect(b.URL())
				if err != nil {
					t.Fatal(err)
				}
				y, err := b.Connect(a.URL())
				if err != nil {
					t.Fatal(err)
				}
				for _, i := range []driver.Instance{x, y} {
					start := time.Now()
					err := i.ConnectWait(soon(t))
					if !errors.Is(err, tt.want.(error)) {
						t.Errorf("got %v, want %v", err, tt.want)
					}
					oneLine(t, err)
					if d := time.Since(start); d > 2*time.Second {
						t.Errorf("notified after %v, want at once", d)
					}
					if err := i.Disconnect(); err != nil {
						t.Error(err)
					}
				}
				releasedAll(t, before)
			})
		}
	}
}

// If the peer is of another release, both sides get ErrVersion with the reason.
func TestOtherVersionIsErrVersionOnBothSides(t *testing.T) {
	c := open(t, driver.Small, nil)
	if _, err := c.Connect(strings.Replace(c.URL(), "shm:2:", "shm:3:", 1)); !errors.Is(err, driver.ErrVersion) {
		t.Errorf("url of another version: got %v, want ErrVersion", err)
	}
	s := rawDial(t, c)
	defer s.Close()
	hello := (&message{kind: msgHello, from: lowestInc, to: core(c).Incarnation}).append(nil)
	hello[4]++
	if _, err := s.Write(hello); err != nil {
		t.Fatal(err)
	}
	var m message
	if _, err := receive(s, &m, 0); err != nil || m.kind != msgReject || m.code != rejectVersion {
		t.Errorf("answer to another version: got %+v, %v, want reject with code %d", m, err, rejectVersion)
	}
	if err := rejectError(m.code); !errors.Is(err, driver.ErrVersion) {
		t.Errorf("the refused side: got %v, want ErrVersion", err)
	}

	f := openSetupFuzz(t)
	i, err := f.c.Connect(f.highURL)
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	hello[6] = byte(msgReject) // in the other version
	if _, err := p.Write(hello[:headerBytes+4]); err != nil {
		t.Fatal(err)
	}
	if err := i.ConnectWait(soon(t)); !errors.Is(err, driver.ErrVersion) {
		t.Errorf("the dialing side: got %v, want ErrVersion", err)
	} else {
		oneLine(t, err, "use the same release")
	}
}

func TestBadDirectories(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, dir, text string }{
		{"missing", "/nowhere/at/all", "option dir"},
		{"a file", file, "not a directory"},
		{"too long a name", long, "too long"},
		{"read-only", "/proc/self", "option dir"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := held()
			_, err := query(t, driver.Small, map[string]string{"dir": tt.dir}).Open(driver.Attributes{})
			oneLine(t, err, tt.text)
			releasedAll(t, before)
		})
	}
	if left, _ := os.ReadDir(long); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The directory of one's own is not shared with, or given by, others.
// In another container the directory may be missing: the dialer gets that error, not that the peer has died.
func TestMissingDirectoryIsNamed(t *testing.T) {
	for range 8 { // either side would dial
		away := filepath.Join(t.TempDir(), "away")
		if err := os.Mkdir(away, 0o700); err != nil {
			t.Fatal(err)
		}
		a := openWith(t, driver.Small, map[string]string{"dir": t.TempDir()}, driver.Attributes{})
		b := openWith(t, driver.Small, map[string]string{"dir": away}, driver.Attributes{})
		if err := os.Rename(away, away+"2"); err != nil {
			t.Fatal(err)
		}
		x, err := a.Connect(b.URL())
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err = x.ConnectWait(ctx) // a is the side that dials, or waits for ever
			cancel()
		}
		if err := os.Rename(away+"2", away); err != nil {
			t.Fatal(err)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			continue
		}
		if !errors.Is(err, driver.ErrBroken) || !strings.Contains(err.Error(), away) {
			t.Fatalf("got %v", err)
		}
		return
	}
	t.Error("in 8 pairs, the same side would always dial")
}

// A default directory is refused if it is a link, belongs to another user, or can be entered by other users.
func TestDefaultDirectoryMustBeOurs(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv("XDG_RUNTIME_DIR", "")
	ours := fmt.Sprintf("%s/bywash-%d", tmp, os.Getuid())
	refused := func(what string) {
		t.Helper()
		_, err := query(t, driver.Small, nil).Open(driver.Attributes{})
		if !errors.Is(err, driver.ErrAuth) {
			t.Errorf("%s: got %v, want ErrAuth", what, err)
			return
		}
		oneLine(t, err, "remove it, or set the option dir")
	}
	if err := os.Mkdir(tmp+"/else", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(tmp+"/else", ours); err != nil {
		t.Fatal(err)
	}
	refused("a symbolic link")
	_ = os.Remove(ours)
	if err := os.Mkdir(ours, 0o700); err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(ours, 0o777)
	refused("a directory that others can enter")
	_ = os.Chmod(ours, 0o700)
	c := open(t, driver.Small, nil)
	if !strings.HasPrefix(core(c).path, ours+"/") {
		t.Errorf("socket at %s, want it in %s", core(c).path, ours)
	}
	_ = c.Close()
	if os.Getuid() != 0 {
		return
	}
	_ = os.Chown(ours, 65534, 65534)
	refused("a directory of another user")
}

func TestRelativeDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	a, b := pair(t, driver.Small, map[string]string{"dir": "."})
	_, _ = a, b
}

// A live socket is never swept, a dead one by the next open.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	opts := map[string]string{"dir": dir}
	live := open(t, driver.Small, opts)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: dir + "/0000000000000000" + socketSuffix, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close() // as if killed
	if err := os.WriteFile(dir+"/file"+socketSuffix, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := open(t, driver.Small, opts)
	names, _ := filepath.Glob(dir + "/*" + socketSuffix)
	want := []string{core(live).path, core(c).path, dir + "/file" + socketSuffix}
	if len(names) != len(want) {
		t.Errorf("got %q, want %q", names, want)
	}
	join(t, live, c)
}

// A peer that accepts a connection and hangs up before it is confirmed: the error of the dialer has one line.
func TestPeerHangsUpBeforeTheConfirmation(t *testing.T) {
	s := openSetupFuzz(t)
	n, err := s.c.Connect(s.highURL)
	if err != nil {
		t.Fatal(err)
	}
	sock, err := s.listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	var hello, got message
	if _, err := expect(sock, &hello, msgHello, 0); err != nil {
		t.Fatal(err)
	}
	challenge := message{kind: msgChallenge, from: ^uint64(0), to: hello.from, flags: hello.flags}
	challenge.mac = core(s.c).key.MAC(listenerProof, proven(&hello, &challenge)...)
	if err := send(sock, &challenge); err != nil {
		t.Fatal(err)
	}
	if _, err := expect(sock, &got, msgProof, 0); err != nil {
		t.Fatal(err)
	}
	if err := sock.CloseRead(); err != nil { // what the dialer sends fails
		t.Fatal(err)
	}
	if err := send(sock, &message{kind: msgAccept}, s.fds[:3]...); err != nil {
		t.Fatal(err)
	}
	err = n.ConnectWait(soon(t))
	if !errors.Is(err, driver.ErrBroken) {
		t.Errorf("got %v, want %v", err, driver.ErrBroken)
	}
	oneLine(t, err, "the peer ended while connecting", "broken pipe")
	ends(t, 10*time.Second, "disconnect", func() { contractError(t, n.Disconnect()) })
}

// Connections that come and go leave nothing.
func TestConnectionsLeaveNothing(t *testing.T) {
	cycles := 200
	if testing.Short() {
		cycles = 30
	}
	ar, err := driver.NewArena(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			ca, cb := open(t, track, nil), open(t, track, nil)
			r, err := ca.(driver.Registrar).Register(ar.Alloc(4096), driver.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			var before holdings
			for k := range cycles {
				if k == 5 {
					before = held()
				}
				a, b := join(t, ca, cb)
				if _, err := b.(driver.OneSided).Import(r.Key()); err != nil {
					t.Fatal(err)
				}
				if k%2 == 0 {
					a, b = b, a
				}
				if err := a.Disconnect(); err != nil {
					t.Fatal(err)
				}
				if err := b.Disconnect(); err != nil {
					t.Fatal(err)
				}
			}
			releasedAll(t, before)
		})
	}
}

// Close may come at any moment, in any goroutine. Other goroutines may wait, poll or probe meanwhile.
func TestCloseWhileOthersWait(t *testing.T) {
	rounds := 24
	switch {
	case testing.Short():
		rounds = 6
	case os.Getenv("BYWASH_SOAK") == "":
		rounds = 10
	}
	for _, opts := range []map[string]string{nil, {"membarrier": "off"}} {
		for k := range rounds {
			closeUnderWaits(t, opts, k)
		}
	}
}

func closeUnderWaits(t *testing.T, opts map[string]string, k int) {
	track := driver.Track(k % 2)
	nic := query(t, track, opts)
	c, err := nic.Open(driver.Attributes{})
	if err != nil {
		t.Fatal(err)
	}
	peer := open(t, track, opts)
	var wg sync.WaitGroup
	ended := func(err error) {
		if !errors.Is(err, driver.ErrClosed) && err != driver.ErrBusy {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
	for w := range 6 {
		i, other := join(t, c, peer)
		wg.Go(func() { useUntilClosed(t, i, w, ended) })
		wg.Go(func() {
			p := driver.Packet{IOV: [][]byte{make([]byte, 100)}}
			for track == driver.Small && other.SendPost(&p) == nil {
				for done := false; !done; {
					done, _ = other.SendPoll(&p)
					runtime.Gosched()
				}
			}
		})
	}
	if p, ok := c.(driver.Prober); ok {
		wg.Go(func() {
			for {
				if _, err := p.RecvWaitAny(context.Background()); err != nil {
					ended(err)
					return
				}
			}
		})
		wg.Go(func() {
			for _, err := p.RecvProbeAny(); err == nil || err == driver.ErrAgain; _, err = p.RecvProbeAny() {
				runtime.Gosched()
			}
		})
	}
	for range k * 20 {
		runtime.Gosched()
	}
	ends(t, 10*time.Second, "close", func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		_ = peer.Close()
		wg.Wait()
	})
}

// useUntilClosed does what an owner does, in one of several ways.
func useUntilClosed(t *testing.T, i driver.Instance, way int, ended func(error)) {
	for {
		p := driver.Packet{IOV: [][]byte{make([]byte, 100)}}
		if err := i.RecvPost(&p); err != nil {
			ended(err)
			return
		}
		var err error
		switch way % 3 {
		case 0:
			err = i.(driver.RecvWaiter).RecvWait(context.Background(), &p)
		case 1:
			for done := false; !done; {
				done, err = i.RecvPoll(&p)
				runtime.Gosched()
			}
		case 2:
			_ = i.RecvCancel(&p)
			for done := false; !done; {
				done, err = i.RecvPoll(&p)
			}
			if errors.Is(err, driver.ErrCanceled) {
				err = nil
			}
		}
		if p.Driver.Phase != driver.Idle {
			t.Errorf("got phase %d after a packet is done", p.Driver.Phase)
		}
		if err != nil {
			ended(err)
			return
		}
	}
}

// Senders that pay for a fence wake sleepers as well.
func TestNoWakeupIsLostWithoutMembarrier(t *testing.T) {
	rounds := 3000
	if testing.Short() {
		rounds = 500
	}
	a, b := pair(t, driver.Small, map[string]string{"membarrier": "off"})
	if connOf(a).asym || connOf(b).asym {
		t.Fatal("option membarrier=off has no effect")
	}
	var wg sync.WaitGroup
	var lost atomic.Int32
	bounce := func(i driver.Instance, first bool) {
		buf := make([]byte, 8)
		s, r := driver.Packet{IOV: [][]byte{buf}}, driver.Packet{IOV: [][]byte{buf}}
		for k := range rounds {
			if first || k > 0 {
				if err := i.SendPost(&s); err != nil {
					t.Error(err)
					return
				}
				_, _ = i.SendPoll(&s)
			}
			if err := i.RecvPost(&r); err != nil {
				t.Error(err)
				return
			}
			begin := time.Now()
			if err := i.(driver.RecvWaiter).RecvWait(context.Background(), &r); err != nil {
				t.Error(err)
				return
			}
			if time.Since(begin) >= longestSleep { // nobody woke it
				lost.Add(1)
			}
		}
		if !first {
			_ = i.SendPost(&s)
		}
	}
	wg.Go(func() { bounce(a, true) })
	wg.Go(func() { bounce(b, false) })
	wg.Wait()
	if n := int(lost.Load()); n > max(1, rounds/1000) {
		t.Errorf("%d wake-ups of %d were lost", n, 2*rounds)
	}
}
