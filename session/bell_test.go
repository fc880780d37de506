package session

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/internal/rights/rightstest"
	"github.com/bywash/bywash/session/internal/header"
)

var knockSecret = []byte("of the test")

// A change of this is one of the wire format: knockVersion grows, and docs/wire.md with it.
func TestKnocksStayAsTheyAre(t *testing.T) {
	k := knock{rank: 3, from: 5, to: 7, dial: 2}
	b := k.append(nil, knockSecret)
	const want = "42794b6e" + "01000000" + "0300000000000000" + "0500000000000000" + "0700000000000000" + "0200000000000000"
	if got := hex.EncodeToString(b[:knockBody]); got != want {
		t.Errorf("a knock is %s, want %s", got, want)
	}
	var again knock
	if err := again.parse(b, knockSecret); err != nil || again != k {
		t.Errorf("%+v was parsed as %+v, %v", k, again, err)
	}
}

func TestOnlyKnocksWithTheSecretAreHeard(t *testing.T) {
	b := (&knock{rank: 3, from: 5, to: 7, dial: 2}).append(nil, knockSecret)
	var k knock
	if err := k.parse(b, []byte("another")); !errors.Is(err, driver.ErrAuth) {
		t.Errorf("with another secret: %v", err)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1
		if err := k.parse(bad, knockSecret); err == nil {
			t.Errorf("with byte %d changed it is taken", i)
		}
		if err := k.parse(b[:i], knockSecret); !errors.Is(err, header.ErrMalformed) {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
	}
}

func FuzzKnock(f *testing.F) {
	f.Add((&knock{rank: 3, from: 5, to: 7, dial: 2}).append(nil, knockSecret))
	f.Add([]byte("BnKy"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var k knock
		if k.parse(b, knockSecret) == nil && !bytes.Equal(k.append(nil, knockSecret), b) {
			t.Fatalf("%x is taken as %+v", b, k)
		}
	})
}

// A session sends no more knocks than its rate allows, whatever cards say.
func TestKnocksAreLimited(t *testing.T) {
	var b bucket
	now := time.Now()
	sent := 0
	for range 3 * knockBurst {
		if b.take(now) {
			sent++
		}
	}
	if sent != knockBurst {
		t.Errorf("%d knocks are sent at once, want %d", sent, knockBurst)
	}
	sent = 0
	for i := range 10 * knockRate { // a second
		if b.take(now.Add(time.Duration(i) * time.Second / (10 * knockRate))) {
			sent++
		}
	}
	if sent < knockRate/2 || sent > knockRate+1 {
		t.Errorf("%d knocks are sent in a second, want %d", sent, knockRate)
	}
}

// The bell's socket reaches single hosts only.
func TestKnocksAreNotBroadcast(t *testing.T) {
	b, _ := openBell(knockSecret, 13)
	defer b.close()
	u, ok := b.conns[len(b.conns)-1].(*net.UDPConn)
	if !ok {
		t.Skip("this machine has no UDP")
	}
	to := netip.MustParseAddrPort("127.255.255.255:5000")
	if _, err := u.WriteToUDPAddrPort([]byte("x"), to); !errors.Is(err, syscall.EACCES) {
		t.Errorf("sent to a broadcast address: %v, want %v", err, syscall.EACCES)
	}
}

// Processes of other hosts are reached by UDP.
func TestKnocksGoByUDP(t *testing.T) {
	b, addresses := openBell(knockSecret, 11)
	defer b.close()
	only := &card{}
	for _, a := range addresses {
		if a[:4] == "udp:" {
			only.bells = append(only.bells, a)
		}
	}
	if len(only.bells) == 0 {
		t.Skip("this machine has no address besides the loopback's")
	}
	k := knock{rank: 1, from: 2, to: 3, dial: 4}
	b.ring(k.append(nil, knockSecret), only)
	buf := make([]byte, 100)
	n, _, err := b.conns[len(b.conns)-1].ReadFrom(buf)
	var got knock
	if err == nil {
		err = got.parse(buf[:n], knockSecret)
	}
	if err != nil || got != k {
		t.Errorf("%+v came as %+v, %v", k, got, err)
	}
}

// A stranger's datagram with a socket that lingers makes nobody deaf, and does not hold up the end.
func TestKnockWithADescriptorDoesNotBlock(t *testing.T) {
	rightstest.EachKernel(t, func(t *testing.T) {
		s := &Session{size: 1, card: &card{incarnation: 11}}
		var addresses []string
		s.bell, addresses = openBell(knockSecret, s.card.incarnation)
		if len(addresses) == 0 || addresses[0][:5] != "unix:" {
			t.Fatalf("no Unix socket among %q", addresses)
		}
		to, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: addresses[0][5:], Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		took := 0
		for range 4 { // nobody reads yet: the last references lie in the queue
			fd := rightstest.Lingering(t)
			if err := rights.Send(to, []byte("knock"), false, fd); err == nil {
				took++
				unix.Close(fd)
			} else {
				rights.Discard(rights.Nobody, fd)
			}
		}
		if rights.Supported() != (took == 0) {
			t.Errorf("the kernel took %d descriptors for us", took)
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			time.AfterFunc(50*time.Millisecond, s.bell.quit)
			s.hear(s.bell.conns[0])
			s.bell.close()
		}()
		select {
		case <-over:
		case <-time.After(10 * time.Second):
			t.Fatal("a knock with descriptors blocks")
		}
	})
}
