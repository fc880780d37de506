package workload

import (
	"os"

	"github.com/bywash/bywash/driver"
	_ "github.com/bywash/bywash/shm"
)

// liar is shm, except that it spoils the last byte of the 100th message that
// is not one of the engine's own, and that it has nothing but what a driver
// must have.
type liar struct{ driver.Driver }

type liarNIC struct{ driver.NIC }

type liarContext struct{ driver.Context }

type liarInstance struct {
	driver.Instance
	sent int
}

func init() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(liar{d})
}

func (liar) Name() string { return "liar" }

func (l liar) Query(h driver.Hints) (driver.NIC, error) {
	n, err := l.Driver.Query(h)
	if err != nil {
		return nil, err
	}
	return liarNIC{n}, nil
}

func bare(p *driver.Properties) *driver.Properties {
	q := *p
	c := &q.Capabilities
	c.BufferSize, c.BufferSend, c.BufferRecv, c.Probe, c.SendWait, c.RecvWait, c.Prefetch, c.OneSided = 0, false, false, false, false, false, false, nil
	return &q
}

func (n liarNIC) Properties() *driver.Properties { return bare(n.NIC.Properties()) }

func (n liarNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	return liarContext{c}, nil
}

func (c liarContext) Properties() *driver.Properties { return bare(c.Context.Properties()) }

func (c liarContext) Connect(url string) (driver.Instance, error) {
	i, err := c.Context.Connect(url)
	if err != nil {
		return nil, err
	}
	return &liarInstance{Instance: i}, nil
}

func (i *liarInstance) SendPost(p *driver.Packet) error {
	if b, ok := p.Contiguous(); ok && len(b) >= 64 && os.Getenv("LIAR") != "" {
		if i.sent++; i.sent == 100 {
			b[len(b)-1] ^= 0x40
		}
	}
	return i.Instance.SendPost(p)
}
