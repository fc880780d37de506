//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// keepAlives is how often in the dead time the keep-alive looks at each connection. The second look after its last message
// finds it idle.
const keepAlives = 9

// enterTries is how often the keep-alive tries to enter a connection: an owner may be inside for longer, to register
// memory.
const enterTries = 1000

// keep keeps idle connections alive. A device notices that a peer is gone only when it sends, so every connection that
// has sent nothing lately posts a write of 0 bytes, which the peer's device must acknowledge. The peer's process does
// not see it and may be stopped.
func (c *opened) keep(live context.Context) {
	tick := time.NewTicker(c.opts.deadTime / keepAlives)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-live.Done():
			return
		}
		for _, n := range c.all() {
			n.ping()
		}
	}
}

// all returns the connections at this moment.
func (c *opened) all() []*conn {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.Conns.List()
}

// ping keeps a connection alive. An owner that polls all the time is outside for some nanoseconds now and then.
func (n *conn) ping() {
	for k := 0; !n.TryEnter(); k++ {
		if k == enterTries || n.State() != kit.StateUp {
			return
		}
		runtime.Gosched()
	}
	defer n.Leave()
	if n.State() != kit.StateUp {
		return
	}
	n.api.Settle()
	n.probe(&n.sq)
	// A receive is given back only after the completion that ends its window. Between two very slow machines such a
	// completion once stayed out. A further request makes the device look at earlier ones again.
	if n.rx != nil && n.rx != &n.sq && !n.rx.idle() {
		n.probe(n.rx)
	}
}

// probe posts a write of 0 bytes if nothing was posted on q since the last check. The last place is left to sendClose.
func (n *conn) probe(q *sendQueue) {
	if q.checked == q.next && q.room() > 1 && n.State() == kit.StateUp {
		wr, _ := q.add(requestControl, true)
		wr.Write(0, 0)
		q.probed, q.probe = true, q.next-1
		if err := q.post(); err != nil {
			n.broke(err)
		}
	}
	q.checked = q.next
}

// watch handles the device's asynchronous events.
func (c *opened) watch(live context.Context) {
	for {
		e, err := c.dev.GetAsyncEvent(live)
		if err != nil {
			return
		}
		switch e.Type {
		case ibv.EventDeviceFatal, ibv.EventCQErr, ibv.EventSRQErr:
			c.deviceGone(fmt.Errorf("RDMA device event: %v", e.Type))
		case ibv.EventSRQLimit:
			if c.shared != nil {
				c.shared.replace()
			}
		case ibv.EventQPLastWQE:
			c.lastReached(e.QP)
		case ibv.EventPortErr:
			if e.Port == c.num {
				c.lastDown.Store(time.Now().UnixNano())
				c.isDown.Store(true)
			}
		case ibv.EventPortActive, ibv.EventLIDChange, ibv.EventPKeyChange, ibv.EventGIDChange, ibv.EventClientRereg:
			if e.Port != c.num {
				continue
			}
			if e.Type == ibv.EventPortActive {
				c.isDown.Store(false)
			}
			c.renew()
		}
	}
}

// renew has later connections use the port's present addresses: a GID changes its index when addresses of the host
// come and go, and a subnet manager can assign another LID. A port that has left its network keeps the old ones: peers
// know it by its url.
func (c *opened) renew() {
	attr, err := c.dev.QueryPort(c.num)
	p := &port{dev: c.dev, num: c.num, attr: attr, gid: c.gid, pkey: c.pkey}
	if err == nil && p.readTables(c.opts) == nil && c.managers.Renew(p.forManagers(c.opts)) == nil {
		c.gid, c.pkey = p.gid, p.pkey
	}
}

// recently is how long a link that was down explains the failures of requests.
const recently = 30 * time.Second

// link says that the port's link is down, or was lately, or nothing: that is why requests fail. It does not ask the
// device, whose answer may take long: the caller may be draining the completion queues.
func (c *opened) link() string {
	if c.isDown.Load() {
		return fmt.Sprintf("; the link of port %d is down", c.num)
	}
	if at := c.lastDown.Load(); at != 0 {
		if ago := time.Since(time.Unix(0, at)); ago < recently {
			return fmt.Sprintf("; the link of port %d was down %v ago", c.num, ago.Round(time.Millisecond))
		}
	}
	return ""
}

// deviceGone breaks all connections.
func (c *opened) deviceGone(cause error) {
	err := fmt.Errorf("%w: %s: the device failed or was removed: %w", driver.ErrBroken, c.Props.Device, cause)
	go func() { // the caller may hold locks that this needs
		for _, n := range c.all() {
			n.Fail(err)
		}
	}()
}

func isUnavailable(err error) bool {
	var u *driver.UnavailableError
	return errors.As(err, &u)
}
