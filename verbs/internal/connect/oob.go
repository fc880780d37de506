//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// oob connects over TCP, outside of the RDMA port.
type oob struct {
	*hub
	listeners []*net.TCPListener
	accepting chan struct{} // bounds the goroutines of dialers that are not proven yet or were refused
}

// oob's blob is a version and addresses. Each address is a length of 4 or 16, the address, and a port in big-endian.
const (
	oobVersion  = 1
	maxOOBAddrs = 4
	acceptPause = 50 * time.Millisecond
)

// broadcast is the address of all hosts of a segment.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// openOOB listens at the addresses of the port's interface, or at those that the user has chosen. An address that cannot
// be bound is left out, unless the user has chosen it.
func openOOB(h *hub, o *settings) (carrier, error) {
	addrs := h.port.Addrs
	if len(o.addrs) > 0 {
		addrs = o.addrs
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%w: the interface of %s has no IP address (give it one, or set the option oob-address)",
			driver.ErrUnsupported, h.port.name())
	}
	m := &oob{hub: h, accepting: make(chan struct{}, 2*maxUnauthenticated)}
	h.blob = []byte{oobVersion}
	var failed []error
	for _, a := range addrs {
		if len(m.listeners) == maxOOBAddrs {
			break
		}
		l, err := m.listen(a.Unmap(), o.port)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		m.listeners = append(m.listeners, l)
		b := a.Unmap().WithZone("").AsSlice()
		h.blob = append(append(h.blob, byte(len(b))), b...)
		h.blob = binary.BigEndian.AppendUint16(h.blob, uint16(l.Addr().(*net.TCPAddr).Port))
	}
	if len(m.listeners) == 0 || len(o.addrs) > 0 && len(failed) > 0 {
		return nil, errors.Join(append(failed, m.close())...)
	}
	for _, l := range m.listeners {
		h.tasks.Go(func() { m.serve(l) })
	}
	return m, nil
}

func (m *oob) listen(a netip.Addr, port uint16) (*net.TCPListener, error) {
	if a.IsLinkLocalUnicast() && a.Is6() && a.Zone() == "" {
		a = a.WithZone(m.port.Zone)
	}
	lc := net.ListenConfig{Control: m.control, KeepAliveConfig: m.keepAlive()}
	l, err := lc.Listen(m.ctx, "tcp", netip.AddrPortFrom(a, port).String())
	if err != nil {
		return nil, fmt.Errorf("listen at %v port %d (options oob-address and oob-port): %w", a, port, err)
	}
	return l.(*net.TCPListener), nil
}

// keepAlive configures probes that detect hosts that are gone. The kernel answers for a stopped process.
func (m *oob) keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: max(m.timeout/3, time.Second), Interval: max(m.timeout/6, time.Second), Count: 4}
}

// control bounds how long sent bytes may stay unacknowledged.
func (m *oob) control(_, _ string, c syscall.RawConn) error {
	var err error
	ms := int(min(m.timeout.Milliseconds(), 1<<30))
	if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms) }); e != nil {
		return e
	}
	return err
}

func (m *oob) addresses(blob []byte) (addrs []netip.Addr, err error) {
	list, err := m.targets(blob)
	for _, a := range list {
		addrs = append(addrs, a.Addr())
	}
	return addrs, err
}

// targets returns the addresses in a peer's blob that may be dialed.
func (m *oob) targets(blob []byte) ([]netip.AddrPort, error) {
	list, err := parseOOBBlob(blob)
	if err != nil {
		return nil, err
	}
	var own []netip.AddrPort
	for _, l := range m.listeners {
		own = append(own, l.Addr().(*net.TCPAddr).AddrPort())
	}
	kept := dialable(list, own)
	if len(kept) == 0 {
		return nil, fmt.Errorf("%w: the peer listens at %v, and not at an address and port that this context dials "+
			"(give both the same options oob-address and oob-port)", driver.ErrInvalid, list)
	}
	return kept, nil
}

