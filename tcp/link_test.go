//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/attack"
)

// waitsForFollower has the leader of two contexts connect, and waits until the follower has its link without an
// instance.
func waitsForFollower(t *testing.T, track driver.Track) (leader, follower *share, x *conn) {
	t.Helper()
	leader, follower = aContext(t, track, nil), aContext(t, track, nil)
	if leader.Incarnation > follower.Incarnation {
		leader, follower = follower, leader
	}
	i, err := leader.Connect(follower.URL())
	if err != nil {
		t.Fatal(err)
	}
	x = connOf(i)
	attack.Await(t, "the follower has seen the link", func() bool {
		leader.Mu.Lock()
		defer leader.Mu.Unlock()
		return x.link != nil && x.link.state == linkSeen
	})
	return leader, follower, x
}

// connOf is the part of an instance that both tracks have in common.
func connOf(i driver.Instance) *conn {
	if l, ok := i.(*large); ok {
		return &l.conn
	}
	return &i.(*small).conn
}

// A follower that gives its instance up before it has answered for the link leaves the leader's call waiting for the
// follower's next one.
func TestGivenUpMatchLeavesLeaderWaiting(t *testing.T) {
	leader, follower, x := waitsForFollower(t, driver.Small)
	to, err := driver.ParseURL(leader.URL(), driver.MaxURL)
	if err != nil {
		t.Fatal(err)
	}
	func() { // Connect and Disconnect, while the goroutine of the link waits for the lock
		follower.Mu.Lock()
		defer follower.Mu.Unlock()
		num, err := follower.Conns.Free()
		if err != nil {
			t.Fatal(err)
		}
		gone, err := follower.Dial(num, leader.URL(), to)
		if err != nil {
			t.Fatal(err)
		}
		if gone.link == nil || gone.link.state != linkMatched {
			t.Fatal("the follower's instance has no link")
		}
		gone.Life.Close()
		gone.pendingPeer.leave(gone)
		follower.Conns.Remove(num, gone)
	}()
	y, err := follower.Connect(leader.URL())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), attack.MaxWait)
	defer cancel()
	if err := errors.Join(x.ConnectWait(ctx), y.ConnectWait(ctx)); err != nil {
		t.Fatal(err)
	}
	moves(t, x.Self, y, driver.Small, 100)
}

// A note that was on its way when this side gave the link up ends the link, and is no violation.
func TestNoteOfEndedLinkIsNoViolation(t *testing.T) {
	c := aContext(t, driver.Small, nil)
	for kind := noteWelcome; kind <= noteUp; kind++ {
		l := &link{ctx: c, state: linkOver}
		if err := l.handle(note{kind: kind}); err == nil {
			t.Errorf("note %d: the link goes on", kind)
		}
	}
	var counted driver.Counters
	if c.Counters(&counted); counted.BadFrames != 0 {
		t.Errorf("%d bad frames are counted, want 0", counted.BadFrames)
	}
}

// A follower that gives its instance up while the leader confirms the link ends the leader's connection in order.
func TestGivenUpBeforeUpIsOrderlyEnd(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			leader, follower, x := waitsForFollower(t, track)
			func() {
				leader.Mu.Lock() // so it does not answer yet
				defer leader.Mu.Unlock()
				y := asksLeader(t, leader, follower)
				if err := y.Self.Disconnect(); err != nil {
					t.Fatal(err)
				}
			}()
			endsInOrder(t, x)
		})
	}
}

// A leader that gives its instance up when the link comes up ends the follower's connection in order.
func TestLeaderGivenUpAtUpIsOrderlyEnd(t *testing.T) {
	leader, follower, x := waitsForFollower(t, driver.Small)
	var y *conn
	func() {
		leader.Mu.Lock()
		defer leader.Mu.Unlock()
		y = asksLeader(t, leader, follower)
		x.Life.Close() // Disconnect goes on below: the goroutine of the link gets the lock first
	}()
	attack.Await(t, "the link is up", func() bool {
		leader.Mu.Lock()
		defer leader.Mu.Unlock()
		return x.link.state == linkUp
	})
	x.OnClose(kit.StateConnecting)
	endsInOrder(t, y)
}

// asksLeader has the follower connect, and waits until it has answered for its link.
func asksLeader(t *testing.T, leader, follower *share) *conn {
	t.Helper()
	i, err := follower.Connect(leader.URL())
	if err != nil {
		t.Fatal(err)
	}
	y := connOf(i)
	attack.Await(t, "the follower has answered", func() bool {
		follower.Mu.Lock()
		defer follower.Mu.Unlock()
		return y.link != nil && y.link.state == linkAsked
	})
	return y
}

// endsInOrder waits until a connection that is established has ended.
func endsInOrder(t *testing.T, i *conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), attack.MaxWait)
	defer cancel()
	if err := i.ConnectWait(ctx); err != nil {
		t.Fatal(err)
	}
	attack.Await(t, "the connection has ended", func() bool { i.receive(); return i.State() != kit.StateUp })
	if err := i.Err(); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("the other side has given up: %v, want %v", err, driver.ErrClosed)
	}
}
