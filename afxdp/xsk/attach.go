//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkOrJoin attaches the program, or joins the same program that another process has attached.
func (p *Program) linkOrJoin(dev device) error {
	// Another process may attach or detach its program meanwhile, so try again.
	const tries = 5
	var err error
	for range tries {
		if err = p.linkTo(dev); err == nil {
			return nil
		}
		if !isBusy(err) {
			return err
		}
		other, asked := attachedProgram(dev)
		if asked != nil {
			return errors.Join(err, asked)
		}
		if !other.Attached {
			continue
		}
		if err = p.join(other); err == nil || errors.Is(err, ErrProgramAttached) {
			return err
		}
	}
	return err
}

// linkTo attaches natively or generically, as configured. A device takes one program in either way, and a link never
// replaces one.
func (p *Program) linkTo(dev device) error {
	flags := map[Attachment]link.XDPAttachFlags{AttachNative: link.XDPDriverMode, AttachGeneric: link.XDPGenericMode}
	try := func(a Attachment) (err error) {
		if err := p.load(a); err != nil {
			return err
		}
		p.link, err = link.AttachXDP(link.XDPOptions{Program: p.prog, Interface: dev.index, Flags: flags[a]})
		if err != nil {
			p.link = nil
			return fmt.Errorf("%s mode: %w", a, needsBPF(err))
		}
		p.attached = a
		return nil
	}
	if p.cfg.Attach != AttachAuto {
		return try(p.cfg.Attach)
	}
	native := try(AttachNative)
	if native == nil || isBusy(native) {
		return native
	}
	if err := try(AttachGeneric); err != nil {
		return errors.Join(native, err)
	}
	p.native = native
	return nil
}

// isBusy reports whether an attachment failed because the device has another program.
func isBusy(err error) bool {
	return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
}

// attachedProgram returns the program that is attached to a device.
func attachedProgram(dev device) (netlink.LinkXdp, error) {
	l, err := netlink.LinkByIndex(dev.index)
	if err != nil {
		return netlink.LinkXdp{}, fmt.Errorf("ask netlink about %s: %w", dev.name, err)
	}
	if l.Attrs().Xdp == nil {
		return netlink.LinkXdp{}, nil
	}
	return *l.Attrs().Xdp, nil
}

// join joins a program that is attached: it holds its link, so that the program stays when the other process ends, and
// enters sockets in its map. The program must have the name of this package and the same instructions, of which the
// kernel keeps a digest.
func (p *Program) join(other netlink.LinkXdp) (err error) {
	id := ebpf.ProgramID(other.ProgId)
	foreign := func(why string) error {
		return fmt.Errorf("%w: program %d: %s (end its process, or: bpftool net show dev %s, and bpftool link detach id N or ip link set %s xdp off)",
			ErrProgramAttached, id, why, p.cfg.Device, p.cfg.Device)
	}
	prog, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return err // the other program was detached meanwhile
	}
	if err != nil {
		return foreign(err.Error())
	}
	defer prog.Close()
	theirs, err := prog.Info()
	if err != nil {
		return foreign(err.Error())
	}
	ours, err := p.prog.Info()
	if err != nil {
		return err
	}
	mode := Attachment(other.AttachMode) // XDP_ATTACHED_DRV is 1, XDP_ATTACHED_SKB 2
	if theirs.Name != p.name(mode) {
		return foreign(fmt.Sprintf("%q, not ours", theirs.Name))
	}
	if theirs.Tag != ours.Tag {
		return foreign(fmt.Sprintf("%q, which matches other frames", theirs.Name))
	}
	if p.cfg.Attach != AttachAuto && p.cfg.Attach != mode {
		return foreign(fmt.Sprintf("%q, in %s mode", theirs.Name, mode))
	}
	return p.adopt(theirs, id, mode)
}

// adopt replaces this program's map and link by those of the attached one.
func (p *Program) adopt(theirs *ebpf.ProgramInfo, id ebpf.ProgramID, mode Attachment) error {
	maps, ok := theirs.MapIDs()
	if !ok || len(maps) != 1 {
		return fmt.Errorf("program %d has %d maps, want 1", id, len(maps))
	}
	sockets, err := ebpf.NewMapFromID(maps[0])
	if err != nil {
		return fmt.Errorf("open the map of program %d: %w", id, err)
	}
	held, err := linkOf(id)
	if err != nil {
		return errors.Join(err, sockets.Close())
	}
	old := p.sockets
	p.sockets, p.link, p.attached = sockets, held, mode
	return old.Close()
}

// linkOf opens the link that attaches a program.
func linkOf(id ebpf.ProgramID) (link.Link, error) {
	var all link.Iterator
	defer all.Close()
	for all.Next() {
		if info, err := all.Link.Info(); err == nil && info.Program == id {
			return all.Take(), nil
		}
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("find the link of program %d: %w", id, err)
	}
	return nil, fmt.Errorf("find the link of program %d: %w", id, os.ErrNotExist)
}
