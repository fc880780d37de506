//go:build linux

package veth

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// route makes the middle namespace forward, and the ends use it.
func (p *Pair) route(cfg Config) error {
	err := p.Router[0].Do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			return fmt.Errorf("turn IPv4 forwarding on: %w", err)
		}
		if cfg.NoIPv6 {
			return nil
		}
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0); err != nil {
			return fmt.Errorf("turn IPv6 forwarding on: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range p.Ends {
		if err := p.Ends[i].routeBy(&p.Router[i]); err != nil {
			return err
		}
		if cfg.Rate != 0 {
			if err := p.Router[i].shape(cfg.Rate, cfg.MTU); err != nil {
				return fmt.Errorf("shape %s: %w", p.Router[i].Device, explain(err))
			}
		}
		if cfg.Loss != 0 {
			if err := p.drop(cfg.Loss, &p.Router[i]); err != nil {
				return fmt.Errorf("drop frames at %s: %w", p.Router[i].Device, err)
			}
		}
	}
	return nil
}

// routeBy makes the router the default next hop.
func (e *End) routeBy(router *End) error {
	return in(e.Namespace, func(h *netlink.Handle) error {
		for _, by := range []netip.Prefix{router.IPv4, router.IPv6} {
			if !by.IsValid() {
				continue
			}
			route := &netlink.Route{LinkIndex: e.Index, Gw: by.Addr().AsSlice()}
			if err := h.RouteAdd(route); err != nil {
				return fmt.Errorf("route by %s: %w", by.Addr(), err)
			}
		}
		return nil
	})
}

const (
	minRate    = 100_000
	maxRate    = 1<<32 - 1
	headerRoom = 32 // at least the bytes of an Ethernet frame beyond the MTU
)

// shape lets a device send no more than rate bytes a second.
func (e *End) shape(rate uint64, mtu int) error {
	return in(e.Namespace, func(h *netlink.Handle) error {
		burst := max(uint32(rate/250), uint32(2*(mtu+headerRoom)))
		return h.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: e.Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       rate, Buffer: netlink.Xmittime(rate, burst), Limit: max(uint32(rate/5), 2*burst),
		})
	})
}

// drop attaches a program that drops a share of the frames a device receives.
func (p *Pair) drop(share float64, e *End) error {
	if !(share > 0 && share <= 1) {
		return fmt.Errorf("a share of %v of the frames cannot be dropped", share)
	}
	const pass = 2 // XDP_PASS; XDP_DROP is 1
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "veth_loss",
		Type: ebpf.XDP,
		Instructions: asm.Instructions{
			asm.FnGetPrandomU32.Call(),
			asm.Mov.Reg(asm.R1, asm.R0),
			asm.Mov.Imm(asm.R0, pass),
			asm.LoadImm(asm.R2, int64(share*math.MaxUint32), asm.DWord),
			asm.JGT.Reg(asm.R1, asm.R2, "out"),
			asm.Mov.Imm(asm.R0, 1),
			asm.Return().WithSymbol("out"),
		},
		License: "BSD",
	})
	if err != nil {
		return fmt.Errorf("load the program: %w", err)
	}
	var l link.Link
	err = e.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: e.Index, Flags: link.XDPGenericMode})
		return err
	})
	if err != nil {
		return errors.Join(err, prog.Close())
	}
	p.undo = append(p.undo, func() error { return errors.Join(l.Close(), prog.Close()) })
	return nil
}

// Netem has the router's kernel lose, repeat, delay and reorder some of what it forwards, in both directions, by netem
// (tc-netem(8)). It needs [Config.Router], and fails with [errors.ErrUnsupported] where the kernel has no netem.
func (p *Pair) Netem(netem netlink.NetemQdiscAttrs) error {
	for k := range p.Router {
		end := &p.Router[k]
		err := in(end.Namespace, func(h *netlink.Handle) error {
			attrs := netlink.QdiscAttrs{LinkIndex: end.Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
			return h.QdiscAdd(netlink.NewNetem(attrs, netem))
		})
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%w: the kernel has no netem (modprobe sch_netem)", errors.ErrUnsupported)
		}
		if err != nil {
			return fmt.Errorf("netem at %s: %w", end.Device, err)
		}
	}
	return nil
}
