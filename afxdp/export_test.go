//go:build linux

package afxdp

import (
	"fmt"

	"github.com/bywash/bywash/driver"
)

// Describe tells the state of an instance's connection.
func Describe(i driver.Instance) string {
	var c *conn
	switch x := i.(type) {
	case *small:
		c = &x.conn
	case *large:
		c = &x.conn
	}
	n := c.ctx.nic
	n.mustLock()
	defer n.unlock()
	s := fmt.Sprintf("%v\n  %+v\n  free %d spare %d", c.lc, c.ctx.end.Stats(), len(n.free), len(n.spare))
	for k := range n.queues {
		q := &n.queues[k]
		st, _ := q.sock.Stats()
		s += fmt.Sprintf("\n  queue %d: out %d under %d posted %d stuck %v, %+v", k, q.out, q.under, q.posted, q.stuck, st)
	}
	return s
}

// Placed is how many bytes of a message a packet of the large track carries.
func Placed(i driver.Instance) int {
	c := &i.(*large).conn
	n := c.ctx.nic
	n.mustLock()
	defer n.unlock()
	return c.lc.MaxPlaced()
}

// FillRingEmpty is how many frames found no chunk to be received into.
func FillRingEmpty(i driver.Instance) (sum uint64) {
	var c *conn
	switch x := i.(type) {
	case *small:
		c = &x.conn
	case *large:
		c = &x.conn
	}
	for k := range c.ctx.nic.queues {
		st, err := c.ctx.nic.queues[k].sock.Stats()
		if err != nil {
			panic(err)
		}
		sum += st.FillRingEmpty
	}
	return sum
}
