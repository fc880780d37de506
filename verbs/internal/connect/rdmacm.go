//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/verbs/ibv"
)

// rdmacm connects through the kernel's RDMA connection manager, so that the hosts need no TCP between them. The manager
// finds the path and makes a small queue pair for each link, a pipe for its bytes. It does not know the queue pairs of
// endpoints.
type rdmacm struct {
	*hub
	verbs    *ibv.Context
	pd       *ibv.PD
	events   *ibv.CMChannel
	listener *ibv.CMID
	addr     netip.Addr
	loop     sync.WaitGroup  // of serve
	live     context.Context // of serve
	stop     context.CancelFunc
	accepted func(stream) // handles a dialer; tests replace it

	conns   sync.Mutex // guards what follows
	of      map[*ibv.CMID]*pipe
	pending int
	closing bool
}

// rdmacm's blob is a version and an address (its length of 4 or 16, itself, a port in big-endian).
const rdmacmVersion = 2

// openRDMACM listens at the first address of the port's interface, or of those that the user has chosen, that works.
func openRDMACM(h *hub, o *settings) (carrier, error) {
	if err := ibv.Available(); err != nil {
		return nil, err
	}
	verbs, ok := h.port.Verbs.(*ibv.Context)
	if !ok || verbs == nil {
		return nil, fmt.Errorf("%w: rdmacm: device %s is not open", driver.ErrUnsupported, h.port.name())
	}
	addrs := h.port.Addrs
	if len(o.addrs) > 0 {
		addrs = o.addrs
	}
	m := &rdmacm{hub: h, verbs: verbs, of: make(map[*ibv.CMID]*pipe), accepted: h.accept}
	var err error
	if m.events, err = ibv.NewCMChannel(); err != nil {
		return nil, fmt.Errorf("%w: %w (load rdma_ucm)", driver.ErrUnsupported, err)
	}
	if m.pd, err = verbs.AllocPD(); err != nil {
		return nil, errors.Join(err, m.release())
	}
	why := errors.New("its interface has no IP address (give it one, or set the option rdmacm-address)")
	for _, a := range addrs {
		if why = m.listen(a.Unmap(), o.port); why == nil {
			m.live, m.stop = context.WithCancel(context.Background())
			m.loop.Go(m.serve)
			return m, nil
		}
	}
	err = fmt.Errorf("%w: no address of %s can be listened at: %w", driver.ErrUnsupported, h.port.name(), why)
	return nil, errors.Join(err, m.release())
}

// listen makes the listener if the address belongs to the port.
func (m *rdmacm) listen(a netip.Addr, port uint16) error {
	id, err := m.events.NewID()
	if err != nil {
		return err
	}
	var info ibv.CMInfo
	if err = id.Bind(m.zoned(netip.AddrPortFrom(a, port))); err == nil {
		info, err = id.Info()
	}
	if err == nil && (info.Device != m.port.Device || info.Port != int(m.port.Num)) {
		err = fmt.Errorf("%v is not an address of the port", a)
	}
	if err == nil {
		err = id.Listen(maxUnauthenticated)
	}
	if err != nil {
		return errors.Join(err, id.Close())
	}
	b := a.WithZone("").AsSlice()
	m.hub.blob = append([]byte{rdmacmVersion, byte(len(b))}, b...)
	m.hub.blob = binary.BigEndian.AppendUint16(m.hub.blob, info.Local.Port())
	m.listener, m.addr = id, a
	return nil
}

// zoned adds the port's zone to link-local addresses.
func (m *rdmacm) zoned(a netip.AddrPort) netip.AddrPort {
	if a.Addr().Is6() && a.Addr().IsLinkLocalUnicast() && a.Addr().Zone() == "" {
		return netip.AddrPortFrom(a.Addr().WithZone(m.port.Zone), a.Port())
	}
	return a
}

func (m *rdmacm) addresses(blob []byte) ([]netip.Addr, error) {
	at, err := parseRDMABlob(blob)
	return []netip.Addr{at.Addr()}, err
}

// parseRDMABlob parses a peer's blob.
func parseRDMABlob(b []byte) (at netip.AddrPort, err error) {
	if len(b) == 0 {
		return at, fmt.Errorf("%w: empty blob of rdmacm", driver.ErrInvalid)
	}
	if b[0] != rdmacmVersion {
		return at, fmt.Errorf("%w: blob of rdmacm has version %d, this program has %d: %s",
			driver.ErrVersion, b[0], rdmacmVersion, sameRelease)
	}
	if len(b) < 2 || b[1] != 4 && b[1] != 16 || len(b) != 2+int(b[1])+2 {
		return at, fmt.Errorf("%w: damaged blob of rdmacm, % x", driver.ErrInvalid, b)
	}
	n := 2 + int(b[1])
	a, _ := netip.AddrFromSlice(b[2:n])
	at = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n:]))
	if a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a == broadcast || at.Port() == 0 {
		return at, fmt.Errorf("%w: blob of rdmacm with address %v", driver.ErrInvalid, at)
	}
	return at, nil
}

