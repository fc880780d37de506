package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/session/internal/header"
)

// requestSockets receive and send connect requests. A session has them if one of its drivers cannot send the peer a
// connect request itself (it is not a driver.ConnectRequestReceiver). A connect request is a datagram, over a Unix
// socket on one host and UDP between hosts, which is repeated until the gate is connected. It carries no data and
// gives no rights: the receiver calls Connect of the driver, which checks the peer's identity.
type requestSockets struct {
	conns []net.PacketConn
	rate  bucket
}

// A connect request: magic u32, version u16, 0 u16, rank of the sender u32, 0 u32, incarnation of the sender's session
// u64, incarnation of the receiver's session u64, number of the wanted connection among the sender's u64, then
// the MAC of these by the session's secret, with label connectLabel (package internal/handshake). A connection's Hello
// has the same number, so that a late request for an earlier connection is recognised.
const (
	connectMagic   = 0x6e4b7942 // "ByKn"
	connectVersion = 2
	connectBody    = 40
	connectBytes   = connectBody + handshake.MACSize
	connectLabel   = "bywash session connect request"

	maxAddresses = 8 // addresses of a session
	firstWait    = 20 * time.Millisecond
	longWait     = 250 * time.Millisecond
)

type connectRequest struct {
	rank     uint32
	from, to uint64
	dial     uint64
}

func (k *connectRequest) append(b []byte, key *handshake.Key) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, connectMagic)
	b = le.AppendUint16(b, connectVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, k.rank)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, k.from)
	b = le.AppendUint64(b, k.to)
	b = le.AppendUint64(b, k.dial)
	mac := key.MAC(connectLabel, b[len(b)-connectBody:])
	return append(b, mac[:]...)
}

// parse reads a datagram from an unauthenticated sender.
func (k *connectRequest) parse(b []byte, key *handshake.Key) error {
	le := binary.LittleEndian
	switch {
	case len(b) != connectBytes || le.Uint32(b) != connectMagic || le.Uint16(b[4:]) != connectVersion || le.Uint16(b[6:]) != 0 || le.Uint32(b[12:]) != 0:
		return fmt.Errorf("%w: no connect request", header.ErrMalformed)
	case !key.Check(b[connectBody:], connectLabel, b[:connectBody]):
		return driver.ErrAuth
	}
	k.rank, k.from, k.to, k.dial = le.Uint32(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:])
	return nil
}

// listenForRequests opens the sockets and returns their addresses, which go into the card. Without a network only
// processes of this host can send requests.
func listenForRequests(incarnation uint64) (b *requestSockets, addresses []string) {
	b = &requestSockets{}
	name := socketName(incarnation)
	// Any process in this network namespace can send there: no descriptors are taken (Linux 6.16).
	l := net.ListenConfig{Control: rights.Refuse}
	if c, err := l.ListenPacket(context.Background(), "unixgram", name); err == nil {
		b.conns, addresses = append(b.conns, c), append(addresses, "unix:"+name)
	}
	lc := net.ListenConfig{Control: unicastOnly}
	c, err := lc.ListenPacket(context.Background(), "udp", ":0")
	if err != nil {
		return b, addresses
	}
	b.conns = append(b.conns, c)
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() || len(addresses) == maxAddresses {
			continue
		}
		addresses = append(addresses, "udp:"+net.JoinHostPort(n.IP.String(), fmt.Sprint(c.LocalAddr().(*net.UDPAddr).Port)))
	}
	return b, addresses
}

// socketName is the name of a session's socket in the abstract namespace.
func socketName(incarnation uint64) string { return fmt.Sprintf("@bywash-%016x", incarnation) }

// Connect requests that a session sends at most at once, and in a second: enough for a job of a thousand ranks to
// connect all of them, too few for a flood. A request that is not sent is lost like any other, and repeated.
const (
	requestBurst  = 8192
	requestRate   = 4096
	requestRefill = time.Second / requestRate
)

// bucket limits a rate.
type bucket struct {
	mu   sync.Mutex
	left int
	last time.Time // when left was what it is
}

// take reports whether one more may be sent.
func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last.IsZero() {
		b.left, b.last = requestBurst, now
	}
	if n := int(min(now.Sub(b.last)/requestRefill, requestBurst)); n > 0 {
		b.left, b.last = min(b.left+n, requestBurst), now
	}
	if b.left == 0 {
		return false
	}
	b.left--
	return true
}

// quit ends receiveRequests; close may follow once no goroutine receives any more.
func (b *requestSockets) quit() {
	if b != nil {
		for _, c := range b.conns {
			_ = c.SetReadDeadline(time.Now())
		}
	}
}

func (b *requestSockets) close() {
	if b != nil {
		for _, c := range b.conns {
			rights.Close(c)
		}
	}
}

// send sends one connect request to all addresses of a card. Lost datagrams are sent again by requestConnection.
func (b *requestSockets) send(msg []byte, card *card) {
	for _, a := range card.addresses {
		if !b.rate.take(time.Now()) {
			return
		}
		switch {
		case len(a) > 5 && a[:5] == "unix:":
			if c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: a[5:], Net: "unixgram"}); err == nil {
				_, _ = c.Write(msg)
				_ = c.Close()
			}
		case len(a) > 4 && a[:4] == "udp:":
			to, err := netip.ParseAddrPort(a[4:]) // no name, which would be looked up
			if err == nil && len(b.conns) > 0 {
				if u, ok := b.conns[len(b.conns)-1].(*net.UDPConn); ok {
					_, _ = u.WriteToUDPAddrPort(msg, to)
				}
			}
		}
	}
}

// requestConnection sends connect requests to a peer until ctx ends.
func (s *Session) requestConnection(ctx context.Context, theirs *card, dial uint64) {
	k := connectRequest{rank: uint32(s.rank), from: s.card.incarnation, to: theirs.incarnation, dial: dial}
	msg := k.append(nil, s.key)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := firstWait; ; pause = min(2*pause, longWait) {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		s.requestSockets.send(msg, theirs)
		timer.Reset(pause)
	}
}

// receiveRequests answers connect requests until quit.
func (s *Session) receiveRequests(c net.PacketConn) {
	b := make([]byte, connectBytes+1)
	for {
		n, err := receiveOne(c, b)
		if err != nil {
			return
		}
		s.requested(b[:n])
	}
}

// receiveOne reads one datagram. Descriptors that come along, which only Unix sockets have, are closed without waiting
// for what they are: a socket with SO_LINGER would make the reader deaf.
func receiveOne(c net.PacketConn, b []byte) (n int, err error) {
	if u, ok := c.(*net.UnixConn); ok {
		return rights.Read(u, b)
	}
	n, _, err = c.ReadFrom(b)
	return n, err
}

// requested handles a datagram: it connects to the sender if that is a known peer and still wants a connection.
func (s *Session) requested(b []byte) {
	var k connectRequest
	if k.parse(b, s.key) == nil && k.to == s.card.incarnation {
		s.answerPeer(int(k.rank), func(g *Gate) bool { return k.dial > g.dialing.byPeer }, func(c *card) bool { return c.incarnation == k.from })
	}
}
