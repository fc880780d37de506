//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/integrity"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

const maxWait = 20 * time.Second

// fakePeer is a process that sends the messages of the protocol by hand. Its incarnation is the highest, so that it is
// the listener.
type fakePeer struct {
	t      *testing.T
	p      *nic.Process
	mine   call
	theirs call
	victim *process
	peer   nic.Name
	url    string

	incarnation uint64
	track       driver.Track
}

// EnvWhy is the reason for which TestMain has found no NIC.
const EnvWhy = "BYWASH_QNIX_WHY"

func NeedNIC(t testing.TB) {
	t.Helper()
	why := os.Getenv(EnvWhy)
	if why == "" {
		return
	}
	if err := softnic.Supported(); err != nil {
		t.Skip(err)
	}
	t.Fatalf("no NIC: %s", why)
}

const fakePeerIncarnation = ^uint64(0)

func newFakePeer(t *testing.T, track driver.Track, secret string) (*fakePeer, driver.Instance) {
	t.Helper()
	return newFakePeerOf(t, fakePeerIncarnation, track, secret)
}

// newConnectedPeer is a fake peer to which the victim is connected.
func newConnectedPeer(t *testing.T, track driver.Track) (*fakePeer, driver.Instance) {
	t.Helper()
	m, i := newFakePeer(t, track, testSecret)
	m.shake(testSecret)
	if err := connected(i); err != nil {
		t.Fatal(err)
	}
	return m, i
}

// openProcess opens a context on the NIC of the tests.
func openProcess(t *testing.T, track driver.Track, secret string) *process {
	t.Helper()
	NeedNIC(t)
	q, err := qnixDriver{}.Query(driver.Hints{Device: os.Getenv(nic.EnvPath), Track: track})
	if err != nil {
		t.Fatal(err)
	}
	c, err := q.Open(driver.Attributes{Secret: []byte(secret)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if s, small := c.(smallContext); small {
		return s.process
	}
	return c.(*process)
}

func newFakePeerOf(t *testing.T, incarnation uint64, track driver.Track, secret string) (*fakePeer, driver.Instance) {
	t.Helper()
	v := openProcess(t, track, secret)
	m := &fakePeer{t: t, victim: v, peer: v.name, incarnation: incarnation, track: track}
	m.register()
	url := driver.URL{Driver: Name, Version: urlVersion, Incarnation: incarnation, Rest: place{nic: m.p.NIC() + 1, track: track, home: 1}.String()}
	m.url = url.String()
	m.mine = call{
		from: incarnation, to: v.Incarnation, number: 1, tags: 100, receives: 8, sends: 8, track: track, buffer: 4096, token: 7,
	}
	return m, m.call()
}

// call makes the victim call the fake peer.
func (m *fakePeer) call() driver.Instance {
	m.t.Helper()
	i, err := m.victim.Self().Connect(m.url)
	if err != nil {
		m.t.Fatal(err)
	}
	m.theirs = m.receiveControl(kindCall).call
	return i
}

// comeBack loses the fake peer, ends the victim's connection to it, and lets it come back.
func (m *fakePeer) comeBack(i driver.Instance) {
	m.t.Helper()
	if err := m.p.Deregister(); err != nil {
		m.t.Fatal(err)
	}
	m.eventually("the connection breaks", func() bool { return i.(interface{ State() kit.State }).State() == kit.StateBroken })
	m.register()
	m.isForgotten(i)
}

// isForgotten disconnects, and waits until the victim has forgotten the fake peer that it lost.
func (m *fakePeer) isForgotten(i driver.Instance) {
	m.t.Helper()
	m.eventually("disconnect", func() bool { return i.Disconnect() == nil })
	m.eventually("the lost peer is forgotten", func() bool {
		m.victim.Mu.Lock()
		defer m.victim.Mu.Unlock()
		return len(m.victim.peers) == 0
	})
}

// register registers the fake peer, which may be done again after Deregister.
func (m *fakePeer) register() {
	m.t.Helper()
	n, err := nic.Open(os.Getenv(nic.EnvPath))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = n.Close() })
	m.p, err = n.Register(m.t.Context(), nic.Config{Name: processName(m.incarnation, m.track).String(), RegionSize: 8192})
	if err != nil {
		m.t.Fatal(err)
	}
}

