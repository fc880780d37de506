//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
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
