//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Keep-alive does not probe a connection with unacknowledged bytes: both ends set TCP_USER_TIMEOUT, so that the death of the
// other host is noticed nevertheless.
func TestUnacknowledgedBytesEndTheConnection(t *testing.T) {
	s := newServer(t, 1)
	j := join(t, s, 0)
	s.mu.Lock()
	server := s.ranks[0].Conn
	s.mu.Unlock()
	for side, conn := range map[string]net.Conn{"rank": j.dialect.(*embedded).conn, "server": server} {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var ms int
		if e := raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); e != nil || err != nil {
			t.Fatal(e, err)
		}
		if got := time.Duration(ms) * time.Millisecond; got != hostDeadTime {
			t.Errorf("%s: bytes may be unacknowledged for %v, want %v", side, got, hostDeadTime)
		}
	}
}
