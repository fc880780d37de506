//go:build linux

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

// Two goroutines watch. listen reads the kernel's multicast events and only marks the peers that an event may concern.
// work then asks the kernel for the present state. So events may come late, repeatedly, out of order or in bursts, and
// a lost event costs no more than a look-up of all peers.

func (r *Resolver) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// touch marks the peers that hit selects, and with link the device, as possibly changed.
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

// listen ends when its socket is closed. No error other than a loss of events is known to occur; after one, work finds
// changes within one Options.probe.
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

// receive reads once. lost means that events may have been lost. The kernel reports a loss once (ENOBUFS), before the
// events that it still holds, and drops further events silently until those are read. So receive touches all peers
// until no event is left, and once more after that.
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

// unread reports whether there are more events.
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

// routePrefix returns the destination prefix of a route message, or the zero Prefix, which contains no address, if the
// message is unclear.
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

// index returns the device's index in a struct ifinfomsg or struct ndmsg.
func index(data []byte) int { return int(int32(binary.NativeEndian.Uint32(data[4:]))) }

// attribute returns the value of an attribute (struct rtattr, rtnetlink(7)), or nil if there is none.
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

// work updates outcomes until the resolver is closed.
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
	if r.updateLink() { // look up all peers: the link's loss may have removed routes
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

// updateLink reports whether the link changed.
func (r *Resolver) updateLink() bool {
	old := r.link.Load()
	now := linkState{Link: old.Link, gone: old.gone}
	found, err := r.handle.LinkByIndex(r.index)
	switch {
	case err == nil && !old.gone:
		now.Link = linkOf(found.Attrs())
	case errors.Is(lookupError(err), ErrGone):
		now.up, now.gone = false, true
	}
	if now == *old {
		return false
	}
	r.link.Store(&now)
	return true
}

// update updates a peer's outcome and reports whether it changed; the first outcome does not count.
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
