//go:build linux && !(386 || arm || mips || mipsle)

package rdma

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
	"github.com/bywash/bywash/internal/lab/machines"
)

// limit is the time for any step. It is long: the link may be lossy, and the
// processors are emulated and shared.
const limit = 60 * time.Second

// A wire is a TCP connection between the two sides of a case, for what drivers
// leave to the layer above: urls, rdv data, keys, and meeting each other.
type wire struct {
	c   net.Conn
	enc *json.Encoder
	dec *json.Decoder
	mu  sync.Mutex // of enc
}

const wirePort = "7071"

// meet makes the wire: machine 1 dials. Both sides call it.
func meet(t *testing.T) *wire {
	t.Helper()
	connect := accept
	if machines.Rank() == 1 {
		connect = dial
	}
	c, err := connect()
	if err != nil {
		t.Fatalf("meet the other machine: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return &wire{c: c, enc: json.NewEncoder(c), dec: json.NewDecoder(c)}
}

func accept() (net.Conn, error) {
	l, err := net.Listen("tcp", machines.Here(wirePort))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(limit))
	return l.Accept()
}

func dial() (c net.Conn, err error) {
	for start := time.Now(); time.Since(start) < limit; time.Sleep(100 * time.Millisecond) {
		if c, err = net.DialTimeout("tcp", machines.There(wirePort), 5*time.Second); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func (w *wire) tell(v any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.enc.Encode(v)
}

func (w *wire) hear(v any) error {
	_ = w.c.SetReadDeadline(time.Now().Add(limit))
	return w.dec.Decode(v)
}

// sync waits until the other side has come as far.
func (w *wire) sync(t *testing.T, where string) {
	t.Helper()
	noErr(t, "tell "+where, w.tell(where))
	var there string
	noErr(t, "wait for the other machine at "+where, w.hear(&there))
	if there != where {
		t.Fatalf("the other machine is at %q, this one at %q", there, where)
	}
}

// swap gives the other side mine and returns its.
func swap[T any](t *testing.T, w *wire, mine T) (theirs T) {
	t.Helper()
	noErr(t, "tell", w.tell(mine))
	noErr(t, "hear", w.hear(&theirs))
	return theirs
}

func query(t *testing.T, h driver.Hints) driver.NIC {
	t.Helper()
	d, err := driver.Lookup("verbs")
	noErr(t, "look up driver", err)
	nic, err := d.Query(h)
	noErr(t, "query", err)
	return nic
}

func open(t *testing.T, h driver.Hints) driver.Context {
	t.Helper()
	c, err := query(t, h).Open(driver.Attributes{Secret: []byte("the secret of this test")})
	noErr(t, "open", err)
	t.Cleanup(func() { c.Close() })
	return c
}

// join connects the contexts of both sides.
func join(t *testing.T, w *wire, c driver.Context) driver.Instance {
	t.Helper()
	i, err := c.Connect(swap(t, w, c.URL()))
	noErr(t, "connect", err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	noErr(t, "connect", i.ConnectWait(ctx))
	return i
}

// noErr ends the test on an error, and says so when a driver's error does not
// tell enough.
func noErr(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		unclear(t, err)
		t.Fatalf("%s: %v", what, err)
	}
}

// unclear finds a driver's error that does not name device and peer.
func unclear(t *testing.T, err error) {
	t.Helper()
	var d *driver.Error
	if !errors.As(err, &d) {
		return
	}
	peer := d.Peer != "" || d.Op == "query" || d.Op == "open"
	if d.Driver != "verbs" || d.Op == "" || !peer || !strings.Contains(d.Error(), "rxe0") {
		t.Errorf("error %q does not name driver, operation, device and peer", err)
	}
}

// until polls until f says that it is done, or fails, or the limit is reached.
func until(what string, f func() (done bool, err error)) error {
	start := time.Now()
	for n := 1; ; n++ {
		done, err := f()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if done {
			return nil
		}
		if n%64 != 0 {
			continue
		}
		if time.Since(start) > limit {
			return fmt.Errorf("%s: not within %v", what, limit)
		}
		time.Sleep(50 * time.Microsecond) // for the other machine, which shares the processors
	}
}

// posted tells a full queue from a failure.
func posted(err error) (bool, error) {
	if err == driver.ErrBusy {
		return false, nil
	}
	return err == nil, err
}

// word is the nth eight bytes of the pattern of seed.
func word(seed, n uint64) uint64 {
	x := (seed+1)*0x9e3779b97f4a7c15 + n
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	return x ^ x>>27
}

func fill(b []byte, seed uint64) {
	var last [8]byte
	for n := uint64(0); len(b) > 0; n++ {
		binary.LittleEndian.PutUint64(last[:], word(seed, n))
		b = b[copy(b, last[:]):]
	}
}

func verify(b []byte, seed uint64) error {
	var want [8]byte
	for k := range b {
		if k%8 == 0 {
			binary.LittleEndian.PutUint64(want[:], word(seed, uint64(k/8)))
		}
		if b[k] != want[k%8] {
			return integrity.Errorf("byte %d of %d of message %d: got %#x, want %#x", k, len(b), seed, b[k], want[k%8])
		}
	}
	return nil
}
