//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A Program is an XDP program on one device. Matching frames go to the socket on the queue on which they arrived, and
// are dropped if there is none; all others pass to the kernel. A bpf_link attaches the program. The link ends with the
// process, even after kill -9, and the kernel refuses it if another program is attached.
//
// Processes that use disjoint queues of a device share the program if they match the same frames: the second process
// finds the first one's program, which needs CAP_SYS_ADMIN, and the program stays until the last process has ended.
//
// All methods may be called from any goroutine.
type Program struct {
	cfg      ProgramConfig
	attached Attachment
	native   error // with AttachAuto: why the program is not native

	prog    *ebpf.Program
	sockets *ebpf.Map
	link    link.Link

	closing sync.Once
	err     error
}

// The names of this package's programs, as bpftool shows them.
const (
	programName     = "bywash_xsk"
	programNameFrag = "bywash_xsk_frag" // the program accepts multi-buffer frames
)

// Attach loads a program and attaches it to the device. It needs CAP_BPF and CAP_NET_ADMIN and, for bpf_link, Linux
// 5.9. It returns ErrProgramAttached if the device has another program.
func Attach(cfg ProgramConfig) (*Program, error) {
	p := &Program{cfg: cfg}
	if err := p.attach(); err != nil {
		return nil, fmt.Errorf("xsk: attach a program to %s: %w", cfg.Device, errors.Join(err, p.Close()))
	}
	return p, nil
}

func (p *Program) attach() error {
	if err := p.cfg.Match.check(); err != nil {
		return err
	}
	dev, queues, err := inspect(p.cfg.Device)
	if err != nil {
		return err
	}
	p.sockets, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: programName, Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4,
		MaxEntries: uint32(max(queues.MaxRx, queues.Rx, 1)),
	})
	if err != nil {
		return fmt.Errorf("create the map of sockets: %w", needsBPF(err))
	}
	return p.linkOrJoin(dev)
}

// load loads the program for a way to attach it.
func (p *Program) load(a Attachment) error {
	spec := &ebpf.ProgramSpec{
		Name: p.name(a), Type: ebpf.XDP, License: "BSD",
		Instructions: p.cfg.Match.instructions(p.sockets.FD()),
	}
	if spec.Name == programNameFrag {
		spec.Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		return fmt.Errorf("load the program: %w", needsBPF(err))
	}
	if p.prog != nil {
		_ = p.prog.Close()
	}
	p.prog = prog
	return nil
}

// name returns the name of the program that is attached in that way. In the stack, a program for frames in several buffers
// makes the kernel copy every frame to another kind of page, which costs short frames a fifth of their latency. For other
// programs the kernel makes each frame one buffer, and long frames take no longer.
func (p *Program) name(a Attachment) string {
	if p.cfg.MultiBuffer && a == AttachNative {
		return programNameFrag
	}
	return programName
}

func inspect(name string) (dev device, q Queues, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return dev, q, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	if dev, err = lookupDevice(fd, name); err != nil {
		return dev, q, err
	}
	q, err = dev.queues(fd)
	return dev, q, err
}

func needsBPF(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("needs root (CAP_BPF and CAP_NET_ADMIN): %w", err)
	}
	return err
}

// Attached returns how the program is attached: AttachNative or AttachGeneric. With [AttachAuto] the error contains why
// it is not native.
func (p *Program) Attached() (Attachment, error) { return p.attached, p.native }

// Add directs the matching frames of a socket's queue to the socket. It replaces an earlier socket on that queue.
// Closing the socket removes it.
func (p *Program) Add(s *Socket) error {
	if err := p.sockets.Put(uint32(s.cfg.Queue), uint32(s.fd)); err != nil {
		return fmt.Errorf("xsk: send frames of %s queue %d to the socket: %w", p.cfg.Device, s.cfg.Queue, err)
	}
	return nil
}

// Remove makes the program drop matching frames of a queue from now on.
func (p *Program) Remove(queue int) error {
	if err := p.sockets.Delete(uint32(queue)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("xsk: drop frames of %s queue %d: %w", p.cfg.Device, queue, err)
	}
	return nil
}

// Close detaches the program and frees it. Further calls return the same result.
func (p *Program) Close() error {
	p.closing.Do(func() {
		var errs []error
		if p.link != nil {
			errs = append(errs, p.link.Close())
		}
		// Both take a nil receiver.
		errs = append(errs, p.prog.Close(), p.sockets.Close())
		if err := errors.Join(errs...); err != nil {
			p.err = fmt.Errorf("xsk: detach from %s: %w", p.cfg.Device, err)
		}
	})
	return p.err
}