// ticket is the private data of the connection manager's request. It uses all 56 bytes that are available: magic,
// version, 0, the incarnations of the claim, and a MAC. It shows that the dialer has the secret before a queue pair is
// made for it. As a ticket can be replayed, the link nevertheless begins with the handshake. A reject has the same
// head, with a refusal instead of the 0.
type ticket struct {
	from, to uint64 // incarnations
	mac      [handshake.MACSize]byte
}

const (
	ticketMagic = 0x42795263 // "ByRc"
	ticketHead  = 8
	ticketBytes = ticketHead + 8 + 8 + handshake.MACSize
	ticketLabel = "bywash connect rdmacm ticket"
)

func appendHead(b []byte, code refusal) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, ticketMagic)
	b = le.AppendUint16(b, protocolVersion)
	return le.AppendUint16(b, uint16(code))
}

func parseHead(b []byte) (refusal, error) {
	le := binary.LittleEndian
	if len(b) < ticketHead || le.Uint32(b) != ticketMagic {
		return 0, fmt.Errorf("%w: no request of this protocol", errMalformed)
	}
	if v := le.Uint16(b[4:]); v != protocolVersion {
		return 0, fmt.Errorf("%w: connection protocol %d, this program has %d: %s", driver.ErrVersion, v, protocolVersion,
			sameRelease)
	}
	return refusal(le.Uint16(b[6:])), nil
}

func (t *ticket) append(b []byte) []byte {
	b = appendHead(b, 0)
	b = binary.LittleEndian.AppendUint64(b, t.from)
	b = binary.LittleEndian.AppendUint64(b, t.to)
	return append(b, t.mac[:]...)
}

// parse decodes private data: ErrVersion for another version, else errMalformed.
func (t *ticket) parse(b []byte) error {
	code, err := parseHead(b)
	if err != nil {
		return err
	}
	if len(b) < ticketBytes || code != 0 {
		return fmt.Errorf("%w: request", errMalformed)
	}
	t.from, t.to = binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	copy(t.mac[:], b[24:])
	return nil
}

func (t *ticket) signed() []byte { return t.append(nil)[:ticketBytes-handshake.MACSize] }

func (m *rdmacm) dial(ctx context.Context, peer uint64, target []byte, accept func(stream) error) error {
	at, err := parseRDMABlob(target)
	if err != nil {
		return err
	}
	id, err := m.events.NewID()
	if err != nil {
		return err
	}
	c := m.adopt(id)
	if c == nil {
		return errors.Join(driver.ErrClosed, id.Close())
	}
	t := &ticket{from: m.incarnation, to: peer}
	t.mac = m.key.MAC(ticketLabel, t.signed())
	if err := m.reach(ctx, c, at, t); err != nil {
		c.Close()
		return fmt.Errorf("%v: %w", at, err)
	}
	return accept(c)
}

// stepTime returns how long one step of the connection manager may take.
func (m *rdmacm) stepTime() time.Duration { return max(m.timeout/3, 100*time.Millisecond) }

// reach makes the dialer's connection.
func (m *rdmacm) reach(ctx context.Context, c *pipe, at netip.AddrPort, t *ticket) error {
	if err := c.id.ResolveAddr(m.zoned(netip.AddrPortFrom(m.addr, 0)), m.zoned(at), m.stepTime()); err != nil {
		return err
	}
	if _, err := c.await(ctx, ibv.CMAddrResolved); err != nil {
		return err
	}
	if class := m.port.Quality.TrafficClass; class != 0 { // 0 would replace the administrator's default
		if err := c.id.SetTOS(class); err != nil {
			return err
		}
	}
	if err := c.id.ResolveRoute(m.stepTime()); err != nil {
		return err
	}
	if _, err := c.await(ctx, ibv.CMRouteResolved); err != nil {
		return err
	}
	if err := c.equip(); err != nil {
		return err
	}
	if err := c.id.Connect(c.qp, c.param(t.append(nil))); err != nil {
		return err
	}
	ev, err := c.await(ctx, ibv.CMConnectResponse)
	if err != nil {
		return rejection(ev, err)
	}
	if err := c.run(); err != nil {
		return err
	}
	return c.id.Establish()
}

