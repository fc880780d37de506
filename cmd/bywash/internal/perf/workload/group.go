//go:build linux

package workload

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix"
	"github.com/bywash/bywash/qnix/nic"
)

// One goroutine drives the four members of a process, so that the test measures the NIC and not the scheduling of eight
// processes on two processors.
const (
	groupTag  = 1
	groupPage = 64 * bench.KiB // bytes that aligning may take
)

// group is a case of barrier or broadcast: processes of a QNIX NIC, without the driver.
type group struct {
	stop    *bench.Stopper
	lead    bool
	blocks  bool
	name    nic.Name
	root    nic.Name // of the member that broadcasts
	members [bench.GroupEach]member
	arena   *driver.Arena
	joined  bool
}

// names takes the names from those of an end's members, which are the prefix, a dot and a number.
func (g *group) names(prefix string) (err error) {
	if g.name, err = nic.MakeName(prefix); err == nil {
		g.root, err = nic.MakeName(prefix + ".0")
	}
	return err
}

type member struct {
	nic  *nic.NIC
	p    *nic.Process
	buf  []byte
	desc [1]nic.Descriptor
}

func (l *link) checkGroup() error {
	if l.s.Driver != qnix.Name {
		return bench.Skipf("%s has no groups of processes", l.s.Driver)
	}
	return nil
}

func (l *link) prepareGroup() ([]byte, error) {
	g := &group{stop: l.s.Stop, lead: l.s.Lead, blocks: l.c.Blocking()}
	l.group = g // from here on finish cleans up
	var id [4]byte
	_, _ = rand.Read(id[:]) // never fails
	prefix := "perf" + hex.EncodeToString(id[:])
	if l.c.Test == bench.Bcast {
		var err error
		if g.arena, err = driver.NewArena(bench.GroupEach * (l.c.Size + groupPage)); err != nil {
			return nil, err
		}
	}
	for k := range g.members {
		if err := g.members[k].register(l, g.arena, fmt.Sprintf("%s.%d", prefix, k)); err != nil {
			return nil, err
		}
	}
	return []byte(prefix), g.names(prefix)
}

func (m *member) register(l *link, arena *driver.Arena, name string) (err error) {
	if m.nic, err = nic.Open(l.small.Properties().Device); err != nil {
		return err
	}
	m.p, err = m.nic.Register(l.s.Stop.Ctx, nic.Config{Name: name, Sends: 1, Receives: 1, Commands: 8})
	if err != nil || arena == nil {
		return err
	}
	m.buf = arena.Alloc(l.c.Size)
	_, at, ok := driver.ArenaOf(m.buf)
	if !ok {
		return errors.New("arena too small: please report this")
	}
	h, err := m.p.TranslateFile(m.buf, arena.FD(), int64(at), nic.Read|nic.Write)
	m.desc[0] = nic.Descriptor{Handle: h, Len: uint32(len(m.buf))}
	return err
}

// start joins the lead's group. It does not wait for the other end.
func (g *group) start(blob []byte) error {
	if !g.lead {
		if err := g.names(string(blob)); err != nil {
			return fmt.Errorf("the other side's group: %w", err)
		}
	}
	return each(g.members[:], func(m *member) error { return m.p.JoinGroup(0, g.name, bench.GroupSize) })
}

// each calls post for members.
func each(members []member, post func(*member) error) error {
	for k := range members {
		m := &members[k]
		if err := post(m); err != nil {
			return err
		}
		if err := m.p.Kick(); err != nil {
			return err
		}
	}
	return nil
}

// await waits for a doorbell of members.
func (g *group) await(members []member, doorbell func(*nic.Process, int) (nic.State, int), sp *bench.Spinner) error {
	for k := 0; k < len(members); {
		p := members[k].p
		seen := p.RingTail()
		state, _ := doorbell(p, 0)
		switch {
		case state == nic.Done:
			k++
			continue
		case state.Rung():
			return fmt.Errorf("qnix: NIC status: %v", state)
		case p.Gone():
			return nic.ErrGone
		case g.blocks:
			if err := p.Wait(seen, time.Second); err != nil {
				return err
			}
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
	return nil
}

func (g *group) run(j *bench.Round) error {
	sp := bench.NewSpinner(j.Stop, true) // the NIC may need the processor
	all := g.members[:]
	if !g.joined {
		if err := g.await(all, (*nic.Process).SendDoorbell, &sp); err != nil {
			return err
		}
		g.joined = true
	}
	return j.Timed(func(seq uint64) error {
		if j.Test == bench.Bcast {
			return g.broadcast(j, seq, &sp)
		}
		if err := each(all, func(m *member) error { return m.p.Barrier(0, g.name, bench.GroupSize) }); err != nil {
			return err
		}
		return g.await(all, (*nic.Process).SendDoorbell, &sp)
	})
}

func (g *group) broadcast(j *bench.Round, seq uint64, sp *bench.Spinner) error {
	sender, receivers := g.members[:0], g.members[:]
	if g.lead {
		sender, receivers = g.members[:1], g.members[1:]
	}
	err := each(receivers, func(m *member) error {
		x := nic.Message{Peer: g.root, Tag: groupTag, Len: j.Size, Flags: nic.Doorbell, Descriptors: m.desc[:]}
		return m.p.Post(nic.Receive, 0, &x)
	})
	if err != nil {
		return err
	}
	err = each(sender, func(m *member) error {
		if j.Validate {
			bench.Fill(m.buf, seq)
		}
		x := nic.Message{Tag: groupTag, Len: j.Size, Flags: nic.Doorbell, Descriptors: m.desc[:]}
		return m.p.Broadcast(0, g.name, &x, false)
	})
	if err != nil {
		return err
	}
	if err := g.await(sender, (*nic.Process).SendDoorbell, sp); err != nil {
		return err
	}
	if err := g.await(receivers, (*nic.Process).ReceiveDoorbell, sp); err != nil || !j.Validate {
		return err
	}
	for k := range receivers {
		if err := bench.Verify(receivers[k].buf, seq); err != nil {
			return err
		}
	}
	return nil
}

func (g *group) finish() error {
	var err error
	for k := range g.members {
		if n := g.members[k].nic; n != nil {
			err = errors.Join(err, n.Close()) // and deregisters
		}
	}
	if g.arena != nil {
		err = errors.Join(err, g.arena.Close())
	}
	return err
}
