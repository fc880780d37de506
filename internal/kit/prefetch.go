package kit

import "github.com/bywash/bywash/driver"

// Prefetcher has the methods of [driver.Prefetcher] for an instance on the large track. A driver embeds it, beside
// [Large], in its type of instance. Init begins it.
type Prefetcher struct {
	conn  *Conn
	hooks PrefetchHooks
}

// PrefetchHooks has the driver's part of preparing a post. The owner calls it.
type PrefetchHooks interface {
	// Prefetch begins to make the memory of p, a send or a receive, reachable, and makes p prefetched; or it does
	// nothing and returns an error. It is called inside the connection.
	Prefetch(p *driver.Packet, sending bool) error

	// Unfetch undoes Prefetch. ErrInvalid if p is not prefetched.
	Unfetch(p *driver.Packet) error
}

// Init begins the prefetches of an instance on a connection.
func (f *Prefetcher) Init(c *Conn, hooks PrefetchHooks) { f.conn, f.hooks = c, hooks }

// SendPrefetch implements driver.Prefetcher.
func (f *Prefetcher) SendPrefetch(p *driver.Packet) error {
	return f.prefetch("prefetch send", p, true)
}

// RecvPrefetch implements driver.Prefetcher.
func (f *Prefetcher) RecvPrefetch(p *driver.Packet) error {
	return f.prefetch("prefetch receive", p, false)
}

// SendUnfetch implements driver.Prefetcher.
func (f *Prefetcher) SendUnfetch(p *driver.Packet) error { return f.unfetch("unfetch send", p) }

// RecvUnfetch implements driver.Prefetcher.
func (f *Prefetcher) RecvUnfetch(p *driver.Packet) error { return f.unfetch("unfetch receive", p) }

func (f *Prefetcher) prefetch(op string, p *driver.Packet, sending bool) error {
	c := f.conn
	if err := c.enterWith(op, p); err != nil {
		return err
	}
	defer c.Leave()
	switch err := f.hooks.Prefetch(p, sending); err {
	case nil:
		return nil
	case driver.ErrBusy:
		return c.Busy()
	default:
		return c.Fault(op, err)
	}
}

func (f *Prefetcher) unfetch(op string, p *driver.Packet) error {
	if err := f.hooks.Unfetch(p); err != nil {
		return f.conn.Fault(op, err)
	}
	return nil
}