// receiveControl takes the next control message.
func (m *fakePeer) receiveControl(want kind) (c control) {
	m.t.Helper()
	if err := m.p.ReceiveShort(0, m.peer, controlTag, controlMax); err != nil {
		m.t.Fatal(err)
	}
	n := m.await(func() (nic.State, int) { return m.p.ReceiveDoorbell(0) })
	if err := c.parse(m.p.ReceiveRegion(0)[:n]); err != nil || c.kind != want {
		m.t.Fatalf("control message of kind %d, error %v, want kind %d", c.kind, err, want)
	}
	return c
}

func (m *fakePeer) await(doorbell func() (nic.State, int)) int {
	m.t.Helper()
	_ = m.p.Kick()
	for end := time.Now().Add(maxWait); ; {
		seen := m.p.RingTail()
		if s, n := doorbell(); s == nic.Done {
			return n
		} else if s.Rung() || time.Now().After(end) {
			m.t.Fatalf("doorbell: %v", s)
		}
		_ = m.p.Wait(seen, time.Second)
	}
}

// send sends bytes to a tag of the victim.
func (m *fakePeer) send(tag uint16, b []byte) {
	m.t.Helper()
	copy(m.p.SendRegion(0), b)
	if err := m.p.SendShort(0, m.peer, tag, len(b)); err != nil {
		m.t.Fatal(err)
	}
	m.await(func() (nic.State, int) { return m.p.SendDoorbell(0) })
}

func (m *fakePeer) sendControl(c control) { m.send(controlTag, c.append(nil)) }

// shake connects as a process that has the secret.
func (m *fakePeer) shake(secret string) {
	m.t.Helper()
	m.sendControl(control{kind: kindCall, call: m.mine})
	j := m.receiveControl(kindJoin)
	mac := testKey(m.t, secret).MAC(listenerProof, proven(&m.theirs, &m.mine)...)
	m.sendControl(control{kind: kindWelcome, mine: j.yours, yours: j.mine, mac: mac})
}

func connected(i driver.Instance) error {
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	return i.ConnectWait(ctx)
}

// Invalid control messages, heads and credits break the connection, with the reason, and count as bad frames.
func TestInvalidMessagesBreakTheConnection(t *testing.T) {
	head := func(limit, number uint32, more int) []byte {
		b := make([]byte, dataHead+more)
		putHead(b, limit, number)
		return b
	}
	for name, attack := range map[string]func(*fakePeer){
		"garbage as control":         func(m *fakePeer) { m.send(controlTag, []byte("nonsense")) },
		"nothing as control":         func(m *fakePeer) { m.send(controlTag, nil) },
		"too long a control message": func(m *fakePeer) { m.send(controlTag, make([]byte, 500)) },
		"another message's number":   func(m *fakePeer) { m.send(m.theirs.tags, head(8, 5, 0)) },
		"credits beyond the window":  func(m *fakePeer) { m.send(m.theirs.tags, head(1000, 0, 0)) },
		"a message without a head":   func(m *fakePeer) { m.send(m.theirs.tags, []byte{1, 2, 3}) },
		"a message that is too long": func(m *fakePeer) { m.send(m.theirs.tags, head(8, 0, 5000)) },
		"a credit of another size":   func(m *fakePeer) { m.send(m.theirs.tags+m.theirs.receives, []byte{8}) },
		"too long a credit":          func(m *fakePeer) { m.send(m.theirs.tags+m.theirs.receives, make([]byte, 100)) },
		"a credit beyond the window": func(m *fakePeer) { m.send(m.theirs.tags+m.theirs.receives, head(1<<31, 0, 0)[:creditBytes]) },
		"another version of the protocol": func(m *fakePeer) {
			b := (&control{kind: kindOver, mine: 1, yours: m.theirs.number}).append(nil)
			b[4]++
			m.send(controlTag, b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := newConnectedPeer(t, driver.Small)
			attack(m)
			p := &driver.Packet{IOV: [][]byte{make([]byte, 4096)}}
			err := i.RecvPost(p)
			ctx, cancel := context.WithTimeout(context.Background(), maxWait)
			defer cancel()
			if err == nil {
				err = i.(driver.RecvWaiter).RecvWait(ctx, p)
			}
			if !errors.Is(err, driver.ErrBroken) && !errors.Is(err, driver.ErrVersion) || !strings.Contains(err.Error(), "violated the protocol") {
				t.Errorf("got %v, want %v with the reason", err, driver.ErrBroken)
			}
			var c driver.Counters
			if m.victim.Counters(&c); c.BadFrames == 0 {
				t.Error("bad frames are not counted")
			}
		})
	}
}