// dialable selects the addresses of a peer that a context with the addresses own may dial. A hostile peer must not make
// this side connect to services that are no peers. Loopback addresses, and ports below 1024, on which only root can
// listen, are therefore dialed only by contexts that listen on such themselves.
func dialable(list, own []netip.AddrPort) (kept []netip.AddrPort) {
	const low = 1024
	loopback := slices.ContainsFunc(own, func(a netip.AddrPort) bool { return a.Addr().Unmap().IsLoopback() })
	privileged := slices.ContainsFunc(own, func(a netip.AddrPort) bool { return a.Port() < low })
	for _, a := range list {
		if (loopback || !a.Addr().IsLoopback()) && (privileged || a.Port() >= low) {
			kept = append(kept, a)
		}
	}
	return kept
}

// parseOOBBlob parses a peer's blob.
func parseOOBBlob(b []byte) ([]netip.AddrPort, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: empty blob of oob", driver.ErrInvalid)
	}
	if b[0] != oobVersion {
		return nil, fmt.Errorf("%w: blob of oob has version %d, this program has %d: %s",
			driver.ErrVersion, b[0], oobVersion, sameRelease)
	}
	var list []netip.AddrPort
	for rest := b[1:]; len(rest) > 0; {
		n := int(rest[0])
		if n != 4 && n != 16 || len(rest) < 1+n+2 || len(list) == maxOOBAddrs {
			return nil, fmt.Errorf("%w: damaged blob of oob, % x", driver.ErrInvalid, b)
		}
		a, _ := netip.AddrFromSlice(rest[1 : 1+n])
		port := binary.BigEndian.Uint16(rest[1+n:])
		if a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a == broadcast || port == 0 {
			return nil, fmt.Errorf("%w: blob of oob with address %v port %d", driver.ErrInvalid, a, port)
		}
		list = append(list, netip.AddrPortFrom(a, port))
		rest = rest[1+n+2:]
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: blob of oob without addresses", driver.ErrInvalid)
	}
	return list, nil
}

// serve accepts connections.
func (m *oob) serve(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		switch {
		case err == nil:
			select {
			case m.accepting <- struct{}{}:
				m.tasks.Go(func() {
					defer func() { <-m.accepting }()
					m.accept(c)
				})
			case <-m.ctx.Done():
				c.Close()
			}
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors: dialers wait in the queue
			select {
			case <-time.After(acceptPause):
			case <-m.ctx.Done():
			}
		}
	}
}

// dial implements carrier: it dials one address after the other. The first address decides the error, because the
// others may belong to a bridge that exists on every host.
func (m *oob) dial(ctx context.Context, _ uint64, target []byte, accept func(stream) error) error {
	addrs, err := m.targets(target)
	if err != nil {
		return err
	}
	d := net.Dialer{Control: m.control, KeepAliveConfig: m.keepAlive()}
	if deadline, ok := ctx.Deadline(); ok {
		d.Timeout = time.Until(deadline) / time.Duration(len(addrs))
	}
	for k, a := range addrs {
		if a.Addr().IsLinkLocalUnicast() && a.Addr().Is6() {
			a = netip.AddrPortFrom(a.Addr().WithZone(m.port.Zone), a.Port())
		}
		c, e := d.DialContext(ctx, "tcp", a.String())
		if e == nil {
			e = accept(c.(*net.TCPConn))
		}
		switch {
		case e == nil:
			return nil
		case k > 0:
			err = fmt.Errorf("%w; %v", err, e)
		case errors.Is(e, unix.ECONNREFUSED):
			err = fmt.Errorf("%w: the peer's process is gone: %w", driver.ErrBroken, e)
		default:
			err = e
		}
	}
	return err
}

func (m *oob) close() error {
	var errs []error
	for _, l := range m.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

func (m *oob) release() error { return nil }
