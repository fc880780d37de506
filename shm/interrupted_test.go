//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// interruptedSize is long enough for a stop to fall into the middle of a transfer.
const interruptedSize = 8 << 20

// exchange is the order to an exchanger: to connect and move one long message.
type exchange struct {
	URL  string
	Send bool
	Hold bool // it posts, and waits for another order before it polls
}

// exchangeRole makes the connections that it is ordered to make, moves one long message over each, and reports the
// result. It alone copies, by the option ends.
func exchangeRole(in *json.Decoder) error {
	var k task
	c, err := k.open(in)
	if err != nil {
		return err
	}
	reply(report{URL: c.URL(), PID: os.Getpid()})
	ar, err := driver.NewArena(interruptedSize)
	if err != nil {
		return err
	}
	for {
		var x exchange
		if err := in.Decode(&x); err != nil {
			return c.Close()
		}
		if err := exchangeOnce(c, in, x, ar.Bytes(), k.Options["path"] == "cma"); err != nil {
			return err
		}
	}
}

func exchangeOnce(c driver.Context, in *json.Decoder, x exchange, mem []byte, private bool) error {
	i, err := c.Connect(x.URL)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := i.ConnectWait(ctx); err != nil {
		return err
	}
	if private {
		mem = make([]byte, len(mem))
	}
	clear(mem)
	p := driver.Packet{IOV: [][]byte{mem}}
	poll := i.RecvPoll
	if x.Send {
		if err := in.Decode(&p.RdvData); err != nil {
			return err
		}
		poll, err = i.SendPoll, i.SendPost(&p)
	} else if err = i.RecvPost(&p); err == nil {
		reply(p.RdvData)
	}
	if err != nil {
		return err
	}
	reply(report{})
	if x.Hold {
		var poll any
		if err := in.Decode(&poll); err != nil {
			return err
		}
	}
	for done := false; !done; {
		done, err = poll(&p)
	}
	r := report{}
	if err != nil {
		r.Err = err.Error()
	} else if at := written(mem); !x.Send && at >= 0 {
		r.Err = fmt.Sprintf("wrong: received byte %d of memory that was not sent", at)
	}
	reply(r)
	return i.Disconnect()
}

// A peer that copies a message is stopped at random moments. This end cancels, breaks or closes; once the packet is
// done, the peer neither writes to its memory nor takes what is in it by then for the message.
func TestNothingIsCopiedAfterThePacketIsDone(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed: %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	trials := 6
	if testing.Short() {
		trials = 2
	}
	for _, path := range []string{"arena", "cma"} {
		for _, how := range []string{"receive/cancel", "receive/disconnect", "receive/broken", "receive/close", "send/broken", "send/close"} {
			t.Run(path+"/"+how, func(t *testing.T) {
				if path == "cma" && !selfAttach() {
					t.Skip("needs process_vm_writev, which this sandbox refuses")
				}
				sending := how[:4] == "send"
				opts := map[string]string{"path": path, "ends": "sender"}
				if sending {
					opts["ends"] = "receiver"
				}
				p := startChild(t, "exchange", nil)
				p.write(task{Track: driver.Large, Options: opts})
				var at report
				p.read(&at)
				held := 0
				for range trials {
					x := interruptedTransfer{t: t, p: p, url: at.URL, opts: opts, sending: sending, private: path == "cma"}
					if x.run(how, rnd) {
						held++
					}
				}
				t.Logf("the packet was held in %d of %d trials", held, trials)
			})
		}
	}
}

type interruptedTransfer struct {
	t                *testing.T
	p                *child
	url              string
	opts             map[string]string
	sending, private bool
	hold             bool

	c    driver.Context
	inst driver.Instance
	pkt  driver.Packet
	mem  []byte
}