// A context that is used again may have an entry of its earlier use in the Doorbell Ring: that is no sign about what is
// posted.
func TestEarlierEntriesOfTheRingAreIgnored(t *testing.T) {
	m, i := newConnectedPeer(t, driver.Small)
	n := &i.(*small).conn
	m.victim.doorbells.mustLock()
	for k := range n.receives.n {
		if s, _ := m.victim.proc.ReceiveDoorbell(n.receives.at + k); s == nic.Pending {
			m.victim.receiveRang(n.receives.at + k)
		}
	}
	m.victim.doorbells.unlock()
	if err := i.RecvPost(&driver.Packet{IOV: [][]byte{make([]byte, 8)}}); err != nil {
		t.Errorf("the connection has ended: %v", err)
	}
}

// The contexts of a connection have no other user before their doorbells are drained, which would count as messages of
// that user.
func TestContextsChangeUserWhenDrained(t *testing.T) {
	c := openProcess(t, driver.Small, "")
	c.stop() // the background goroutine, in whose place the test
	c.wakeBackground()
	c.tasks.Wait()
	step := func() {
		c.Mu.Lock()
		c.releaseRetired()
		c.stepFence()
		c.Mu.Unlock()
		c.kick()
	}
	eventually := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(maxWait); !f(); step() {
			if time.Now().After(end) {
				t.Fatalf("%s: not within %v", what, maxWait)
			}
		}
	}
	connect := func() *small {
		t.Helper()
		i, err := c.Connect(c.URL()) // to itself, which takes no control message
		if err != nil {
			t.Fatal(err)
		}
		if err := connected(i); err != nil {
			t.Fatal(err)
		}
		return i.(*small)
	}
	free := c.receives.left
	first := connect()
	if err := first.Disconnect(); err != nil {
		t.Fatal(err)
	}
	eventually("the connection retires", func() bool { return len(c.retirees) == 0 })
	step()

	second := connect()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	for k := range 3 * second.window {
		in := &driver.Packet{IOV: [][]byte{make([]byte, 1)}}
		if err := second.SendPost(&driver.Packet{IOV: [][]byte{{byte(k)}}}); err != nil {
			t.Fatal(err)
		}
		eventually("the message comes", func() bool {
			s, _ := c.proc.ReceiveDoorbell(second.receives.at + int(k%second.window))
			return s == nic.Done
		})
		if err := second.RecvPost(in); err != nil {
			t.Fatal(err)
		}
		if err := second.RecvWait(ctx, in); err != nil || in.IOV[0][0] != byte(k) {
			t.Fatal(integrity.Errorf("message %d: %v, error %v", k, in.IOV[0], err))
		}
	}
	if got := second.came.Load(); got != 3*second.window {
		t.Errorf("%d messages have come, %d were sent", got, 3*second.window)
	}
	if err := second.Disconnect(); err != nil {
		t.Fatal(err)
	}
	eventually("all contexts are free", func() bool { c.Drain(); return c.receives.left == free })
}

// A process that has another secret, or sends our own proof back, is refused and is notified of the reason.
func TestFakePeerWithoutSecret(t *testing.T) {
	for name, shake := range map[string]func(*fakePeer){
		"another secret": func(m *fakePeer) { m.shake("guessed, and long enough") },
		"our own proof sent back": func(m *fakePeer) {
			m.sendControl(control{kind: kindCall, call: m.mine})
			j := m.receiveControl(kindJoin)
			m.sendControl(control{kind: kindWelcome, mine: j.yours, yours: j.mine, mac: j.mac})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := newFakePeer(t, driver.Small, testSecret)
			shake(m)
			if err := connected(i); !errors.Is(err, driver.ErrAuth) {
				t.Errorf("got %v, want %v", err, driver.ErrAuth)
			}
			if r := m.receiveControl(kindRefuse); r.reason != refusedSecret {
				t.Errorf("refused for reason %d, want %d", r.reason, refusedSecret)
			}
		})
	}
}

