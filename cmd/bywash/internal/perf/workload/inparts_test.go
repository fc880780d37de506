//go:build linux

package workload

import (
	"context"
	"fmt"

	"github.com/bywash/bywash/driver"
)

// inParts is shm, except that rdv data of the large track comes in parts, as
// updates: a message does not move before its sender has all of them. amenderbare
// has nothing else on the small track but what a driver must have.
type inParts struct {
	driver.Driver
	bare bool
}

func init() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(inParts{d, false})
	driver.Register(inParts{d, true})
}

func (a inParts) Name() string {
	if a.bare {
		return "inpartsbare"
	}
	return "inparts"
}

func (a inParts) Query(h driver.Hints) (driver.NIC, error) {
	n, err := a.Driver.Query(h)
	switch {
	case err != nil:
		return nil, err
	case h.Track == driver.Large:
		return amendNIC{n}, nil
	case a.bare:
		return bareNIC{n}, nil
	}
	return n, nil
}

type amendNIC struct{ driver.NIC }

type amendContext struct{ driver.Context }

// Rdv data and updates begin with the number of parts, or of the part.
func amended(p *driver.Properties) *driver.Properties {
	q := *p
	c := &q.Capabilities
	c.RdvUpdate, c.RdvSize, c.Prefetch, c.OneSided = true, 1+c.RdvSize, false, nil
	return &q
}

func (n amendNIC) Properties() *driver.Properties { return amended(n.NIC.Properties()) }

func (n amendNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	return amendContext{c}, nil
}

func (c amendContext) Properties() *driver.Properties { return amended(c.Context.Properties()) }

func (c amendContext) Connect(url string) (driver.Instance, error) {
	i, err := c.Context.Connect(url)
	if err != nil {
		return nil, err
	}
	return &amendInstance{Instance: i, size: c.Context.Properties().Capabilities.RdvSize}, nil
}

// amendment is a packet that is posted.
type amendment struct {
	p           *driver.Packet
	rdv         []byte // all of it
	first       []byte // the part of it that a receive passes on at once
	note        []byte // the update that is out
	parts, next int
	asked       int
	sent        bool // a send that is posted below
}

type amendInstance struct {
	driver.Instance
	size         int
	posts        int
	sends, recvs [128]amendment
}

// late is the number of an update that is not needed.
const late = 0xff

func find(list *[128]amendment, p *driver.Packet) *amendment {
	for k := range list {
		if list[k].p == p {
			return &list[k]
		}
	}
	return nil
}

func (i *amendInstance) room(list *[128]amendment, p *driver.Packet) *amendment {
	a := find(list, nil)
	if a.rdv == nil {
		a.rdv, a.first, a.note = make([]byte, 0, i.size), make([]byte, 0, 1+i.size), make([]byte, 0, 1+i.size)
	}
	a.p, a.next, a.asked, a.sent = p, 0, 0, false
	return a
}

func (a *amendment) part(k int) []byte {
	return a.rdv[k*len(a.rdv)/a.parts : (k+1)*len(a.rdv)/a.parts]
}

func (i *amendInstance) RecvPost(p *driver.Packet) error {
	if err := i.Instance.RecvPost(p); err != nil {
		return err
	}
	i.posts++
	a := i.room(&i.recvs, p)
	a.parts = 1 + i.posts%4
	a.rdv = append(a.rdv[:0], p.RdvData...)
	a.first = append(append(a.first[:0], byte(a.parts)), a.part(0)...)
	a.next = 1
	p.RdvData = a.first
	return nil
}

// RecvRdvUpdate lets updates of a later message go before those of an earlier
// one, and adds one that may come when the message is complete.
func (i *amendInstance) RecvRdvUpdate(p *driver.Packet) ([]byte, error) {
	a := find(&i.recvs, p)
	if a == nil {
		return nil, fmt.Errorf("%w: an update of a receive that is not posted was asked for", driver.ErrInvalid)
	}
	a.asked++
	switch {
	case a.asked < 10*(a.parts%3), a.next > a.parts, a.parts == 1:
		return nil, nil
	case a.next == a.parts:
		a.note = append(a.note[:0], late)
	default:
		a.note = append(append(a.note[:0], byte(a.next)), a.part(a.next)...)
	}
	a.next++
	return a.note, nil
}

func (i *amendInstance) SendPost(p *driver.Packet) error {
	if len(p.RdvData) == 0 {
		return driver.ErrInvalid
	}
	a := i.room(&i.sends, p)
	a.parts, a.next = int(p.RdvData[0]), 1
	a.rdv = append(a.rdv[:0], p.RdvData[1:]...)
	if err := i.release(a); err != nil {
		a.p = nil
		return err
	}
	return nil
}

// release posts a send that has all parts.
func (i *amendInstance) release(a *amendment) error {
	if a.sent || a.next < a.parts {
		return nil
	}
	a.p.RdvData = a.rdv
	err := i.Instance.SendPost(a.p)
	a.sent = err == nil
	return err
}

func (i *amendInstance) SendRdvUpdate(p *driver.Packet, b []byte) error {
	a := find(&i.sends, p)
	switch {
	case a == nil:
		return fmt.Errorf("%w: an update of a send that is not posted", driver.ErrInvalid)
	case len(b) == 1 && b[0] == late && a.next == a.parts:
		return nil
	case len(b) == 0 || int(b[0]) != a.next || a.sent:
		return fmt.Errorf("%w: update %x where %d was due", driver.ErrInvalid, b, a.next)
	}
	a.rdv = append(a.rdv, b[1:]...)
	a.next++
	if err := i.release(a); err != nil && err != driver.ErrBusy {
		return err
	}
	return nil
}

func (i *amendInstance) SendPoll(p *driver.Packet) (bool, error) {
	a := find(&i.sends, p)
	if err := i.release(a); err != nil && err != driver.ErrBusy {
		return true, err
	}
	if !a.sent {
		return false, nil
	}
	done, err := i.Instance.SendPoll(p)
	if done {
		a.p = nil
	}
	return done, err
}

// SendWait sleeps until ctx ends where only an update could help.
func (i *amendInstance) SendWait(ctx context.Context, p *driver.Packet) error {
	a := find(&i.sends, p)
	if err := i.release(a); err != nil && err != driver.ErrBusy {
		return err
	}
	if !a.sent {
		<-ctx.Done()
		return ctx.Err()
	}
	err := i.Instance.(driver.SendWaiter).SendWait(ctx, p)
	if ctx.Err() == nil || err == nil {
		a.p = nil
	}
	return err
}

func (i *amendInstance) RecvPoll(p *driver.Packet) (bool, error) {
	done, err := i.Instance.RecvPoll(p)
	if done {
		find(&i.recvs, p).p = nil
	}
	return done, err
}

func (i *amendInstance) RecvWait(ctx context.Context, p *driver.Packet) error {
	err := i.Instance.(driver.RecvWaiter).RecvWait(ctx, p)
	if err == nil {
		find(&i.recvs, p).p = nil
	}
	return err
}
