package perf

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// forger is shm with what a session needs, except that it spoils the last byte of the 100th message or one-sided
// operation of its process.
type forger struct{ driver.Driver }

type forgerNIC struct{ driver.NIC }

type forgerContext struct{ forgedContext }

type forgedContext interface {
	driver.Registrar
	driver.Knocker
}

type forgerSmall struct{ driver.BufferReceiver }

type forgerLarge struct {
	driver.OneSided
	puts map[*driver.Op]bool
}

var forgeries atomic.Int64

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
	if len(b) >= 200 && os.Getenv("FORGER") != "" && forgeries.Add(1) == 100 {
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

// A session runs its tests and those of drivers that it has, with every byte
// checked.
func TestSessionRunsItsTests(t *testing.T) {
	tests := []Test{TagLat, TagBW, AMRate, Lat, BW, Rate, PutBW, GetBW, GetLat, FaddLat}
	c := config(SessionName, tests...)
	c.Validate = true
	c.Sizes = []int{8, 4096, 100000}
	if err := c.SetRails("shm"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var got collector
	if err := Run(ctx, c, &got); err != nil {
		t.Fatal(err)
	}
	for _, m := range got.missing {
		if m.Test != Rate && m.Test != AMRate { // too long for an active message
			t.Errorf("%s", m)
		}
	}
}

func TestRailsGoWithASession(t *testing.T) {
	if err := (&Config{Drivers: []string{"shm"}}).SetRails("shm"); err == nil {
		t.Error("rails of a driver are taken")
	}
	if err := (&Config{Drivers: []string{SessionName}}).SetRails("nothing"); err == nil {
		t.Error("a rail that does not exist is taken")
	}
}

func TestSessionFindsWhatWasCorrupted(t *testing.T) {
	for _, test := range []Test{Rate, AMRate, PutBW, GetBW, GetLat} {
		for _, lie := range []string{"", "yes"} {
			t.Setenv("FORGER", lie)
			forgeries.Store(0)
			c := config(SessionName, test)
			c.Validate, c.Sizes = true, []int{200}
			if err := c.SetRails("forger"); err != nil {
				t.Fatal(err)
			}
			err := Run(t.Context(), c, &collector{})
			if lie == "" && err != nil {
				t.Errorf("%s: %v", test, err)
			}
			if lie != "" && (err == nil || !strings.Contains(err.Error(), "validation failed")) {
				t.Errorf("%s: a spoilt byte gave %v", test, err)
			}
		}
	}
}