// A call from before the link was lost may have waited at the peer's NIC. If the peer joins its own call to that one,
// this side withdraws it, so that the peer joins its call to a later one.
func TestCallThatIsForgottenIsWithdrawn(t *testing.T) {
	m, i := newFakePeerOf(t, 1, driver.Small, testSecret) // the lower incarnation joins
	forgotten := m.theirs.number + 100
	m.sendControl(control{kind: kindCall, call: m.mine})
	m.sendControl(control{kind: kindJoin, mine: m.mine.number, yours: forgotten})
	if w := m.receiveControl(kindWithdraw); w.mine != forgotten {
		t.Errorf("call %d is withdrawn, want %d", w.mine, forgotten)
	}
	mac := testKey(t, testSecret).MAC(dialerProof, proven(&m.mine, &m.theirs)...)
	m.sendControl(control{kind: kindJoin, mine: m.mine.number, yours: m.theirs.number, mac: mac})
	m.receiveControl(kindWelcome)
	if err := connected(i); err != nil {
		t.Error(err)
	}
}

// A peer whose link was lost and came back before the end of the old connections gets no message of these.
func TestPeerThatCameBackGetsNothingOfOldConnections(t *testing.T) {
	m, i := newConnectedPeer(t, driver.Small)
	m.comeBack(i)
	m.call() // the first message
}

// Messages of old connections, sent before the peer reads that the link was lost, reach no later connection.
func TestPeerThatCameBackSendsNothingOfOldConnections(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			m, i := newConnectedPeer(t, track)
			first := m.theirs.tags
			m.comeBack(i)
			old := append(make([]byte, dataHead), "old"...) // the first message of a connection
			for k := range tagsOf(track, int(m.theirs.receives)) {
				m.send(first+uint16(k), old)
				m.send(first+uint16(k), old) // the NIC keeps both
			}
			for round := range 2 { // in the second round the tags are the first again
				i = m.call()
				m.mine.number++
				m.shake(testSecret)
				if err := connected(i); err != nil {
					t.Fatal(err)
				}
				if again := m.theirs.tags == first; again != (round == 1) {
					t.Errorf("round %d: tags from %d on, those of the old connection were from %d on", round, m.theirs.tags, first)
				}
				p := &driver.Packet{IOV: [][]byte{make([]byte, 64)}}
				if err := i.RecvPost(p); err != nil {
					t.Fatal(err)
				}
				tag, text := m.theirs.tags, append(make([]byte, dataHead), "new"...)
				if track == driver.Large {
					tag, text = transferTag(tag, int(p.Driver.Slot), 1), text[dataHead:]
				} else {
					putHead(text, uint32(m.mine.receives), 0)
				}
				m.send(tag, text)
				ctx, cancel := context.WithTimeout(context.Background(), maxWait)
				defer cancel()
				if err := i.(driver.RecvWaiter).RecvWait(ctx, p); err != nil || string(p.IOV[0][:p.N]) != "new" {
					t.Errorf("INTEGRITY: round %d: received %q, error %v", round, p.IOV[0][:p.N], err)
				}
				m.eventually("the tags are clean", func() bool {
					m.victim.Mu.Lock()
					defer m.victim.Mu.Unlock()
					return len(m.victim.peers[m.incarnation].tags.unclean) == 0
				})
			}
		})
	}
}

// The tags of a lost peer are kept, unless it was at the same NIC: then it cannot come back.
func TestOnlyPeersOfOtherNICsAreKept(t *testing.T) {
	m, i := newFakePeer(t, driver.Small, testSecret)
	for _, tt := range []struct{ nic, kept int }{{int(m.p.NIC()) + 1, 1}, {int(m.p.NIC()), 0}} {
		m.shake(testSecret)
		if err := connected(i); err != nil {
			t.Fatal(err)
		}
		m.comeBack(i)
		m.victim.Mu.Lock()
		kept := len(m.victim.lost)
		m.victim.Mu.Unlock()
		if kept != tt.kept {
			t.Errorf("NIC %d: the tags of %d peers are kept, want %d", tt.nic, kept, tt.kept)
		}
		url := driver.URL{Driver: Name, Version: urlVersion, Incarnation: m.incarnation, Rest: place{nic: m.p.NIC(), home: 1}.String()}
		m.url = url.String()
		i = m.call()
		m.mine.number++
	}
}

