//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/bywash/bywash/internal/descriptors"
)

// pendingTime is how long a link may wait for this side's Connect. Its dialer then dials again, if its user still
// waits. Tests shorten it.
var pendingTime = 30 * time.Second

// maxPending is how many links of a context wait for this side's Connect at most; they are fewer where the process may
// not open four times as many files.
const maxPending = 4096

// pending are the links that have proved the secret and wait for this side's Connect, the oldest first. The context's
// Mu guards it.
type pending struct {
	list []*link
	of   map[netip.Addr]int // how many are a host's
}

// host is the address that the link counts for.
func (l *link) host() netip.Addr { return hostOf(l.sock.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()) }

// hostOf is the address itself, or the network of a global IPv6 address, of which a host can have all.
func hostOf(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() && !a.IsLinkLocalUnicast() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// add has a link wait for this side's user for pendingTime.
func (q *pending) add(l *link) {
	if slices.Contains(q.list, l) {
		return
	}
	if q.of == nil {
		q.of = make(map[netip.Addr]int)
	}
	q.list = append(q.list, l)
	q.of[l.host()]++
	_ = l.sock.SetReadDeadline(time.Now().Add(pendingTime))
}

// remove takes a link out, if it waits, without a limit of its time.
func (q *pending) remove(l *link) {
	k := slices.Index(q.list, l)
	if k < 0 {
		return
	}
	q.list = slices.Delete(q.list, k, k+1)
	h := l.host()
	if q.of[h]--; q.of[h] == 0 {
		delete(q.of, h)
	}
	_ = l.sock.SetReadDeadline(time.Time{})
}

// excess returns the link that has to end if l is added: at the limit the newest one of the host with the most, and l
// itself if its host has half of the limit already. It returns nil if there is room.
func (q *pending) excess(l *link, limit int) *link {
	from := l.host()
	most, n := from, q.of[from]+1
	if n > max(limit/2, 1) {
		return l
	}
	if len(q.list) < limit {
		return nil
	}
	for h, k := range q.of {
		if k > n {
			most, n = h, k
		}
	}
	if most == from {
		return l
	}
	for _, old := range slices.Backward(q.list) {
		if old.host() == most {
			return old
		}
	}
	return l
}

// pendingLimit is how many links may wait if so many do: a quarter of the descriptors that they have and that the process
// may still open, but one in any case, so that a process with few descriptors fails instead of its peer.
func pendingLimit(waiting int) int {
	free, _ := descriptors.Free()
	return max(1, min(maxPending, (free+waiting)/4))
}