// begin connects, and the peer begins to copy.
func (x *interruptedTransfer) begin() {
	t := x.t
	t.Helper()
	x.c = open(t, driver.Large, x.opts)
	ar, err := driver.NewArena(interruptedSize)
	if err != nil {
		t.Fatal(err)
	}
	if x.mem = ar.Bytes(); x.private {
		x.mem = make([]byte, interruptedSize)
	}
	fillCanary(x.mem)
	if x.inst, err = x.c.Connect(x.url); err != nil {
		t.Fatal(err)
	}
	x.p.write(exchange{URL: x.c.URL(), Send: !x.sending, Hold: x.hold})
	if err := x.inst.ConnectWait(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.pkt = driver.Packet{IOV: [][]byte{x.mem}}
	if x.sending {
		x.p.read(&x.pkt.RdvData)
		err = x.inst.SendPost(&x.pkt)
	} else if err = x.inst.RecvPost(&x.pkt); err == nil {
		x.p.write(bytes.Clone(x.pkt.RdvData))
	}
	if err != nil {
		t.Fatal(err)
	}
	x.p.read(new(report))
}

func (x *interruptedTransfer) poll() (bool, error) {
	if x.sending {
		return x.inst.SendPoll(&x.pkt)
	}
	return x.inst.RecvPoll(&x.pkt)
}

// A message that both ends have copied is delivered although the sender's process has ended before the receiver looks
// again: for the sender it was complete.
func TestMessageOfAProcessThatHasEnded(t *testing.T) {
	if !selfAttach() {
		t.Skip("needs process_vm_writev, which this sandbox refuses")
	}
	opts := map[string]string{"path": "cma"}
	p := startChild(t, "exchange", nil)
	p.write(task{Track: driver.Large, Options: opts})
	var at, result report
	p.read(&at)
	x := interruptedTransfer{t: t, p: p, url: at.URL, opts: opts, private: true, hold: true}
	x.begin()
	l := x.inst.(*large)
	for r := &l.recvs[x.pkt.Driver.Slot]; r.done == 0; {
		if done, err := x.poll(); done {
			t.Fatalf("done before the sender has copied: %v", err)
		}
	}
	p.write(true)
	p.read(&result)
	if result.Err != "" {
		t.Fatal(result.Err)
	}
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := await(t, x.poll); err != nil {
		t.Fatalf("got %v, want success: the sender's end is complete", err)
	}
	if n := x.pkt.N; n != interruptedSize {
		t.Errorf("received %d bytes, want %d", n, interruptedSize)
	}
}

// run returns whether the packet was held until the peer went on.
func (x *interruptedTransfer) run(how string, rnd *rand.Rand) (held bool) {
	t := x.t
	t.Helper()
	x.begin()
	for until := time.Now().Add(time.Duration(rnd.IntN(2_000_000))); time.Now().Before(until); {
	}
	x.p.stop()
	var err error
	switch how[len(how)-5:] {
	case "ancel":
		err = x.inst.RecvCancel(&x.pkt)
	case "nnect":
		err = x.inst.Disconnect()
	case "roken":
		connOf(x.inst).breakWith(fmt.Errorf("%w: broken by the test", driver.ErrBroken))
	case "close":
		err = x.c.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	held = true
	for range 20 {
		var done bool
		if done, err = x.poll(); done {
			held = false
			break
		}
		pause()
	}
	if held {
		x.p.resume()
		err = await(t, x.poll)
	}
	if err != nil {
		contractError(t, err)
		// Written to by the peer: if it counts as received there, it was not this.
		fillWith(x.mem, canaryByte^0xff)
	}
	if !held {
		x.p.resume()
	}
	_ = x.c.Close() // which a peer that waits for this end learns of
	var result report
	x.p.read(&result)
	if len(result.Err) > 5 && result.Err[:5] == "wrong" {
		t.Errorf("%s: the peer %s", how, result.Err)
	}
	if at := unlike(x.mem, canaryByte^0xff); err != nil && at >= 0 {
		t.Fatalf("%s: byte %d was written after the packet was done (%v)", how, at, err)
	}
	if errors.Is(err, driver.ErrInvalid) {
		t.Errorf("%s: packet ended with %v", how, err)
	}
	return held
}

// The receiver has claimed a piece, and reads it from this end's buffer, when the connection breaks here: the send is
// not done before the piece is, or the receiver has closed its socket.
func TestSendIsHeldWhileTheReceiverReads(t *testing.T) {
	for _, tt := range []struct {
		name string
		let  func(*fakePeer)
	}{
		{"done", func(i *fakePeer) { store64(&i.seg.table[0][0].recv.done, 1) }},
		{"hung up", func(i *fakePeer) { i.sock.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newFakePeer(t)
			inst := i.connect(open(t, driver.Large, map[string]string{"ends": "receiver"}))
			p := driver.Packet{IOV: [][]byte{make([]byte, 4*maxPiece)}, RdvData: i.rdv(0, endLine{ticket: 5, addr: 4096, length: 4 * maxPiece, reach: reachArena})}
			if err := inst.SendPost(&p); err != nil {
				t.Fatal(err)
			}
			atomic.AddUint64(&i.seg.table[0][0].claim, 1<<claimBits) // a piece from the back
			connOf(inst).breakWith(fmt.Errorf("%w: broken by the test", driver.ErrBroken))
			for range 10 {
				if done, err := inst.SendPoll(&p); done {
					t.Fatalf("done (%v) while the receiver reads the buffer", err)
				}
			}
			tt.let(i)
			if err := await(t, func() (bool, error) { return inst.SendPoll(&p) }); !errors.Is(err, driver.ErrBroken) {
				t.Errorf("got %v, want ErrBroken", err)
			}
		})
	}
}

// An end that could not copy a piece has left the buffer, but the message has not arrived.
func TestPieceThatCouldNotBeCopied(t *testing.T) {
	i := newFakePeer(t)
	inst := i.connect(open(t, driver.Large, map[string]string{"ends": "receiver"}))
	p := driver.Packet{IOV: [][]byte{make([]byte, minPiece)}, RdvData: i.rdv(0, endLine{ticket: 5, addr: 4096, length: minPiece, reach: reachArena})}
	if err := inst.SendPost(&p); err != nil {
		t.Fatal(err)
	}
	slot := &i.seg.table[0][0]
	atomic.AddUint64(&slot.claim, 1<<claimBits)
	store32(&slot.recv.failed, 1)
	store64(&slot.recv.done, 1)
	if err := await(t, func() (bool, error) { return inst.SendPoll(&p) }); !errors.Is(err, driver.ErrBroken) {
		t.Errorf("got %v, want ErrBroken", err)
	}
}

// A sender that posted while the receive was cancelled may hold an old claim word: the slot is not used until that
// sender acknowledges.
func TestSlotRestsUntilTheSenderAcknowledges(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	r := driver.Packet{IOV: [][]byte{make([]byte, 4096)}}
	if err := b.RecvPost(&r); err != nil {
		t.Fatal(err)
	}
	s := driver.Packet{IOV: [][]byte{make([]byte, 4096)}, RdvData: bytes.Clone(r.RdvData)}
	slot := r.Driver.Slot
	x := &b.(*large).recvs[slot]
	// The sender posts between the look for it and the cancellation.
	if err := a.SendPost(&s); err != nil {
		t.Fatal(err)
	}
	b.(*large).giveUp(x)
	r.Driver.Phase = driver.Canceling
	if err := await(t, func() (bool, error) { return b.RecvPoll(&r) }); !errors.Is(err, driver.ErrCanceled) {
		t.Fatalf("got %v, want ErrCanceled", err)
	}
	for range 2 * transferSlots {
		if err := b.RecvPost(&r); err != nil {
			t.Fatal(err)
		}
		if r.Driver.Slot == slot {
			t.Fatal("the slot was used again before the sender has acknowledged")
		}
		if err := b.RecvCancel(&r); err != nil {
			t.Fatal(err)
		}
		if err := await(t, func() (bool, error) { return b.RecvPoll(&r) }); !errors.Is(err, driver.ErrCanceled) {
			t.Fatalf("got %v, want ErrCanceled", err)
		}
	}
	if err := await(t, func() (bool, error) { return a.SendPoll(&s) }); !errors.Is(err, driver.ErrCanceled) {
		t.Errorf("send: got %v, want ErrCanceled", err)
	}
}
