package drivertest

import (
	"bytes"
	"slices"

	"github.com/bywash/bywash/driver"
)

func hasRdv(p *driver.Properties) bool       { return p.Capabilities.RdvSize > 0 }
func hasRdvUpdate(p *driver.Properties) bool { return p.Capabilities.RdvUpdate }
func hasPrefetch(p *driver.Properties) bool  { return p.Capabilities.Prefetch }

func checkRdvSize(e *end) {
	p, c := e.pair(roleSender, []item{})
	var posted []*driver.Packet
	for k, n := range []int{0, 1, 100, 1 << 20, e.times(8, 2) << 20} {
		if k >= e.caps.RecvDepth || n > e.caps.MaxMessage {
			break
		}
		for _, f := range []form{formIOV1, e.forms(true)[len(posted)%len(e.forms(true))]} {
			if f == formBuffer || len(posted) >= e.caps.RecvDepth {
				continue
			}
			r := e.room(f, n, nil)
			e.noErr("post receive", c.i.RecvPost(&r.p))
			if got := len(r.p.RdvData); got == 0 || got > e.caps.RdvSize {
				e.Errorf("receive of %d bytes (%s) has %d bytes of rdv data, want 1 to RdvSize, %d", n, f, got, e.caps.RdvSize)
			}
			posted = append(posted, &r.p)
		}
	}
	for _, q := range posted {
		e.noErr("cancel", c.i.RecvCancel(q))
		e.wantErr("cancelled receive", c.recvErr(q), driver.ErrCanceled)
	}
	p.sync()
	p.join()
}

// roleTwoRecv receives one message on each of two instances.
var roleTwoRecv = role("receive-on-two", func(e *end) {
	a, b := e.parent.connectPeer(), e.parent.connectPeer()
	ra, rb := e.room(formIOV1, rdvTrial, nil), e.room(formIOV1, rdvTrial, nil)
	a.postRecv(&ra.p)
	b.postRecv(&rb.p)
	a.endRecv(&ra.p)
	b.endRecv(&rb.p)
	e.noErr("first instance", ra.verify(rdvTrial, 1))
	e.noErr("second instance", rb.verify(rdvTrial, 2))
	e.parent.sync()
})

const rdvTrial = 10_000

func checkRdvDamaged(e *end) {
	p := e.peer(roleTwoRecv, nil)
	a, b := p.connectPeer(), p.connectPeer()
	pa, pb := packet(make([]byte, rdvTrial)), packet(make([]byte, rdvTrial))
	fill(pa.IOV[0], 1)
	fill(pb.IOV[0], 2)
	a.takeRdv(pa)
	b.takeRdv(pb)
	good, foreign := pa.RdvData, pb.RdvData
	try := func(what string, rdv []byte) {
		e.Helper()
		pa.RdvData = rdv
		if err := a.i.SendPost(pa); err != nil {
			e.wantErr("send with "+what, err, driver.ErrInvalid)
			return
		}
		e.Fatalf("send with %s: accepted, want %v", what, driver.ErrInvalid)
	}
	try("no rdv data", nil)
	for n := range good {
		try("truncated rdv data", good[:n:n])
	}
	try("zeros as rdv data", make([]byte, len(good)))
	try("ones as rdv data", bytes.Repeat([]byte{0xff}, len(good)))
	try("rdv data beyond RdvSize", slices.Concat(good, make([]byte, e.caps.RdvSize)))
	try("rdv data of another instance", foreign)
	for k := range good {
		bad := slices.Clone(good)
		bad[k] ^= 1 << (k % 8)
		try("a flipped bit in rdv data", bad)
	}
	pa.RdvData = good
	e.noErr("send", a.i.SendPost(pa))
	a.posted(pa)
	e.noErr("send", b.i.SendPost(pb))
	b.posted(pb)
	a.endSend(pa)
	b.endSend(pb)
	p.sync()
	p.join()
}

func checkRdvUpdateDamaged(e *end) {
	it := item{Send: formIOV1, Recv: formIOV1, Size: min(8<<20, e.caps.MaxMessage), Seed: 5}
	p, c := e.pair(roleReceiver, []item{it})
	u := c.i.(driver.RdvUpdater)
	r := e.room(formIOV1, it.Size, nil)
	r.fill(it.Seed)
	c.postSend(&r.p)
	for _, bad := range [][]byte{nil, {0}, make([]byte, 12), bytes.Repeat([]byte{0xff}, 32), make([]byte, e.caps.RdvSize), make([]byte, 4096)} {
		e.wantErr("damaged update", u.SendRdvUpdate(&r.p, bad), driver.ErrInvalid)
	}
	c.endSend(&r.p)
	p.sync()
	p.join()
}

// rolePrefetch sends n messages that it has prefetched.
var rolePrefetch = role("send-prefetched", func(e *end) {
	var sizes []int
	e.args(&sizes)
	c := e.parent.connectPeer()
	f := c.i.(driver.Prefetcher)
	for k, n := range sizes {
		p := packet(make([]byte, n))
		fill(p.IOV[0], uint64(k))
		e.noErr("prefetch send", f.SendPrefetch(p))
		if k%2 == 1 {
			e.noErr("unfetch send", f.SendUnfetch(p))
		}
		c.postSend(p)
		c.endSend(p)
	}
	e.parent.sync()
})

func checkPrefetch(e *end) {
	var sizes []int
	for _, n := range []int{1, 1000, 1 << 16, 1 << 20, e.times(4, 2) << 20} {
		n = min(n, e.caps.MaxMessage)
		sizes = append(sizes, n, n, n, n)
	}
	p, c := e.pair(rolePrefetch, sizes)
	f := c.i.(driver.Prefetcher)
	for k, n := range sizes {
		r := e.room(formIOV1, n, nil)
		if k%4 >= 1 {
			// More was prefetched than comes, some of which may be registered in other parts.
			r = e.room(formIOV1, min(n+n/2+1<<20, e.caps.MaxMessage), nil)
		}
		e.noErr("prefetch receive", f.RecvPrefetch(&r.p))
		if k%4 >= 2 {
			e.noErr("unfetch receive", f.RecvUnfetch(&r.p))
		}
		if k%2 == 1 {
			r.p.IOV[0] = r.p.IOV[0][:n]
		}
		c.postRecv(&r.p)
		c.endRecv(&r.p)
		e.noErr("prefetched message", r.verify(n, uint64(k)))
	}
	p.sync()
	p.join()
}

func checkPrefetchOther(e *end) {
	p, c := e.pair(roleSender, []item{{Send: formIOV1, Size: 5000, Seed: 9}})
	f := c.i.(driver.Prefetcher)
	first, second := make([]byte, 4096), make([]byte, 5000)
	q := packet(first)
	e.noErr("prefetch receive", f.RecvPrefetch(q))
	q.IOV = [][]byte{second}
	e.wantErr("post with other memory than was prefetched", c.i.RecvPost(q), driver.ErrInvalid)
	e.noErr("unfetch receive", f.RecvUnfetch(q))
	e.wantErr("unfetch of what is not prefetched", f.RecvUnfetch(q), driver.ErrInvalid)
	c.postRecv(q)
	c.endRecv(q)
	e.noErr("message after unfetch", verify(second, 9))
	p.sync()
	p.join()
}
