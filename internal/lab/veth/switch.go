//go:build linux

package veth

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// A Switch is many network namespaces whose devices are ports of one Ethernet bridge, like hosts on a switch.
type Switch struct {
	// Ends reach each other as soon as NewSwitch returns.
	Ends []End

	pair Pair // pair to delete at the end
}

// NewSwitch makes n namespaces, 1 to 250, and one for the bridge. [Config.Router] and [Config.Box] are
// ignored. Errors are those of [New].
func NewSwitch(n int, cfg Config) (*Switch, error) {
	if n < 1 || n > 250 {
		return nil, fmt.Errorf("veth: a switch with %d ends, must be 1 to 250", n)
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if cfg.Queues == 0 {
		cfg.Queues = 1
	}
	s := &Switch{}
	if err := s.build(n, cfg); err != nil {
		return nil, fmt.Errorf("veth: %w", errors.Join(err, s.Close()))
	}
	return s, nil
}

func (s *Switch) build(n int, cfg Config) error {
	middle, err := s.pair.space()
	if err != nil {
		return err
	}
	err = in(middle, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "switch", cfg.MTU
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if err := h.LinkAdd(bridge); err != nil {
			return fmt.Errorf("create a bridge (is CONFIG_BRIDGE there?): %w", explain(err))
		}
		return h.LinkSetUp(bridge)
	})
	if err != nil {
		return err
	}
	for k := range n {
		ns, err := s.pair.space()
		if err != nil {
			return err
		}
		end := newEnd(ns, "eth0", 0, k+1)
		port := End{Namespace: middle, Device: fmt.Sprintf("port%d", k)}
		if err := s.pair.join(cfg, &end, &port); err != nil {
			return err
		}
		err = in(middle, func(h *netlink.Handle) error {
			dev, err := h.LinkByName(port.Device)
			if err != nil {
				return err
			}
			bridge, err := h.LinkByName("switch")
			if err != nil {
				return err
			}
			return h.LinkSetMaster(dev, bridge)
		})
		if err != nil {
			return fmt.Errorf("join %s to the bridge: %w", port.Device, err)
		}
		s.Ends = append(s.Ends, end)
	}
	return nil
}

// Close deletes the devices and releases the namespaces, as [Pair.Close] does.
func (s *Switch) Close() error { return s.pair.Close() }