// The tags of a bounded number of lost peers are kept.
func TestLostPeersAreBounded(t *testing.T) {
	m, i := newConnectedPeer(t, driver.Small)
	m.victim.Mu.Lock()
	for k := range uint64(maxLost) {
		m.victim.lost[k] = peerTags{}
	}
	m.victim.Mu.Unlock()
	m.comeBack(i)
	m.victim.Mu.Lock()
	defer m.victim.Mu.Unlock()
	if _, kept := m.victim.lost[m.incarnation]; !kept || len(m.victim.lost) != maxLost {
		t.Errorf("%d peers are kept, this one among them: %v, want %d", len(m.victim.lost), kept, maxLost)
	}
}

// A peer that is gone is forgotten, also if the link has come back before a control receive was posted, which nothing
// ends then.
func TestPeerWithAPostedReceiveIsForgotten(t *testing.T) {
	m, i := newConnectedPeer(t, driver.Small)
	m.victim.Mu.Lock()
	m.victim.peers[m.incarnation].died(driver.ErrBroken)
	m.victim.Mu.Unlock()
	m.isForgotten(i)
}

// A peer that a doorbell of a connection reports as gone is lost with all connections, also if no control receive was
// posted at that time: nothing else would end them if the link comes back before.
func TestConnectionThatFindsThePeerGone(t *testing.T) {
	m, i := newConnectedPeer(t, driver.Small)
	m.victim.Mu.Lock() // the background goroutine waits, and posts no further control receive
	m.sendControl(control{kind: kindOver, mine: 99, yours: 99})
	if err := m.p.Deregister(); err != nil {
		t.Fatal(err)
	}
	m.register()
	m.eventually("the connection breaks", func() bool { m.victim.Drain(); return i.(*small).State() == kit.StateBroken })
	m.victim.Mu.Unlock()
	m.isForgotten(i)
}

// A send of an old connection that this side has posted after the link has come back, before it knew that it was lost,
// is cancelled before its memory is free.
func TestSendToPeerThatCameBackIsCancelled(t *testing.T) {
	m, i := newConnectedPeer(t, driver.Large)
	m.victim.Mu.Lock() // the background goroutine waits
	if err := m.p.Deregister(); err != nil {
		t.Fatal(err)
	}
	m.register()
	var b [rdvBytes]byte
	rdv := rdvData{token: m.mine.token, length: 32 << 20, gen: 1, slot: 0, tag: transferTag(m.mine.tags, 0, 1)}
	rdv.encode(&b)
	p := &driver.Packet{IOV: [][]byte{make([]byte, rdv.length)}, RdvData: b[:]}
	err := i.SendPost(p)
	m.victim.Mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	m.isForgotten(i)
	if done, err := i.SendPoll(p); !done || !errors.Is(err, driver.ErrBroken) && !errors.Is(err, driver.ErrClosed) {
		t.Errorf("send: done %v, error %v", done, err)
	}
	if err := m.p.ReceiveShort(0, m.peer, rdv.tag, 64); err != nil {
		t.Fatal(err)
	}
	if err := m.p.CancelReceive(0); err != nil {
		t.Fatal(err)
	}
	_ = m.p.Kick()
	m.eventually("the receive ends", func() bool { s, _ := m.p.ReceiveDoorbell(0); return s != nic.Pending })
	if s, n := m.p.ReceiveDoorbell(0); s != nic.Canceled {
		t.Errorf("the peer's receive: got %v with %d bytes, want %v", s, n, nic.Canceled)
	}
}

// TestStrangeControlMessagesAreHarmless sends well-formed control messages at random, on both tracks, and then closes.
// Nothing panics or hangs.
func TestStrangeControlMessagesAreHarmless(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for round := range 40 {
		m, i := newFakePeer(t, driver.Track(round%2), "")
		if rnd.IntN(3) > 0 {
			m.shake("")
			if err := connected(i); err != nil {
				t.Fatal(err)
			}
		}
		for range rnd.IntN(30) {
			c := control{
				kind: kind(1 + rnd.IntN(int(kindRevoked))), call: m.mine, mine: uint32(rnd.IntN(3)), yours: uint32(rnd.IntN(3)),
				messages: rnd.Uint64() >> rnd.IntN(64), credits: rnd.Uint32() >> rnd.IntN(32), reason: reason(rnd.IntN(5)),
				slot: uint32(rnd.IntN(transferDepth)), gen: uint32(rnd.IntN(12)), sent: rnd.IntN(2) == 0,
			}
			c.call.number = uint32(rnd.IntN(5))
			m.sendControl(c)
		}
		p := &driver.Packet{IOV: [][]byte{make([]byte, 64)}}
		if i.RecvPost(p) == nil {
			_, _ = i.RecvPoll(p)
		}
		if rnd.IntN(2) == 0 {
			_ = i.Disconnect()
		}
		if err := m.p.Deregister(); err != nil {
			t.Fatal(err)
		}
		if err := m.victim.Self().Close(); err != nil {
			t.Fatalf("round %d: close: %v", round, err)
		}
	}
}

