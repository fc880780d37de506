//go:build linux

package workload

import (
	"os"

	"github.com/bywash/bywash/driver"
	_ "github.com/bywash/bywash/shm"
)

// corruptBare is shm, except that it corrupts the last byte of the 100th message that
// is not one of the engine's own, and that it has nothing but what a driver
// must have.
type corruptBare struct{ driver.Driver }

type bareNIC struct{ driver.NIC }

type bareContext struct{ driver.Context }

type bareInstance struct {
	driver.Instance
	sent int
}

func init() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(corruptBare{d})
}

func (corruptBare) Name() string { return "corruptbare" }

func (l corruptBare) Query(h driver.Hints) (driver.NIC, error) {
	n, err := l.Driver.Query(h)
	if err != nil {
		return nil, err
	}
	return bareNIC{n}, nil
}

func bare(p *driver.Properties) *driver.Properties {
	q := *p
	c := &q.Capabilities
	c.BufferSize, c.BufferSend, c.BufferRecv, c.Probe, c.SendWait, c.RecvWait, c.Prefetch, c.OneSided = 0, false, false, false, false, false, false, nil
	return &q
}

func (n bareNIC) Properties() *driver.Properties { return bare(n.NIC.Properties()) }

func (n bareNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	return bareContext{c}, nil
}

func (c bareContext) Properties() *driver.Properties { return bare(c.Context.Properties()) }

func (c bareContext) Connect(url string) (driver.Instance, error) {
	i, err := c.Context.Connect(url)
	if err != nil {
		return nil, err
	}
	return &bareInstance{Instance: i}, nil
}

func (i *bareInstance) SendPost(p *driver.Packet) error {
	if b, ok := p.Contiguous(); ok && len(b) >= 64 && os.Getenv("LIAR") != "" {
		if i.sent++; i.sent == 100 {
			b[len(b)-1] ^= 0x40
		}
	}
	return i.Instance.SendPost(p)
}
