//go:build linux

package attack

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Target is a socket under attack, with its genuine users.
type Target struct {
	Network, Addr   string
	GoesOn          func(what string) // fails the test unless genuine peers are served
	Unauthenticated int               // the limit of connections without proof that the socket keeps
	Close           func() error      // must end in time, while the attacker is still there
	As              []func(*Program)  // change the attacker's program: another user, for example
}

// Unauthenticated attacks a target with one program that does not know the secret, in one way: "connections",
// "garbage", "slow bytes", or the name of another program made by [Visitor]. It checks that genuine peers are served
// meanwhile, that the resources for the attacker are bounded, that closing does not wait for it, and that no resource
// is left.
func Unauthenticated(t *testing.T, way string, open func(*testing.T, *rand.Rand) *Target) {
	rng := Seed(t)
	before := Settled()
	h := open(t, rng)
	opened := Settled()
	p := Start(t, way, Socket{h.Network, h.Addr, rng.Uint64()}, h.As...)
	each := Duration(t)
	if each <= Brief {
		each /= 3
	}
	var attempts int64
	for attempts == 0 {
		p.Receive(&attempts)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for p.Out.Decode(&attempts) == nil {
		}
	}()
	most := Peak(func() {
		time.Sleep(each)
		h.GoesOn("beside the attacker")
	})
	// Each goroutine that closes an attacker's socket has a thread meanwhile, which Go keeps.
	most.Within(t, opened, Holdings{FDs: 2*h.Unauthenticated + 400, Goroutines: h.Unauthenticated + 100, Threads: h.Unauthenticated + 100, Heap: 64, Maps: 16})
	took := h.closed(t)
	_ = p.Cmd.Process.Kill()
	<-drained
	p.Kill()
	t.Logf("%d attacks; at most %+v, before them %+v; close took %v", attempts, most, opened, took)
	Left(t, "after the attacker", before)
}

// closed closes the target, and returns how long that took.
func (h *Target) closed(t *testing.T) time.Duration {
	begin := time.Now()
	done := make(chan error, 1)
	go func() { done <- h.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("close: %v", err)
		}
	case <-time.After(MaxWait):
		t.Errorf("close takes more than %v while an attacker is there", MaxWait)
	}
	return time.Since(begin)
}

// Socket names the socket for an unauthenticated program to attack. The program knows no secret.
type Socket struct {
	Network, Addr string
	Seed          uint64
}

// attackers are the attacking programs that every test binary has.
var attackers = map[string]Main{
	"connections": Attacker(manyConnections), "garbage": Attacker(garbage), "slow bytes": Attacker(slowBytes),
}

// Attacker returns the main function of a program that attacks in one way again and again until it is killed. A way
// adds its actions to n.
func Attacker(way func(v *Socket, rng *rand.Rand, n *atomic.Int64) error) Main {
	return func(in *json.Decoder, out *json.Encoder) error {
		var v Socket
		if err := in.Decode(&v); err != nil {
			return err
		}
		var n atomic.Int64
		go func() {
			for ; ; time.Sleep(20 * time.Millisecond) {
				_ = out.Encode(n.Load())
			}
		}()
		rng := rand.New(rand.NewPCG(v.Seed, 10))
		for {
			if err := way(&v, rng, &n); err != nil && n.Load() == 0 {
				return err
			}
		}
	}
}

// Dial connects to the socket.
func (v *Socket) Dial() (net.Conn, error) {
	c, err := net.DialTimeout(v.Network, v.Addr, time.Second)
	if err != nil {
		time.Sleep(time.Millisecond) // refused: the queue is full
	}
	return c, err
}

// manyConnections opens as many connections as it may have descriptors, sends nothing, and begins again.
func manyConnections(v *Socket, rng *rand.Rand, n *atomic.Int64) error {
	var all []net.Conn
	defer func() {
		for _, c := range all {
			c.Close()
		}
	}()
	for range 500 + rng.IntN(4000) {
		c, err := v.Dial()
		if err != nil {
			return err
		}
		n.Add(1)
		all = append(all, c)
	}
	time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
	return nil
}

// garbage sends random bytes, or bytes of the other side with changes.
func garbage(v *Socket, rng *rand.Rand, n *atomic.Int64) error {
	c, err := v.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	n.Add(1)
	b := make([]byte, 1+rng.IntN(1<<rng.IntN(17)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	if rng.IntN(2) == 0 { // numbers that may be a kind, a version or a length
		for i := range min(len(b), 64) {
			b[i] = byte(rng.IntN(4))
		}
	}
	for range 1 + rng.IntN(4) {
		_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Write(b); err != nil {
			return nil
		}
		got := make([]byte, 4096)
		if k, err := c.Read(got); err == nil && k > 0 {
			b = got[:k]
			b[rng.IntN(k)] ^= 1 << rng.IntN(8)
		}
	}
	return nil
}

// slowBytes has two hundred connections that send one byte now and then.
func slowBytes(v *Socket, rng *rand.Rand, n *atomic.Int64) error {
	var wg sync.WaitGroup
	for range 200 {
		pause, first := time.Duration(1+rng.IntN(100))*time.Millisecond, byte(rng.IntN(8))
		wg.Go(func() {
			c, err := v.Dial()
			if err != nil {
				return
			}
			defer c.Close()
			for n.Add(1); ; time.Sleep(pause) {
				_ = c.SetWriteDeadline(time.Now().Add(time.Second))
				if _, err := c.Write([]byte{first}); err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return nil
}
