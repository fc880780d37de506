//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/attack"
)

// A long message is sent to its end without a further call, also when the kernel has room for more than one call sends.
func TestSendGoesOnWithoutCalls(t *testing.T) {
	defer func(n int) { callBudget = n }(callBudget)
	callBudget = 4096
	t.Run("in short calls", sendGoesOn) // its context ends before the budget is restored
}

func sendGoesOn(t *testing.T) {
	c := aContext(t, driver.Large, map[string]string{"dead-time": "1h"}) // no check meanwhile
	i, fd := c.fed(t)
	defer unix.Close(fd)
	c.wakeKeepAlive()
	attack.Await(t, "the keep-alive goroutine rests", func() bool {
		return len(c.keepAliveWoken) == 0 && !c.keepAlivePauses.Load()
	})
	n := 8 * callBudget
	var rdv [kit.RdvBytes]byte
	kit.PutRdv(&rdv, 1, 0, n)
	p := driver.Packet{IOV: [][]byte{make([]byte, n)}, RdvData: rdv[:]}
	if err := i.Self.SendPost(&p); err != nil {
		t.Fatal(err)
	}
	got, b := 0, make([]byte, n)
	attack.Await(t, "the peer has the whole message", func() bool {
		if k, err := unix.Read(fd, b); err == nil {
			got += k
		}
		return got == transferHead+n
	})
}