// The background goroutine does not sleep in the kernel while another goroutine polls, even if no doorbell rings: it would
// keep the only P of a program with GOMAXPROCS=1. It looks each millisecond. A poller that got no processor time for
// longer begins again.
func TestBackgroundGoroutineStaysOutOfTheKernelWhileOthersPoll(t *testing.T) {
	m, _ := newFakePeer(t, driver.Small, testSecret)
	v := m.victim
	const pause, enough, limit = polledPause / 2, 3 * polledPause, 10 * time.Second
	begin := time.Now()
	times := 0 // without processor time it stays out of the kernel, too, now and then
	for last, out := begin, begin; times < 10; {
		if last.Sub(out) > enough {
			times, out = times+1, last
		}
		v.polled.Store(true) // as Drain does, without giving the processor away
		now := time.Now()
		if now.Sub(last) > pause || v.backgroundSleeps.Load() {
			v.wakeBackground()
			out = now
		}
		if last = now; now.Sub(begin) > limit {
			t.Fatalf("it stays out of the kernel for %v of polls %d times in %v", enough, times, limit)
		}
	}
	for !v.polled.Load() { // the background goroutine may have looked in between
		v.Drain()
	}
}

// A process that cannot receive the descriptors of a registration gets an error that says so, and can register later.
func TestRegistrationWithoutDescriptorsNamesTheLimit(t *testing.T) {
	NeedNIC(t)
	n, err := nic.Open(os.Getenv(nic.EnvPath))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var limit unix.Rlimit
	fds, err := os.ReadDir("/proc/self/fd")
	if err == nil {
		err = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	few := unix.Rlimit{Cur: uint64(len(fds)), Max: limit.Max}
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &few)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.Register(t.Context(), nic.Config{Name: "few", RegionSize: 8192})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	switch module := strings.HasPrefix(os.Getenv(nic.EnvPath), "/dev/"); {
	case module && err != nil: // which passes no descriptors
		t.Error(err)
	case !module && (!errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "ulimit -n")):
		t.Errorf("%v, want an error that names the limit of open files", err)
	}
}

