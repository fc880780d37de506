package session

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/session/internal/header"
)

// bell is where peers knock whose drivers cannot tell this side that they want a
// connection (they are no driver.Knocker): a datagram, again and again until the
// connection stands, over a Unix socket on one host and UDP between hosts. It carries
// no data and gives no rights: who answers it calls Connect of the driver, which finds out who
// is there.
type bell struct {
	conns  []net.PacketConn
	secret []byte
	rate   bucket
}

// A knock: magic u32, version u16, 0 u16, rank u32 of who knocks, 0 u32, its session's
// incarnation u64, that of the session it knocks at u64, which of its connections to there
// it wants u64 (from 1), then HMAC-SHA-256 of these and knockLabel, keyed by the session's
// secret. The number of a connection stands in its Hello, too: so a knock that comes late,
// for a connection that has been, is known.
const (
	knockMagic   = 0x6e4b7942 // "ByKn"
	knockVersion = 1
	knockBody    = 40
	knockBytes   = knockBody + sha256.Size
	knockLabel   = "bywash session knock"

	maxBells  = 8 // addresses of a session
	firstWait = 20 * time.Millisecond
	longWait  = 250 * time.Millisecond
)

type knock struct {
	rank     uint32
	from, to uint64
	dial     uint64
}

func (k *knock) append(b, secret []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, knockMagic)
	b = le.AppendUint16(b, knockVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, k.rank)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, k.from)
	b = le.AppendUint64(b, k.to)
	b = le.AppendUint64(b, k.dial)
	return append(b, knockMAC(b[len(b)-knockBody:], secret)...)
}

func knockMAC(b, secret []byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(knockLabel))
	m.Write(b)
	return m.Sum(nil)
}

// parse reads a datagram from anybody.
func (k *knock) parse(b, secret []byte) error {
	le := binary.LittleEndian
	switch {
	case len(b) != knockBytes || le.Uint32(b) != knockMagic || le.Uint16(b[4:]) != knockVersion || le.Uint16(b[6:]) != 0 || le.Uint32(b[12:]) != 0:
		return fmt.Errorf("%w: no knock", header.ErrMalformed)
	case !hmac.Equal(b[knockBody:], knockMAC(b[:knockBody], secret)):
		return driver.ErrAuth
	}
	k.rank, k.from, k.to, k.dial = le.Uint32(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:])
	return nil
}

// openBell makes the sockets. The addresses go into the card. Where there is no network
// only processes of this host are heard.
func openBell(secret []byte, incarnation uint64) (b *bell, addresses []string) {
	b = &bell{secret: secret}
	name := bellName(incarnation)
	// Anybody in this network namespace can send there: no descriptors are taken (Linux 6.16).
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
		if !ok || !n.IP.IsGlobalUnicast() || len(addresses) == maxBells {
			continue
		}
		addresses = append(addresses, "udp:"+net.JoinHostPort(n.IP.String(), fmt.Sprint(c.LocalAddr().(*net.UDPAddr).Port)))
	}
	return b, addresses
}

// bellName is the name of a session's socket in the abstract namespace.
func bellName(incarnation uint64) string { return fmt.Sprintf("@bywash-%016x", incarnation) }

// unicastOnly has the kernel refuse to send to broadcast addresses, which Go allows by default: that an address is one can
// only be told where its network is attached.
func unicastOnly(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 0) })
}

// A session sends that many knocks at once, and a second, at most: enough for a job of thousand ranks to connect all of
// them, and no weapon. One that is not sent is lost like any other: it comes again.
const (
	knockBurst  = 8192
	knockRate   = 4096
	knockRefill = time.Second / knockRate
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
		b.left, b.last = knockBurst, now
	}
	if n := int(min(now.Sub(b.last)/knockRefill, knockBurst)); n > 0 {
		b.left, b.last = min(b.left+n, knockBurst), now
	}
	if b.left == 0 {
		return false
	}
	b.left--
	return true
}

// quit ends hearing; close follows once nobody hears any more.
func (b *bell) quit() {
	if b != nil {
		for _, c := range b.conns {
			_ = c.SetReadDeadline(time.Now())
		}
	}
}

func (b *bell) close() {
	if b != nil {
		for _, c := range b.conns {
			rights.Close(c)
		}
	}
}

// ring sends one knock to all addresses. What does not arrive is sent again.
func (b *bell) ring(msg []byte, card *card) {
	for _, a := range card.bells {
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

// knockAt knocks until ctx ends.
func (s *Session) knockAt(ctx context.Context, theirs *card, dial uint64) {
	k := knock{rank: uint32(s.rank), from: s.card.incarnation, to: theirs.incarnation, dial: dial}
	msg := k.append(nil, s.bell.secret)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := firstWait; ; pause = min(2*pause, longWait) {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		s.bell.ring(msg, theirs)
		timer.Reset(pause)
	}
}

// hear answers knocks until the bell quits.
func (s *Session) hear(c net.PacketConn) {
	b := make([]byte, knockBytes+1)
	for {
		n, err := hearOne(c, b)
		if err != nil {
			return
		}
		s.knocked(b[:n])
	}
}

// hearOne reads one datagram. Descriptors that come along, which only Unix sockets have, are closed without waiting for
// what they are: a socket with SO_LINGER would make the reader deaf.
func hearOne(c net.PacketConn, b []byte) (n int, err error) {
	if u, ok := c.(*net.UnixConn); ok {
		return rights.Read(u, b)
	}
	n, _, err = c.ReadFrom(b)
	return n, err
}

// knocked connects to who knocks, if it is a rank and still wants that.
func (s *Session) knocked(b []byte) {
	var k knock
	if k.parse(b, s.bell.secret) == nil && k.to == s.card.incarnation && int(k.rank) < s.size {
		s.answerRank(int(k.rank), func(g *Gate) bool { return k.dial > g.dialed }, func(c *card) bool { return c.incarnation == k.from })
	}
}
