//go:build cgo

package ncp

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"
)

// A simNet is hosts with NICs on a network that does to datagrams what its faults say, all in one
// goroutine and a time of its own, so that a seed replays exactly.
type simNet struct {
	rng    *rand.Rand
	now    time.Duration
	queue  simQueue
	order  uint64
	key    [16]byte
	hosts  []*simHost
	faults simFaults
	link   simPath
	cut    map[[2]int]bool // hosts between which nothing gets through
	boots  uint32
	fail   error
	seen   [][]byte // datagrams to be repeated
	tap    func(data []byte)
	knows  int          // which host knows whose address
	most   uint64       // events, of a network that does not run wild
	sum    wireCounters // of the wires that are closed
}

func (c *wireCounters) add(o wireCounters) {
	to, from := reflect.ValueOf(c).Elem(), reflect.ValueOf(o)
	for i := range to.NumField() {
		to.Field(i).SetUint(to.Field(i).Uint() + from.Field(i).Uint())
	}
}

type simFaults struct {
	loss, duplicate, corrupt, repeat float64
	delay, jitter                    time.Duration
}

// A simPath is a bottleneck that all datagrams from one host to another share.
type simPath struct {
	rate  float64 // bytes a second; 0: no limit
	queue time.Duration
	free  map[[2]int]time.Duration
}

type simHost struct {
	net    *simNet
	index  int
	nics   []*simNIC
	paused bool
	inbox  []simDatagram
}

type simNIC struct {
	host    *simHost
	config  wireConfig
	wire    *wire
	boot    uint32
	wakeAt  time.Duration
	peers   map[uint16]*simPeer
	quota   uint32
	lazy    bool // consumes slowly
	sizes   func() int
	only    *uint16     // sends to this one alone
	hold    func() bool // does not consume now
	steps   int
	back    time.Duration // how much earlier its clock may have been read
	events  []wireEvent
	deaths  int
	onFrame func(nic uint16, frame []byte)
}

// A simPeer is what a NIC knows of another one's link, on both its directions.
type simPeer struct {
	up         bool
	epoch      uint32 // of ours, grows with each UP
	sent       uint32
	boot, from uint32 // theirs, from the first frame
	received   uint32
	last       [2]uint32 // boot and epoch of the link before
}

type simDatagram struct {
	from wireAddress
	data []byte
}

type simEvent struct {
	at    time.Duration
	order uint64
	nic   *simNIC
	host  *simHost
	data  simDatagram
	do    func()
}

func simAddress(host int) (a wireAddress) {
	a[0] = byte(host + 1)
	return a
}

func newSimNet(seed uint64) *simNet {
	n := &simNet{rng: rand.New(rand.NewPCG(seed, 1)), cut: map[[2]int]bool{}, now: time.Second}
	n.link.free = map[[2]int]time.Duration{}
	for i := range n.key {
		n.key[i] = byte(n.rng.Uint32())
	}
	return n
}

func (n *simNet) close() {
	for _, h := range n.hosts {
		for _, c := range h.nics {
			c.stop()
		}
	}
}

func (n *simNet) errorf(format string, args ...any) {
	if n.fail == nil {
		n.fail = fmt.Errorf("at %v: "+format, append([]any{n.now}, args...)...)
	}
}

func (n *simNet) push(e simEvent) {
	e.order = n.order
	n.order++
	n.queue.push(e)
}

func (n *simNet) after(d time.Duration, do func()) { n.push(simEvent{at: n.now + d, do: do}) }

// run goes on until done says so (looked at now and then), nothing is left, or the time has come.
func (n *simNet) run(until time.Duration, done func() bool) {
	for i := 1; len(n.queue) > 0 && n.queue[0].at <= until && n.fail == nil; i++ {
		e := n.queue.pop()
		n.now = e.at
		if n.most > 0 && n.order > n.most {
			n.errorf("%d events: NICs answer each other without end", n.order)
		}
		switch {
		case e.do != nil:
			e.do()
		case e.host != nil:
			e.host.input(e.data)
		default:
			if e.at == e.nic.wakeAt {
				e.nic.wakeAt = 0
				e.nic.step()
			}
		}
		if done != nil && i%64 == 0 && done() {
			return
		}
	}
	n.now = max(n.now, until)
}

// ---- Network ----

func (n *simNet) chance(p float64) bool { return p > 0 && n.rng.Float64() < p }