// A call handles a bounded number of the doorbells that have rung. The next calls handle the others.
func TestDrainIsBounded(t *testing.T) {
	ends := [2]*process{openProcess(t, driver.Small, ""), openProcess(t, driver.Small, "")}
	x, err := ends[0].Connect(ends[1].URL())
	if err != nil {
		t.Fatal(err)
	}
	y, err := ends[1].Connect(ends[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(connected(x), connected(y)); err != nil {
		t.Fatal(err)
	}
	const messages, most = 20, 8
	c := ends[1]
	c.doorbells.mustLock()
	sent := make([]driver.Packet, messages)
	for k := range sent {
		sent[k].IOV = [][]byte{{byte(k)}}
		if err := x.SendPost(&sent[k]); err != nil {
			t.Fatal(err)
		}
	}
	rung := func() uint32 { return c.proc.RingTail() - c.doorbells.seen.Load() }
	for end := time.Now().Add(maxWait); ; {
		tail := c.proc.RingTail()
		if rung() >= messages {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d doorbells have rung, want %d", rung(), messages)
		}
		_ = c.proc.Wait(tail, time.Second)
	}
	if n := c.drainLocked(most); n != most || rung() < messages-most {
		t.Errorf("%d doorbells were handled and %d are left, want %d of %d handled", n, rung(), most, messages)
	}
	c.doorbells.unlock()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	for k := range messages {
		p := driver.Packet{IOV: [][]byte{make([]byte, 1)}}
		if err := y.RecvPost(&p); err != nil {
			t.Fatal(err)
		}
		if err := y.(driver.RecvWaiter).RecvWait(ctx, &p); err != nil || p.IOV[0][0] != byte(k) {
			t.Fatalf("message %d: %v, %v", k, p.IOV[0], err)
		}
	}
}

// A slot's receives may be sent to however many there were before.
func TestGenerationsGoRound(t *testing.T) {
	l := &large{}
	gen := uint32(1)
	for range 20 {
		l.out[0].rdv.gen = gen
		if _, err := l.claim(0); err != nil {
			t.Fatalf("generation %#x: %v", gen, err)
		}
		gen += 1<<29 - 1
	}
	l.claims[0].revoked, l.out[0].rdv.gen = gen, gen
	if _, err := l.claim(0); !errors.Is(err, driver.ErrCanceled) {
		t.Errorf("a receive that was cancelled: %v", err)
	}
}

// Rdv data that names a receive beyond those of the peer's call is an error of the post, and no end of the NIC for the
// context's other connections.
func TestRdvDataBeyondTheReceives(t *testing.T) {
	m, i := newFakePeer(t, driver.Large, testSecret)
	m.mine.receives, m.mine.tags = 1, maxTags-tagsEach
	m.shake(testSecret)
	if err := connected(i); err != nil {
		t.Fatal(err)
	}
	rdv := rdvData{token: m.mine.token, length: 64, gen: 1, slot: transferDepth - 1, tag: transferTag(m.mine.tags, transferDepth-1, 1)}
	var b [rdvBytes]byte
	rdv.encode(&b)
	if err := i.SendPost(&driver.Packet{IOV: [][]byte{make([]byte, 64)}, RdvData: b[:]}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("got %v, want %v", err, driver.ErrInvalid)
	}
	if m.victim.failing.Load() {
		t.Error("the NIC counts as failed")
	}
}

// A connection that the peer refuses after both have proved the secret ends like any other: its contexts are used again
// only when the NIC has given up what it has of them.
func TestRefusalComesTooLate(t *testing.T) {
	m, i := newFakePeer(t, driver.Large, testSecret)
	m.mine.receives = transferDepth
	m.shake(testSecret)
	if err := connected(i); err != nil {
		t.Fatal(err)
	}
	rdv := rdvData{token: m.mine.token, length: 8 << 20, gen: 1, slot: 0, tag: transferTag(m.mine.tags, 0, 1)}
	var b [rdvBytes]byte
	rdv.encode(&b)
	p := &driver.Packet{IOV: [][]byte{make([]byte, 8<<20)}, RdvData: b[:]} // more than the NIC keeps
	if err := i.SendPost(p); err != nil {
		t.Fatal(err)
	}
	m.sendControl(control{kind: kindRefuse, mine: m.mine.number, yours: m.theirs.number, reason: refusedStale})
	v, n := m.victim, &i.(*large).conn
	m.eventually("the connection breaks", func() bool { return n.State() == kit.StateBroken })
	if err := i.Disconnect(); err != nil {
		t.Fatal(err)
	}
	m.eventually("the NIC gives the send up", func() bool {
		s, _ := v.proc.SendDoorbell(n.sends.at)
		return s.Rung()
	})
	v.Mu.Lock()
	defer v.Mu.Unlock()
	if _, kept := v.all[n]; !kept {
		t.Error("the connection's contexts are free though the peer has not confirmed its end")
	}
}

// A peer that confirms messages which the NIC keeps for it does not get the bytes that the contexts have later.
func TestPeerThatConfirmsWhatTheNICKeeps(t *testing.T) {
	m, i := newConnectedPeer(t, driver.Small)
	s := i.(*small)
	v, limit := m.victim, uint32(m.mine.receives)
	sends, used := s.sends, int(m.mine.receives)
	const later = 0xEE
	size, credits := s.Longest(), uint32(0)
	credit := func() {
		limit += uint32(used) / 2
		credits++
		m.send(m.theirs.tags+m.theirs.receives, binary.LittleEndian.AppendUint32(nil, limit))
	}
	for k := range 20 << 20 / size { // more than the NIC keeps for the process
		p := &driver.Packet{IOV: [][]byte{make([]byte, size)}}
		for i.SendPost(p) != nil {
			credit()
		}
		if k%(used/2) == 0 {
			credit()
		}
		for done, err := i.SendPoll(p); !done; done, err = i.SendPoll(p) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := i.Disconnect(); err != nil {
		t.Fatal(err)
	}
	m.sendControl(control{kind: kindLeave, mine: m.mine.number, yours: m.theirs.number, credits: credits})
	m.sendControl(control{kind: kindOver, mine: m.mine.number, yours: m.theirs.number})
	m.eventually("the connection retires", func() bool {
		v.Mu.Lock()
		defer v.Mu.Unlock()
		return len(v.all) == 0
	})
	for k := range sends.n {
		region := v.proc.SendRegion(sends.at + k)
		for j := range region {
			region[j] = later
		}
	}
	for k := range used {
		for {
			if err := m.p.ReceiveShort(1+k, m.peer, m.mine.tags+uint16(k), size+dataHead); err != nil {
				t.Fatal(err)
			}
			_ = m.p.Kick()
			state, n := nic.Pending, 0
			for end := time.Now().Add(100 * time.Millisecond); state == nic.Pending && time.Now().Before(end); {
				state, n = m.p.ReceiveDoorbell(1 + k)
			}
			if state == nic.Pending {
				break
			}
			if b := m.p.ReceiveRegion(1 + k)[:n]; bytes.Contains(b, []byte{later, later}) {
				t.Fatalf("context %d: the peer gets bytes of the next connection: % x", k, b[:16])
			}
		}
	}
}

// A peer that makes the NIC keep as many control messages for it as the NIC keeps for a process is not dead: they are
// sent when it receives.
func TestControlMessagesWaitForTheNIC(t *testing.T) {
	m, i := newFakePeer(t, driver.Large, testSecret)
	m.mine.receives = transferDepth
	m.shake(testSecret)
	if err := connected(i); err != nil {
		t.Fatal(err)
	}
	const questions = 1<<16 + 50 // more answers than a NIC keeps
	for k, end := 0, time.Now().Add(maxWait); k < questions; {
		q := control{kind: kindRevoke, mine: m.mine.number, yours: m.theirs.number, slot: uint32(k % transferDepth), gen: uint32(k)}
		if err := m.p.SendShort(0, m.peer, controlTag, copy(m.p.SendRegion(0), q.append(nil))); err != nil {
			t.Fatal(err)
		}
		_ = m.p.Kick()
		state, _ := m.p.SendDoorbell(0)
		for ; !state.Rung(); state, _ = m.p.SendDoorbell(0) {
			if time.Now().After(end) {
				t.Fatalf("the NIC does not take question %d", k)
			}
		}
		if state == nic.Done { // else the NIC has no room for it before the other side receives
			k++
		}
	}
	for range questions {
		m.receiveControl(kindRevoked)
	}
}

// Control messages for a peer that takes none wait in a bounded amount of memory.
func TestControlMessagesThatWaitAreBounded(t *testing.T) {
	p := &peer{ctx: &process{}, out: make([][]byte, maxWaiting)}
	p.sendControl(&control{kind: kindOver})
	if n, bad := len(p.out), p.ctx.bad.Load(); n != maxWaiting || bad != 1 {
		t.Errorf("%d wait, %d counted as bad, want %d and 1", n, bad, maxWaiting)
	}
}

// Answers about receives that were cancelled take a bounded amount of memory, whatever their number.
func TestAnswersOfAPeerAreBounded(t *testing.T) {
	l := &large{}
	l.ctx = &process{backgroundWoken: make(chan struct{}, 1)}
	l.resting[3] = 1 << 5
	for k := range uint32(10_000) {
		l.revoked(&control{slot: 3, gen: 5 + tagsEach*k, sent: true})
	}
	if n := len(l.strays); n > transferDepth*tagsEach {
		t.Errorf("%d answers are kept", n)
	}
}

// The background goroutine does not wait for an owner that waits for the end of the NIC, which the same goroutine handles.
func TestLeavingPeerAndFailingNIC(t *testing.T) {
	m, i := newConnectedPeer(t, driver.Small)
	n := &i.(*small).conn
	if !n.Enter() {
		t.Fatal("the instance has ended")
	}
	m.victim.failing.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.endSending()
	}()
	select {
	case <-ended:
	case <-time.After(maxWait):
		t.Error("it waits for the owner")
	}
	m.victim.failing.Store(false)
	n.Leave()
}

// eventually waits until f holds, and looks each time the background goroutine has polled everything.
func (m *fakePeer) eventually(what string, f func() bool) {
	m.t.Helper()
	for end := time.After(maxWait); !f(); {
		select {
		case <-time.After(time.Millisecond):
		case <-end:
			m.t.Fatalf("%s: not within %v", what, maxWait)
		}
	}
}
