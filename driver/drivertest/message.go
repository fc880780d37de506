package drivertest

import (
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/bywash/bywash/driver"
)

// item is a message, described alike for the side that sends it and the one
// that receives it.
type item struct {
	Send, Recv form
	Size       int
	Seed       uint64
	Arena      bool // memory on both sides
	Probe      bool // the receiver probes first
}

// memory is where items with Arena get it.
type memory struct{ a *driver.Arena }

func (m *memory) alloc(e *end, it *item) func(int) []byte {
	if !it.Arena {
		return nil
	}
	return func(n int) []byte {
		if m.a != nil {
			if b := m.a.Alloc(n); b != nil {
				return b
			}
			_ = m.a.Close() // not in use any more: items are done one by one
		}
		a, err := driver.NewArena(max(1<<20, 2*n))
		e.noErr("make arena", err)
		m.a = a
		return a.Alloc(n)
	}
}

var roleSender = role("send-items", func(e *end) {
	var items []item
	e.args(&items)
	c := e.parent.connectPeer()
	c.sendItems(items)
	e.parent.sync()
})

var roleReceiver = role("receive-items", func(e *end) {
	var items []item
	e.args(&items)
	c := e.parent.connectPeer()
	c.recvItems(items)
	e.parent.sync()
})

// bothWays runs the items from the peer, and then to a peer.
func (e *end) bothWays(items []item) {
	e.Helper()
	p, c := e.pair(roleSender, items)
	c.recvItems(items)
	p.sync()
	e.path(c)
	p.join()
	q, d := e.pair(roleReceiver, items)
	d.sendItems(items)
	q.sync()
	e.path(d)
	q.join()
}

// path checks the way that messages took.
func (e *end) path(c *conn) {
	e.Helper()
	if got := c.i.Path(); got == "" || e.cfg.Path != "" && got != e.cfg.Path {
		e.Errorf("Path() = %q, want %q", got, e.cfg.Path)
	}
}

func (c *conn) sendItems(items []item) {
	c.e.Helper()
	var m memory
	for _, it := range items {
		c.sendItem(&it, &m)
	}
}

func (c *conn) sendItem(it *item, m *memory) {
	e := c.e
	e.Helper()
	if it.Send == formBuffer {
		p := &driver.Packet{}
		b := c.i.(driver.BufferSender)
		e.until("get a send buffer", func() bool {
			err := b.SendBufGet(p)
			if err != nil && err != driver.ErrBusy {
				e.Fatalf("get a send buffer: %v", err)
			}
			return err == nil
		})
		if len(p.Buf) < e.caps.BufferSize {
			e.Fatalf("send buffer of %d bytes, want BufferSize, %d", len(p.Buf), e.caps.BufferSize)
		}
		fill(p.Buf[:it.Size], it.Seed)
		e.noErr("post buffer", b.SendBufPost(p, it.Size))
		c.endSend(p)
		return
	}
	r := e.room(it.Send, it.Size, m.alloc(e, it))
	r.fill(it.Seed)
	c.postSend(&r.p)
	c.endSend(&r.p)
	if err := r.verify(it.Size, it.Seed); err != nil {
		e.Fatalf("memory of send %+v: %v", *it, err)
	}
}

func (c *conn) recvItems(items []item) {
	c.e.Helper()
	var m memory
	for _, it := range items {
		c.recvItem(&it, &m)
	}
}

func (c *conn) recvItem(it *item, m *memory) {
	e := c.e
	e.Helper()
	if it.Probe {
		if i := e.named(); i != c.i {
			e.Fatalf("probe names the instance of %s, want that of %s", i.Peer(), c.i.Peer())
		}
	}
	if it.Recv == formBuffer {
		p := &driver.Packet{}
		c.endRecv(p)
		if p.N != it.Size || len(p.Buf) < p.N {
			e.Fatalf("message %+v: received %d bytes in a buffer of %d", *it, p.N, len(p.Buf))
		}
		if err := verify(p.Buf[:p.N], it.Seed); err != nil {
			e.Fatalf("message %+v: %v", *it, err)
		}
		e.noErr("release buffer", c.i.(driver.BufferReceiver).RecvBufRelease(p))
		return
	}
	r := e.room(it.Recv, it.Size, m.alloc(e, it))
	c.postRecv(&r.p)
	c.endRecv(&r.p)
	if r.p.N != it.Size {
		e.Fatalf("message %+v: received %d bytes", *it, r.p.N)
	}
	if err := r.verify(it.Size, it.Seed); err != nil {
		e.Fatalf("message %+v: %v", *it, err)
	}
}

