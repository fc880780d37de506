package link_test

import (
	"fmt"
	"log"

	"github.com/bywash/bywash/afxdp/internal/link"
)

// pipe carries packets to the endpoint at its other end. It is the program, too.
type pipe struct {
	name string
	e    *link.Endpoint
	to   *pipe
	in   [][]byte
	c    *link.Conn
	got  []string
}

func (p *pipe) Get() (link.Frame, bool)     { return link.Frame{Data: make([]byte, 1500)}, true }
func (p *pipe) GetLong() (link.Frame, bool) { return p.Get() }
func (p *pipe) Put(uint64)                  {}
func (p *pipe) Sending(uint64) bool         { return false }
func (p *pipe) Address(link.Route) []byte   { return nil }
func (p *pipe) Send(_ link.Route, f link.Frame, n int) bool {
	p.to.in = append(p.to.in, append([]byte(nil), f.Data[:n]...))
	return true
}

func (p *pipe) Up(c *link.Conn)                                 { p.c = c }
func (p *pipe) Down(_ *link.Conn, err error)                    { fmt.Println(p.name, "ends:", err) }
func (p *pipe) Gone(*link.Conn)                                 {}
func (p *pipe) Place(*link.Conn, *link.Placement)               {}
func (p *pipe) Fill(*link.Conn, *link.Transfer, uint64, []byte) {}
func (p *pipe) Placed(*link.Conn, *link.Transfer)               {}
func (p *pipe) Deliver(c *link.Conn, f link.Fragment) {
	p.got = append(p.got, string(f.Data))
	c.Release(f.ID)
}

// turn gives an endpoint what has arrived, and the time.
func (p *pipe) turn(now link.Time) {
	in := p.in
	p.in = nil
	for _, b := range in {
		p.e.Input(now, []byte(p.to.name), link.Frame{Data: b})
	}
	p.e.Flush(now)
	if p.e.Next() <= now {
		p.e.Tick(now)
	}
}

// Two endpoints in one program connect, and one sends the other a message.
func Example() {
	a, b := &pipe{name: "a"}, &pipe{name: "b"}
	a.to, b.to = b, a
	for k, p := range []*pipe{a, b} {
		var err error
		cfg := link.Config{ID: uint64(k + 1), Secret: []byte("from the launcher"), MTU: 1500}
		if p.e, err = link.NewEndpoint(cfg, p, p); err != nil {
			log.Fatal(err)
		}
	}
	const route = 1 // the carriers know but one way
	if _, err := a.e.Dial(0, route, 2, []byte("hello"), nil); err != nil {
		log.Fatal(err)
	}
	if _, err := b.e.Listen(0, route, 1, nil, nil); err != nil {
		log.Fatal(err)
	}
	now := link.Time(0)
	run := func(done func() bool) {
		for !done() {
			now += 10_000
			a.turn(now)
			b.turn(now)
		}
	}
	run(func() bool { return a.c != nil && b.c != nil })
	fmt.Printf("b received %q\n", b.c.Hello())

	f, _ := a.Get()
	n := copy(f.Data[link.HeaderSize:], "a message")
	a.c.Post(now, f, n, false)
	run(func() bool { return len(b.got) == 1 && a.c.Unacknowledged() == 0 })
	fmt.Println("b got:", b.got[0])

	a.c.Close(now, false)
	run(func() bool { return b.e.Conns() == 0 })
	// Output:
	// b received "hello"
	// b got: a message
	// b ends: closed
}
