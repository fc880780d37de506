package carrier

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Two goroutines watch. listen reads what the kernel multicasts, and only notes whom it may
// concern; work then asks the kernel how things are now. So events may come late, twice, out
// of order or in heaps, and a lost one costs no more than asking for all.

func (r *Resolver) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// touch notes that something may have changed for the peers that hit says, or for the link.
func (r *Resolver) touch(link bool, hit func(*Peer) bool) {
	r.mu.Lock()
	due := link
	for p := range r.peers {
		if hit(p) {
			r.peers[p], due = true, true
		}
	}
	r.mu.Unlock()
	if due {
		r.wake()
	}
}

func everyPeer(*Peer) bool { return true }

// listen ends when its socket is closed. Any other error than a loss of events is not known to
// come; then changes are found within one Probe.
func (r *Resolver) listen() {
	defer r.tasks.Done()
	var err error
	for lost := false; err == nil; {
		lost, err = r.receive(lost)
	}
	if !errors.Is(err, os.ErrClosed) {
		r.touch(true, everyPeer)
	}
}

// receive reads once. lost says that events may have been lost. The kernel says so once
// (ENOBUFS), ahead of the events that it still has, and goes on losing without a word until
// those are read: so everybody is touched until then, the last time after.
func (r *Resolver) receive(lost bool) (bool, error) {
	messages, from, err := r.events.Receive()
	switch {
	case errors.Is(err, unix.ENOBUFS):
		r.touch(true, everyPeer)
		return true, nil
	case errors.Is(err, unix.EINTR):
		return lost, nil
	case err != nil:
		return lost, err
	case from.Pid == 0: // from the kernel
		for _, m := range messages {
			r.event(m)
		}
	}
	if lost {
		lost = r.unread()
		r.touch(true, everyPeer)
	}
	return lost, nil
}

// unread says whether there are more events.
func (r *Resolver) unread() bool {
	fds := []unix.PollFd{{Fd: int32(r.events.GetFd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n != 0 || err != nil
}

func (r *Resolver) event(m syscall.NetlinkMessage) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) >= unix.SizeofIfInfomsg && index(m.Data) == r.index {
			r.touch(true, everyPeer)
		}
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		r.touch(false, everyPeer)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		prefix := routePrefix(m.Data)
		r.touch(false, func(p *Peer) bool { return prefix.Contains(p.dst) })
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if len(m.Data) < unix.SizeofNdMsg || index(m.Data) != r.index {
			return
		}
		addr, _ := netip.AddrFromSlice(attribute(m.Data[unix.SizeofNdMsg:], unix.NDA_DST))
		r.touch(false, func(p *Peer) bool {
			via := p.via.Load()
			return via != nil && *via == addr.Unmap()
		})
	}
}

// routePrefix is what a route message is about; it contains nothing where that is unclear.
func routePrefix(data []byte) netip.Prefix {
	if len(data) < unix.SizeofRtMsg {
		return netip.Prefix{}
	}
	addr := netip.IPv4Unspecified() // a default route has no RTA_DST
	if data[0] == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	} else if data[0] != unix.AF_INET {
		return netip.Prefix{}
	}
	if dst := attribute(data[unix.SizeofRtMsg:], unix.RTA_DST); dst != nil {
		addr, _ = netip.AddrFromSlice(dst)
	}
	return netip.PrefixFrom(addr, int(data[1]))
}

// index is that of the device in struct ifinfomsg and in struct ndmsg.
func index(data []byte) int { return int(int32(binary.NativeEndian.Uint32(data[4:]))) }

// attribute finds the value of an attribute (struct rtattr, rtnetlink(7)); nil means that there is none.
func attribute(b []byte, kind uint16) []byte {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			break
		}
		if binary.NativeEndian.Uint16(b[2:]) == kind {
			return b[unix.SizeofRtAttr:n]
		}
		b = b[min((n+3)&^3, len(b)):] // attributes begin at multiples of four
	}
	return nil
}

// work brings outcomes up to date until the resolver is closed.
func (r *Resolver) work() {
	defer r.tasks.Done()
	tick := time.NewTicker(r.probe)
	defer tick.Stop()
	for {
		probe := false
		select {
		case <-r.done:
			return
		case <-r.kick:
		case <-tick.C:
			probe = true
		}
		r.step(probe)
	}
}

func (r *Resolver) step(probe bool) {
	r.mu.Lock()
	var dirty []*Peer
	for p, d := range r.peers {
		if d || probe {
			dirty = append(dirty, p)
			r.peers[p] = false
		}
	}
	r.mu.Unlock()
	if r.updateLink() { // always, as a route may be lost because the link was
		r.changed(nil)
	}
	for _, p := range dirty {
		select {
		case <-r.done:
			return
		default:
		}
		if r.update(p, probe) {
			r.changed(p)
		}
	}
}

// updateLink says whether the link changed.
func (r *Resolver) updateLink() bool {
	old := r.link.Load()
	now := linkState{Link: old.Link, gone: old.gone}
	found, err := r.handle.LinkByIndex(r.index)
	switch {
	case err == nil && !old.gone:
		now.Link = linkOf(found.Attrs())
	case errors.Is(lookupError(err), ErrGone):
		now.Up, now.gone = false, true
	}
	if now == *old {
		return false
	}
	r.link.Store(&now)
	return true
}

// update brings a peer's outcome up to date and says whether it changed, the first not counted.
func (r *Resolver) update(p *Peer, probe bool) bool {
	hop, err := r.look(p, probe)
	if err == errPending {
		return false
	}
	old := p.outcome.Load()
	if old != nil && old.hop == hop && sameError(old.err, err) {
		return false
	}
	p.outcome.Store(&outcome{hop, err})
	if old == nil {
		close(p.ready)
	}
	return old != nil
}

func sameError(a, b error) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Error() == b.Error()
}