func checkForms(e *end) {
	sizes := []int{0, 1, 100, 1000}
	if e.large {
		sizes = []int{1, 5000, 100_000, 300_000}
		if os.Getenv(envSoak) != "" {
			sizes[3] = 2 << 20
		}
		sizes = sizes[:e.times(4, 3)]
	}
	var items []item
	for _, s := range e.forms(false) {
		for _, r := range e.forms(true) {
			for _, n := range sizes {
				limit := e.caps.MaxMessage
				if s == formBuffer || r == formBuffer {
					limit = min(limit, e.caps.BufferSize)
				}
				k := len(items)
				items = append(items, item{
					Send: s, Recv: r, Size: min(n, limit), Seed: e.cfg.Seed + uint64(k),
					Arena: k%3 == 0, Probe: e.caps.Probe && k%2 == 1,
				})
			}
		}
	}
	e.bothWays(items)
}

// sizes are around each limit, each power of two up to 1 MiB (256 KiB in emulated machines), and the longest message, or
// 8 MiB (2 MiB there). With BYWASH_SOAK the powers go up to 4 MiB, and the longest message has 64 MiB.
func (e *end) sizes() []int {
	top, dense := e.times(8<<20, 2<<20), e.times(1<<20, 256<<10)
	if os.Getenv(envSoak) != "" {
		top, dense = 64<<20, 4<<20
	}
	top = min(top, e.caps.MaxMessage)
	var s []int
	around := func(n int) {
		for _, k := range []int{n - 1, n, n + 1} {
			if k >= 0 && k <= top {
				s = append(s, k)
			}
		}
	}
	for n := 1; n <= min(top, dense); n *= 2 {
		around(n)
	}
	around(e.caps.BufferSize)
	around(e.caps.MaxMessage)
	if !raceEnabled {
		around(top)
	}
	slices.Sort(s)
	return slices.Compact(s)
}

func checkSizes(e *end) {
	var items []item
	for _, arena := range []bool{false, true} {
		for k, n := range e.sizes() {
			it := item{Send: formIOV1, Recv: formIOV1, Size: n, Seed: e.cfg.Seed + uint64(n), Arena: arena}
			if k%2 == 1 && n <= e.caps.BufferSize {
				if e.caps.BufferRecv {
					it.Recv = formBuffer
				}
				if e.caps.BufferSend {
					it.Send = formBuffer
				}
			}
			items = append(items, it)
		}
	}
	e.bothWays(items)
}

// window sends or receives n messages with as many posted as depth allows.
type window struct {
	c       *conn
	packets []*driver.Packet
}

func newWindow(c *conn, depth, size int) *window {
	w := &window{c: c}
	for range depth {
		w.packets = append(w.packets, packet(make([]byte, size)))
	}
	return w
}

// recvRun receives n messages of size bytes, the kth with the pattern seed+k.
func (w *window) recvRun(n, size int, seed uint64) {
	w.c.e.Helper()
	d := len(w.packets)
	for k := range min(d, n) {
		w.c.postRecv(w.packets[k])
	}
	for k := range n {
		p := w.packets[k%d]
		w.c.endRecv(p)
		if p.N != size {
			w.c.e.Fatalf("message %d has %d bytes, want %d", k, p.N, size)
		}
		if err := verify(p.IOV[0][:size], seed+uint64(k)); err != nil {
			w.c.e.Fatalf("message %d of %d: %v", k, n, err)
		}
		if k+d < n {
			w.c.postRecv(p)
		}
	}
}

func (w *window) sendRun(n, size int, seed uint64) {
	w.c.e.Helper()
	d := len(w.packets)
	for k := range n {
		p := w.packets[k%d]
		if k >= d {
			w.c.endSend(p)
		}
		p.IOV[0] = p.IOV[0][:size]
		fill(p.IOV[0], seed+uint64(k))
		w.c.postSend(p)
	}
	for k := max(0, n-d); k < n; k++ {
		w.c.endSend(w.packets[k%d])
	}
}

type run struct {
	N, Size, Depth int
	Seed           uint64
}

var roleSendRuns = role("send-runs", func(e *end) {
	var runs []run
	e.args(&runs)
	c := e.parent.connectPeer()
	for _, r := range runs {
		newWindow(c, r.Depth, r.Size).sendRun(r.N, r.Size, r.Seed)
	}
	e.parent.sync()
	c.leave() // checkProbeOnce receives after that
})

