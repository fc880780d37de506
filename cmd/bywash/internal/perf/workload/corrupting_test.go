//go:build linux

package workload

import (
	"os"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// corrupting is shm with what a session needs, except that it corrupts the last byte of the 100th message or one-sided
// operation of its process.
type corrupting struct{ driver.Driver }

type corruptingNIC struct{ driver.NIC }

type corruptingContext struct{ forgedContext }

type forgedContext interface {
	driver.Registrar
	driver.ConnectRequestReceiver
}

type corruptingSmall struct{ driver.BufferReceiver }

type corruptingLarge struct {
	driver.OneSided
	puts map[*driver.Op]bool
}

var Corrupted atomic.Int64

func init() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(corrupting{d})
}

func (corrupting) Name() string { return "corrupting" }

func (f corrupting) Query(h driver.Hints) (driver.NIC, error) {
	n, err := f.Driver.Query(h)
	if err != nil {
		return nil, err
	}
	return corruptingNIC{n}, nil
}

func (n corruptingNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	return corruptingContext{c.(forgedContext)}, nil
}

func (c corruptingContext) Connect(url string) (driver.Instance, error) {
	i, err := c.forgedContext.Connect(url)
	if err != nil {
		return nil, err
	}
	if small, ok := i.(driver.BufferReceiver); ok {
		return corruptingSmall{small}, nil
	}
	return corruptingLarge{i.(driver.OneSided), map[*driver.Op]bool{}}, nil
}

// corrupt corrupts what begins or ends with the 100th.
func corrupt(b []byte) {
	if len(b) >= 200 && os.Getenv("FORGER") != "" && Corrupted.Add(1) == 100 {
		b[len(b)-1] ^= 0x40
	}
}

func (i corruptingSmall) SendPost(p *driver.Packet) error {
	b, _ := p.Contiguous()
	corrupt(b)
	return i.BufferReceiver.SendPost(p)
}

func (i corruptingLarge) PutPost(op *driver.Op) error {
	i.puts[op] = true
	corrupt(op.Local)
	return i.OneSided.PutPost(op)
}

func (i corruptingLarge) OpPoll(op *driver.Op) (done bool, err error) {
	if done, err = i.OneSided.OpPoll(op); done && !i.puts[op] {
		corrupt(op.Local)
	}
	return done, err
}
