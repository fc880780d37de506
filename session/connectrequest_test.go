//go:build linux && !(386 || arm || mips || mipsle)

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
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/internal/rights/rightstest"
	"github.com/bywash/bywash/session/internal/header"
)

var testKey, otherKey = aKey("a secret of the test"), aKey("another secret, long enough")

func aKey(secret string) *handshake.Key {
	k, err := handshake.NewKey([]byte(secret))
	if err != nil {
		panic(err)
	}
	return k
}

// A change of these bytes changes the wire format: increase connectVersion and update docs/wire.md.
func TestConnectRequestsStayAsTheyAre(t *testing.T) {
	k := connectRequest{rank: 3, from: 5, to: 7, dial: 2}
	b := k.append(nil, testKey)
	const want = "42794b6e" + "02000000" + "0300000000000000" + "0500000000000000" + "0700000000000000" + "0200000000000000"
	if got := hex.EncodeToString(b[:connectBody]); got != want {
		t.Errorf("a connect request is %s, want %s", got, want)
	}
	var again connectRequest
	if err := again.parse(b, testKey); err != nil || again != k {
		t.Errorf("%+v was parsed as %+v, %v", k, again, err)
	}
}

// A connect request that was made with another secret, changed or cut is dropped.
func TestConnectRequestWithoutSecretIsIgnored(t *testing.T) {
	b := (&connectRequest{rank: 3, from: 5, to: 7, dial: 2}).append(nil, testKey)
	var k connectRequest
	for name, other := range map[string]*handshake.Key{"another": otherKey, "no": handshake.NoSecret()} {
		if err := k.parse(b, other); !errors.Is(err, driver.ErrAuth) {
			t.Errorf("with %s secret: %v", name, err)
		}
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1
		if err := k.parse(bad, testKey); err == nil {
			t.Errorf("with byte %d changed it is taken", i)
		}
		if err := k.parse(b[:i], testKey); !errors.Is(err, header.ErrMalformed) {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
	}
}

// A connect request that is accepted is encoded to the same bytes.
func FuzzConnectRequest(f *testing.F) {
	f.Add((&connectRequest{rank: 3, from: 5, to: 7, dial: 2}).append(nil, testKey))
	f.Add([]byte("BnKy"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var k connectRequest
		if k.parse(b, testKey) == nil && !bytes.Equal(k.append(nil, testKey), b) {
			t.Fatalf("%x is taken as %+v", b, k)
		}
	})
}

// A session sends no more connect requests than its rate allows, whatever the cards contain. The rate is 4096 a
// second, with 8192 at once.
func TestConnectRequestsAreLimited(t *testing.T) {
	var b bucket
	now := time.Now()
	sent := 0
	for range 3 * requestBurst {
		if b.take(now) {
			sent++
		}
	}
	if sent != requestBurst {
		t.Errorf("%d connect requests are sent at once, want %d", sent, requestBurst)
	}
	sent = 0
	for i := range 10 * requestRate { // a second
		if b.take(now.Add(time.Duration(i) * time.Second / (10 * requestRate))) {
			sent++
		}
	}
	if sent < requestRate/2 || sent > requestRate+1 {
		t.Errorf("%d connect requests are sent in a second, want %d", sent, requestRate)
	}
}

// Connect requests go to single hosts only, never to a broadcast address.
func TestConnectRequestsAreNotBroadcast(t *testing.T) {
	b, _ := listenForRequests(13)
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
func TestConnectRequestsGoByUDP(t *testing.T) {
	b, addresses := listenForRequests(11)
	defer b.close()
	only := &card{}
	for _, a := range addresses {
		if a[:4] == "udp:" {
			only.addresses = append(only.addresses, a)
		}
	}
	if len(only.addresses) == 0 {
		t.Skip("this machine has no address besides the loopback's")
	}
	k := connectRequest{rank: 1, from: 2, to: 3, dial: 4}
	b.send(k.append(nil, testKey), only)
	buf := make([]byte, 100)
	n, _, err := b.conns[len(b.conns)-1].ReadFrom(buf)
	var got connectRequest
	if err == nil {
		err = got.parse(buf[:n], testKey)
	}
	if err != nil || got != k {
		t.Errorf("%+v came as %+v, %v", k, got, err)
	}
}

// A datagram of an unauthenticated process that carries a lingering socket neither stops a session from receiving
// connect requests nor delays its Close.
func TestConnectRequestWithADescriptorDoesNotBlock(t *testing.T) {
	rightstest.EachKernel(t, func(t *testing.T) {
		s := &Session{size: 1, card: &card{incarnation: 11}}
		var addresses []string
		s.requestSockets, addresses = listenForRequests(s.card.incarnation)
		if len(addresses) == 0 || addresses[0][:5] != "unix:" {
			t.Fatalf("no Unix socket among %q", addresses)
		}
		to, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: addresses[0][5:], Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		took := 0
		for range 4 { // not read yet: the last references are in the queue
			fd := rightstest.Lingering(t)
			if err := rights.Send(to, []byte("request"), false, fd); err == nil {
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
			time.AfterFunc(50*time.Millisecond, s.requestSockets.quit)
			s.receiveRequests(s.requestSockets.conns[0])
			s.requestSockets.close()
		}()
		select {
		case <-over:
		case <-time.After(10 * time.Second):
			t.Fatal("a connect request with descriptors blocks")
		}
	})
}