func checkOrder(e *end) {
	n := 5000
	if e.large {
		n = 300
	}
	if raceEnabled || short() {
		n /= e.times(5, 15)
	}
	depth := max(1, min(e.caps.SendDepth, e.caps.RecvDepth, 32))
	var runs []run
	for _, size := range []int{8, 200, min(3000, e.caps.MaxMessage)} {
		runs = append(runs, run{n, size, depth, e.cfg.Seed + uint64(size)})
	}
	p, c := e.pair(roleSendRuns, runs)
	for _, r := range runs {
		newWindow(c, r.Depth, r.Size).recvRun(r.N, r.Size, r.Seed)
	}
	p.sync()
	p.join()
}

var roleTooLong = role("too-long", func(e *end) {
	e.parent.connectPeer().swaps(0)
	e.parent.sync()
})

func checkTooLong(e *end) {
	p, c := e.pair(roleTooLong, nil)
	if e.caps.MaxMessage < 1<<30 {
		q := packet(make([]byte, e.caps.MaxMessage+1))
		if e.large { // refused whatever the rdv data
			q.RdvData = make([]byte, e.caps.RdvSize)
		}
		err := c.i.SendPost(q)
		e.wantErr("send of MaxMessage+1 bytes", err, driver.ErrTooLong)
		e.wantErr("send of MaxMessage+1 bytes", err, driver.ErrInvalid)
	}
	if b, ok := c.i.(driver.BufferSender); ok {
		q := &driver.Packet{}
		e.noErr("get a send buffer", b.SendBufGet(q))
		n := len(q.Buf) + 1
		if err := b.SendBufPost(q, n); !errors.Is(err, driver.ErrInvalid) {
			e.Errorf("post %d bytes of a buffer of %d: got %v, want %v", n, len(q.Buf), err, driver.ErrInvalid)
		}
		e.noErr("give the buffer back", b.SendBufPost(q, -1))
	}
	c.swaps(0)
	p.sync()
	p.join()
}

func checkTruncation(e *end) {
	items := []item{}
	for k, n := range []int{1, 2, 100, min(5000, e.caps.MaxMessage), min(300_000, e.caps.MaxMessage)} {
		items = append(items, item{Send: formIOV1, Size: n, Seed: uint64(k)})
	}
	var all []item
	for range 4 {
		all = append(all, items...)
	}
	p, c := e.pair(roleSender, all)
	for k, it := range all {
		if k%2 == 1 { // the next message is fine
			it.Recv = formIOV1
			c.recvItem(&it, &memory{})
			continue
		}
		room := []int{0, it.Size - 1, it.Size / 2}[k%3]
		forms := e.forms(true)
		r := e.room(forms[k%(len(forms)-btoi(e.caps.BufferRecv))], room, nil)
		c.postRecv(&r.p)
		err := c.recvErr(&r.p)
		var t *driver.TruncatedError
		if !errors.As(err, &t) || t.Message != it.Size || t.Buffer != room {
			e.Errorf("message of %d bytes into %d: got %v (%T), want *TruncatedError with both sizes", it.Size, room, err, err)
		}
		e.wantErr("truncation", err, driver.ErrTruncated)
		c0 := r.p.Cursor()
		c0.Scatter(slices.Repeat([]byte{canary}, room))
		if k := disturbed(r.base); k >= 0 {
			e.Errorf("truncated receive wrote byte %d outside of its memory", k)
		}
	}
	p.sync()
	p.join()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

var roleExchange = role("exchange", func(e *end) {
	var a struct{ Peer, Instances, N int }
	e.args(&a)
	var cs []*conn
	for range a.Instances {
		cs = append(cs, e.parent.begin())
	}
	for _, c := range cs {
		c.waitUp()
	}
	exchange(e, cs, a.Peer*a.Instances, a.N)
	e.parent.sync()
})

// exchange swaps on all instances at once, each in its goroutine.
func exchange(e *end, cs []*conn, first, n int) {
	var wg sync.WaitGroup
	for k, c := range cs {
		wg.Go(func() {
			for r := range n {
				c.swaps((first+k)<<16 + r)
			}
		})
	}
	wg.Wait()
}

func checkManyInstances(e *end) {
	peers, instances := e.times(4, 2), e.times(3, 6)
	n := e.times(300, 100)
	if e.large || raceEnabled {
		n = 60
	}
	e.exchanges(peers, instances, n)
}

// exchanges connects several times to each of several peers at once, and swaps n times on each connection.
func (e *end) exchanges(peers, instances, n int) {
	e.Helper()
	var ps []*peer
	for k := range peers {
		ps = append(ps, e.peer(roleExchange, map[string]int{"Peer": k, "Instances": instances, "N": n}))
	}
	var cs []*conn
	for _, p := range ps {
		for range instances {
			cs = append(cs, p.begin())
		}
	}
	for _, c := range cs {
		c.waitUp()
	}
	exchange(e, cs, 0, n)
	for _, p := range ps {
		p.sync()
		p.join()
	}
}
