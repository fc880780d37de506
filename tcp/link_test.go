//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"testing"

	"github.com/bywash/bywash/driver"
)

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
