//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// The owner takes posted memory back when the engine has ended the connection, and leaves it to the engine, which may
// copy, while this side closes.
func TestClosingLeavesMemoryToTheEngine(t *testing.T) {
	for name, end := range map[string]func(*large){
		"closing":     func(l *large) { l.Life.Close() },
		"peer closed": func(l *large) { l.Finish(kit.StatePeerClosed, nil) },
		"broken":      func(l *large) { l.Finish(kit.StateBroken, driver.ErrBroken) },
	} {
		t.Run(name, func(t *testing.T) {
			n := &nic{}
			n.mustLock() // another goroutine is the engine
			c := &share{nic: n}
			c.Init(c, func(i *conn) *kit.Conn { return &i.Conn }, c, driver.Properties{Driver: Name, Track: driver.Large},
				urlVersion, driver.Attributes{})
			c.Anyone.Watch = &n.waits
			i, err := c.newConn(0, "")
			if err != nil {
				t.Fatal(err)
			}
			l := i.api.(*large)
			l.theirs = l.token
			l.Resolve(kit.StateUp, nil)
			if err := l.ConnectWait(t.Context()); err != nil {
				t.Fatal(err)
			}
			in, out := driver.Packet{IOV: [][]byte{make([]byte, 8)}}, driver.Packet{IOV: [][]byte{make([]byte, 8)}}
			if err := l.RecvPost(&in); err != nil {
				t.Fatal(err)
			}
			out.RdvData = in.RdvData
			if err := l.SendPost(&out); err != nil {
				t.Fatal(err)
			}
			end(l)
			l.Progress(&in, false)
			l.Progress(&out, true)
			for _, p := range []*driver.Packet{&in, &out} {
				if done := p.Driver.Phase == driver.Done; done != (name != "closing") {
					t.Errorf("the memory is the user's: %v", done)
				}
			}
		})
	}
}