func (n *simNet) send(from int, to wireAddress, data []byte) {
	host := int(to[0]) - 1
	if n.tap != nil {
		n.tap(slices.Clone(data))
	}
	if host < 0 || host >= len(n.hosts) || n.cut[[2]int{from, host}] || n.chance(n.faults.loss) {
		return
	}
	delay := n.faults.delay
	if n.link.rate > 0 {
		path := [2]int{from, host}
		free := max(n.link.free[path], n.now)
		if free-n.now > n.link.queue {
			return
		}
		n.link.free[path] = free + time.Duration(float64(len(data)+46)/n.link.rate*1e9)
		delay += n.link.free[path] - n.now
	}
	if n.chance(n.faults.corrupt) {
		data[n.rng.IntN(len(data))] ^= 1 << n.rng.IntN(8)
		if n.chance(0.3) {
			data = data[:n.rng.IntN(len(data))]
		}
	}
	copies := 1
	if n.chance(n.faults.duplicate) {
		copies = 2
	}
	if n.faults.repeat > 0 {
		if len(n.seen) < 200 {
			n.seen = append(n.seen, slices.Clone(data))
		} else {
			n.seen[n.rng.IntN(len(n.seen))] = slices.Clone(data)
		}
		if n.chance(n.faults.repeat) {
			old := slices.Clone(n.seen[n.rng.IntN(len(n.seen))])
			n.arrive(delay, n.hosts[n.rng.IntN(len(n.hosts))], n.rng.IntN(len(n.hosts)), old)
		}
	}
	for range copies {
		n.arrive(delay, n.hosts[host], from, data)
	}
}

func (n *simNet) arrive(delay time.Duration, h *simHost, from int, data []byte) {
	if n.faults.jitter > 0 {
		delay += time.Duration(n.rng.Int64N(int64(n.faults.jitter)))
	}
	n.push(simEvent{at: n.now + delay, host: h, data: simDatagram{simAddress(from), data}})
}

// ---- Hosts ----

func (n *simNet) addHost(nics ...wireConfig) *simHost {
	h := &simHost{net: n, index: len(n.hosts)}
	n.hosts = append(n.hosts, h)
	for _, c := range nics {
		c.key = n.key
		h.nics = append(h.nics, &simNIC{host: h, config: c, sizes: func() int { return 16 }})
	}
	return h
}

func (h *simHost) numbers() (all []uint16) {
	for _, c := range h.nics {
		all = append(all, c.config.nic)
	}
	return all
}

func (h *simHost) input(d simDatagram) {
	if h.paused {
		h.inbox = append(h.inbox, d)
		return
	}
	to := wireDestination(d.data)
	if to == 0 {
		if a := answerWire(h.net.key, h.numbers(), d.data); a != nil {
			if len(a) > len(d.data) {
				h.net.errorf("an answer of %d bytes to %d", len(a), len(d.data))
			}
			h.net.send(h.index, d.from, a)
		}
		return
	}
	for _, c := range h.nics {
		if int(c.config.nic) == to && c.wire != nil {
			c.wire.input(h.net.now, &d.from, d.data)
			c.step()
		}
	}
}

// pause stops a host's program for a while; datagrams that come meanwhile wait in its socket.
func (h *simHost) pause(d time.Duration) {
	if h.paused {
		return
	}
	h.paused = true
	h.net.after(d, func() {
		h.paused = false
		for _, c := range h.nics {
			c.step()
		}
		inbox := h.inbox
		h.inbox = nil
		for _, d := range inbox {
			h.input(d)
		}
	})
}

// ---- NICs ----

func (c *simNIC) start() error {
	n := c.host.net
	n.boots++
	c.boot = n.boots
	c.config.seed = n.rng.Uint64() | 1
	w, err := newWire(c.config, n.now)
	if err != nil {
		return err
	}
	c.wire = w
	c.peers = map[uint16]*simPeer{}
	c.wakeAt = 0
	c.wake(n.now)
	return nil
}

func (c *simNIC) stop() {
	if c.wire == nil {
		return
	}
	c.host.net.sum.add(c.wire.counters())
	if leaked := c.wire.close(); leaked > 0 {
		c.host.net.errorf("NIC %d: %d bytes were not freed", c.config.nic, leaked)
	}
	c.wire = nil
}

func (c *simNIC) know(host int) {
	if !c.wire.addAddress(c.host.net.now, simAddress(host)) {
		c.host.net.errorf("no room for the address of host %d", host)
	}
	c.wake(c.host.net.now)
}

func (c *simNIC) peer(nic uint16) *simPeer {
	p := c.peers[nic]
	if p == nil {
		p = &simPeer{}
		c.peers[nic] = p
	}
	return p
}

func (c *simNIC) wake(at time.Duration) {
	if c.wakeAt != 0 && c.wakeAt <= at {
		return
	}
	c.wakeAt = at
	c.host.net.push(simEvent{at: at, nic: c})
}

// step is what a host does whenever it runs.
func (c *simNIC) step() {
	n := c.host.net
	if c.wire == nil || c.host.paused {
		return
	}
	c.steps++
	if c.wire.timer() <= n.now {
		c.wire.tick(c.clock())
	}
	for e, ok := c.wire.event(); ok; e, ok = c.wire.event() {
		c.event(e)
	}
	c.receive()
	c.send()
	c.flush()
	c.wake(max(c.wire.timer(), n.now+time.Microsecond))
}

