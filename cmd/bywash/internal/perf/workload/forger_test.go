package workload

import (
	"os"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// forger is shm with what a session needs, except that it spoils the last byte of the 100th message or one-sided
// operation of its process.
type forger struct{ driver.Driver }

type forgerNIC struct{ driver.NIC }

type forgerContext struct{ forgedContext }

type forgedContext interface {
	driver.Registrar
	driver.ConnectRequestReceiver
}

type forgerSmall struct{ driver.BufferReceiver }

type forgerLarge struct {
	driver.OneSided
	puts map[*driver.Op]bool
}

var Forgeries atomic.Int64

func init() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(forger{d})
}

func (forger) Name() string { return "forger" }

func (f forger) Query(h driver.Hints) (driver.NIC, error) {
	n, err := f.Driver.Query(h)
	if err != nil {
		return nil, err
	}
	return forgerNIC{n}, nil
}

func (n forgerNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	return forgerContext{c.(forgedContext)}, nil
}

func (c forgerContext) Connect(url string) (driver.Instance, error) {
	i, err := c.forgedContext.Connect(url)
	if err != nil {
		return nil, err
	}
	if small, ok := i.(driver.BufferReceiver); ok {
		return forgerSmall{small}, nil
	}
	return forgerLarge{i.(driver.OneSided), map[*driver.Op]bool{}}, nil
}

// forge spoils what begins or ends with the 100th.
func forge(b []byte) {
	if len(b) >= 200 && os.Getenv("FORGER") != "" && Forgeries.Add(1) == 100 {
		b[len(b)-1] ^= 0x40
	}
}

func (i forgerSmall) SendPost(p *driver.Packet) error {
	b, _ := p.Contiguous()
	forge(b)
	return i.BufferReceiver.SendPost(p)
}

func (i forgerLarge) PutPost(op *driver.Op) error {
	i.puts[op] = true
	forge(op.Local)
	return i.OneSided.PutPost(op)
}

func (i forgerLarge) OpPoll(op *driver.Op) (done bool, err error) {
	if done, err = i.OneSided.OpPoll(op); done && !i.puts[op] {
		forge(op.Local)
	}
	return done, err
}
