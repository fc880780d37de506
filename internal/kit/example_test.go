package kit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// loop is the context of a driver whose connections lead to themselves: what is sent on one is received there.
type loop struct {
	kit.Context[loopback]
	waits    kit.Watch
	late     bool // connections are not established at once
	released int
}

// probedLoop is what users have.
type probedLoop struct {
	*loop
	kit.Prober[loopback]
}

func openLoop() *loop {
	l := &loop{}
	props := driver.Properties{Driver: "loop", Device: "lo", Capabilities: driver.Capabilities{
		MaxMessage: loopRoom, BufferSize: loopRoom, BufferSend: true, BufferRecv: true, Probe: true,
		SendWait: true, RecvWait: true,
	}}
	l.Init(l, func(n *loopback) *kit.Conn { return &n.Conn }, probedLoop{l, l.Prober()}, props, 1, driver.Attributes{})
	l.waits = kit.Watch{Device: quiet{}, Spins: 10, Never: true}
	l.Anyone.Watch = &l.waits
	if err := l.Publish("here", "here"); err != nil {
		log.Fatal(err)
	}
	driver.Opened(l.Self())
	return l
}

func (l *loop) Dial(num uint32, url string, to driver.URL) (*loopback, error) {
	if to.Incarnation != l.Incarnation {
		return nil, fmt.Errorf("%w: this driver knows itself only", driver.ErrUnsupported)
	}
	n := &loopback{context: l}
	n.Init(&n.Conn, n)
	l.Add(n, num, url, n, n)
	if !l.late {
		n.Resolve(kit.StateUp, nil)
	}
	return n, nil
}

// Reach implements kit.ContextHooks: all contexts are in this process.
func (l *loop) Reach(driver.URL) error { return nil }

// Drain implements kit.ContextHooks: messages announce themselves when they are sent.
func (l *loop) Drain() bool { return false }

func (l *loop) Count(*driver.Counters) {}

func (l *loop) Release() error { l.released++; return nil }

// quiet is a device without events.
type quiet struct{}

func (quiet) Arm() uint64        { return 0 }
func (quiet) Sleep(uint64, bool) {}
func (quiet) Wake()              {}
func (quiet) Call()              {}

const (
	loopSlots = 4
	loopRoom  = 64
)

// loopback is a connection, and its instance, as there is but one track. Messages lie in a ring of slots.
type loopback struct {
	kit.Conn
	kit.Small
	context *loop
	slots   [loopSlots][loopRoom]byte
	lengths [loopSlots]int
	head    int // received
	tail    int // sent
	half    int // messages are handed over in pieces of so many bytes, unless it is 0

	refusals int // so many attempts to send find no credit yet
}

func (n *loopback) mayStart() bool { return n.tail-n.head < loopSlots }

func (n *loopback) SendPost(p *driver.Packet) error {
	if !n.Enter() {
		return n.Failure("send")
	}
	defer n.Leave()
	if _, err := n.AdmitSend(p, loopRoom); err != nil {
		return err
	}
	if !n.Stalled() && n.Start(p) {
		return nil
	}
	return n.Later(p)
}

func (n *loopback) Start(p *driver.Packet) bool {
	if n.refusals > 0 {
		n.refusals--
		return false
	}
	if !n.mayStart() {
		return false
	}
	c := p.Cursor()
	p.N = c.Gather(n.slots[n.tail%loopSlots][:p.Len()])
	n.publish(p.N)
	p.Driver.Finish(nil)
	return true
}

func (n *loopback) Launch() {}

func (n *loopback) publish(length int) {
	n.lengths[n.tail%loopSlots] = length
	n.tail++
	n.Sent(length)
	n.Announce()
	n.Wake()
}

func (n *loopback) Settle() { n.Push() }

func (n *loopback) First(k int) (piece []byte, more, ok bool) {
	if n.head == n.tail {
		return nil, false, false
	}
	message := n.slots[n.head%loopSlots][:n.lengths[n.head%loopSlots]]
	if n.half == 0 {
		return message, false, true
	}
	from := min(k*n.half, len(message))
	to := min(from+n.half, len(message))
	return message[from:to], to < len(message), true
}

func (n *loopback) Consumed(int) { n.head++ }

func (n *loopback) Longest() int { return loopRoom }

func (n *loopback) Room() []byte {
	if !n.mayStart() {
		return nil
	}
	return n.slots[n.tail%loopSlots][:]
}

func (n *loopback) Filled(_ []byte, length int) error {
	if length >= 0 {
		n.publish(length)
	}
	return nil
}

func (n *loopback) Pending() bool {
	n.Push()
	return n.Stalled()
}

func (n *loopback) OnClose(kit.State) {
	n.Drop()
	n.context.Mu.Lock()
	defer n.context.Mu.Unlock()
	n.context.Conns.Remove(n.Number(), n)
}

func (n *loopback) Path() string { return "loop" }

// The driver of this example is complete, except for its devices: methods that it does not have itself come from the
// kit.
func Example() {
	c := openLoop().Self()
	defer c.Close()
	i, err := c.Connect(c.URL())
	if err != nil {
		log.Fatal(err)
	}
	if err := i.ConnectWait(context.Background()); err != nil {
		log.Fatal(err)
	}
	out := driver.Packet{IOV: [][]byte{[]byte("around "), []byte("the lock")}}
	if err := i.SendPost(&out); err != nil {
		log.Fatal(err)
	}
	named, err := c.(driver.Prober).RecvProbeAny()
	if err != nil {
		log.Fatal(err)
	}
	var in driver.Packet
	if err := named.(driver.RecvWaiter).RecvWait(context.Background(), &in); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s\n", named.Path(), in.Buf)
	// Output: loop: around the lock
}