// flush sends all datagrams that are due.
func (c *simNIC) flush() {
	n := c.host.net
	var to wireAddress
	for {
		b := make([]byte, max(c.config.datagram, 1452))
		size := c.wire.output(c.clock(), &to, b)
		if size == 0 {
			return
		}
		n.send(c.host.index, to, b[:size])
	}
}

func (c *simNIC) event(e wireEvent) {
	p := c.peer(e.nic)
	if e.up == p.up {
		c.host.net.errorf("NIC %d: event %+v of a link whose state is that", c.config.nic, e)
	}
	p.up = e.up
	c.events = append(c.events, e)
	if e.up {
		p.epoch++
		p.sent = 0
	} else {
		c.deaths++
		if p.from != 0 {
			p.last = [2]uint32{p.boot, p.from}
		}
		p.received, p.boot, p.from = 0, 0, 0
	}
}

func (c *simNIC) clock() time.Duration {
	if n := c.host.net; c.back > 0 {
		return n.now - time.Duration(n.rng.Int64N(int64(c.back)))
	}
	return c.host.net.now
}

func (c *simNIC) frame() int {
	if c.config.frame == 0 {
		return 16404
	}
	return c.config.frame
}

// A frame says who sent it on which link, and its number there.
const simHead = 16

func (c *simNIC) send() {
	n := c.host.net
	for _, nic := range slices.Sorted(maps.Keys(c.peers)) {
		p := c.peers[nic]
		for p.up && p.sent < c.quota && (c.only == nil || *c.only == nic) {
			size := max(simHead, min(c.sizes(), c.frame()))
			room := min(c.frame(), size+n.rng.IntN(3))
			b := c.wire.reserve(nic, room)
			if b == nil {
				break
			}
			if n.chance(0.02) {
				c.wire.commit(n.now, nic, 0)
				continue
			}
			b = b[:size]
			binary.BigEndian.PutUint32(b, c.boot)
			binary.BigEndian.PutUint32(b[4:], p.epoch)
			binary.BigEndian.PutUint32(b[8:], p.sent)
			binary.BigEndian.PutUint32(b[12:], uint32(size))
			for i := simHead; i < size; i++ {
				b[i] = byte(i) + byte(p.sent)
			}
			c.wire.commit(c.clock(), nic, size)
			p.sent++
		}
	}
}

func (c *simNIC) receive() {
	n := c.host.net
	for {
		nic, b := c.wire.peek(n.now)
		if b == nil {
			return
		}
		if c.hold != nil && c.hold() {
			return
		}
		if c.lazy && n.chance(0.5) {
			c.wake(n.now + time.Duration(n.rng.IntN(2000))*time.Microsecond)
			return
		}
		if c.onFrame != nil {
			c.onFrame(nic, b)
		} else {
			c.check(nic, b)
		}
		c.wire.consume(c.clock())
	}
}

// check holds a frame against what must come next on this link.
func (c *simNIC) check(nic uint16, b []byte) {
	n, p := c.host.net, c.peer(nic)
	if len(b) < simHead {
		n.errorf("NIC %d: a frame of %d bytes from %d", c.config.nic, len(b), nic)
		return
	}
	boot, epoch := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	index, size := binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	if p.received == 0 && p.from == 0 {
		p.boot, p.from = boot, epoch
	}
	if !p.up || boot != p.boot || epoch != p.from || index != p.received || int(size) != len(b) ||
		p.last == [2]uint32{boot, epoch} {
		n.errorf("NIC %d: from %d: frame %d (boot %d, link %d, %d bytes), expected %d (boot %d, link %d, not %v, %d bytes), up %v",
			c.config.nic, nic, index, boot, epoch, len(b), p.received, p.boot, p.from, p.last, size, p.up)
	}
	for i := simHead; i < len(b); i++ {
		if b[i] != byte(i)+byte(index) {
			n.errorf("NIC %d: from %d: frame %d: byte %d is wrong", c.config.nic, nic, index, i)
			return
		}
	}
	p.received++
}

// complete says whether all NICs of different hosts are linked and have received all frames.
func (n *simNet) complete() bool {
	for _, h := range n.hosts {
		for _, c := range h.nics {
			for _, other := range n.hosts {
				for _, o := range other.nics {
					if h == other {
						continue
					}
					if o.wire == nil || c.wire == nil {
						return false
					}
					p := c.peers[o.config.nic]
					if p == nil || !p.up || p.sent < c.quota || p.received < o.quota {
						return false
					}
				}
			}
		}
	}
	return true
}

// A simQueue is a heap by time and order.
type simQueue []simEvent

func (q simQueue) less(i, j int) bool {
	return q[i].at < q[j].at || (q[i].at == q[j].at && q[i].order < q[j].order)
}

func (q *simQueue) push(e simEvent) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0 && h.less(i, (i-1)/2); i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
}

func (q *simQueue) pop() simEvent {
	h := *q
	e := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h[last] = simEvent{}
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && h.less(c+1, c) {
			c++
		}
		if !h.less(c, i) {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	*q = h
	return e
}