// Reasons of a reject, from the InfiniBand specification.
const (
	reasonNoListener = 8  // invalid service id: nothing listens
	reasonProgram    = 28 // by the peer's program, with its private data
)

// rejection converts a reject to the error that the peer meant.
func rejection(ev *ibv.CMEvent, err error) error {
	if ev == nil || ev.Type != ibv.CMRejected {
		return err
	}
	switch ev.Status {
	case reasonNoListener:
		return fmt.Errorf("%w: the peer's process is gone: %w", driver.ErrBroken, err)
	case reasonProgram:
		code, bad := parseHead(ev.Param.Data)
		switch {
		case errors.Is(bad, driver.ErrVersion):
			return bad
		case bad == nil && code != 0:
			return code.err()
		}
	}
	return err
}

// serve passes events to their connections until the channel is closed.
func (m *rdmacm) serve() {
	for {
		ev, err := m.events.Event(m.live)
		if err != nil {
			m.conns.Lock()
			closing := m.closing
			m.conns.Unlock()
			if closing {
				return
			}
			time.Sleep(acceptPause)
			continue
		}
		if ev.ID == nil {
			continue
		}
		m.conns.Lock()
		c := m.of[ev.ID]
		m.conns.Unlock()
		switch {
		case c != nil:
			c.event(ev)
		case ev.Type == ibv.CMConnectRequest:
			m.request(ev)
		}
	}
}

// request accepts a dialer for examination, unless there are too many.
func (m *rdmacm) request(ev *ibv.CMEvent) {
	m.conns.Lock()
	full := m.closing || m.pending >= maxUnauthenticated
	if !full {
		m.pending++
		c := m.enter(ev.ID)
		m.tasks.Go(func() {
			m.answer(c, ev)
			m.conns.Lock()
			m.pending--
			m.conns.Unlock()
		})
	}
	m.conns.Unlock()
	if full {
		m.refuse(ev.ID, refuseBusy)
		_ = ev.ID.Close()
	}
}

func (m *rdmacm) refuse(id *ibv.CMID, code refusal) {
	m.count(&m.stats.Refused)
	_ = id.Reject(appendHead(nil, code))
}

// answer checks a dialer's ticket and accepts or refuses its connection.
func (m *rdmacm) answer(c *pipe, ev *ibv.CMEvent) {
	var t ticket
	err := t.parse(ev.Param.Data)
	switch {
	case errors.Is(err, driver.ErrVersion):
		m.refuse(c.id, refuseVersion)
	case err != nil:
		m.count(&m.stats.BadMessages)
		_ = c.id.Reject(nil)
	case t.to != m.incarnation:
		err = driver.ErrBroken
		m.refuse(c.id, refuseStale)
	case !m.key.Check(t.mac[:], ticketLabel, t.signed()):
		err = driver.ErrAuth
		m.refuse(c.id, refuseSecret)
	default:
		if err = c.equip(); err == nil {
			err = c.run()
		}
		if err != nil {
			_ = c.id.Reject(nil)
			break
		}
		ctx, cancel := context.WithTimeout(m.ctx, proofTime)
		defer cancel()
		if err = c.id.Accept(c.qp, c.param(nil)); err == nil {
			_, err = c.await(ctx, ibv.CMEstablished)
		}
	}
	if err != nil {
		c.Close()
		return
	}
	m.accepted(c)
}

// adopt makes the connection of an id. It returns nil when the module is closing.
func (m *rdmacm) adopt(id *ibv.CMID) *pipe {
	m.conns.Lock()
	defer m.conns.Unlock()
	if m.closing {
		return nil
	}
	return m.enter(id)
}

// enter makes a connection and registers it for events. The caller holds conns.
func (m *rdmacm) enter(id *ibv.CMID) *pipe {
	c := newPipe(m, id)
	m.of[id] = c
	return c
}

func (m *rdmacm) forget(id *ibv.CMID) {
	m.conns.Lock()
	defer m.conns.Unlock()
	delete(m.of, id)
}

func (m *rdmacm) close() error {
	m.conns.Lock()
	m.closing = true
	m.conns.Unlock()
	return m.listener.Close()
}

// release frees the resources that all connections share. No connection is left.
func (m *rdmacm) release() error {
	var errs []error
	if m.pd != nil {
		errs = append(errs, m.pd.Close())
	}
	errs = append(errs, m.events.Close())
	if m.stop != nil {
		m.stop() // an id that could not be destroyed keeps the channel open
	}
	m.loop.Wait()
	return errors.Join(errs...)
}
