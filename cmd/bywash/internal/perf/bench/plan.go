//go:build linux

package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The baselines: the kernel's own sockets, and the ways to copy between two processes of one machine with nothing
// beside.
const (
	SockTCP  = "sock-tcp"
	SockUnix = "sock-unix"
	SockUDP  = "sock-udp"
	copyRing = "copy-ring"
	CopyCMA  = "copy-cma"
)

// Session is -d session: the session layer over the drivers of the option RailsOption. With PrefetchOption "off" it
// registers memory when it is posted, and not before.
const (
	Session        = "session"
	RailsOption    = "rails"
	PrefetchOption = "prefetch"
)

// Sockets are the baselines that -d all measures, in the order of the report; Copies are measured when they are named.
var (
	Sockets = []string{SockTCP, SockUnix, SockUDP}
	Copies  = []string{copyRing, CopyCMA}
)

// OnVeth behind the name of a driver or baseline has it measured between two network namespaces that a pair of virtual
// Ethernet devices joins, as afxdp always is on one machine.
const OnVeth = "@veth"

// Base returns a name without OnVeth.
func Base(name string) string { return strings.TrimSuffix(name, OnVeth) }

// IsBaseline reports whether a name is that of a baseline.
func IsBaseline(name string) bool {
	return slices.Contains(Sockets, Base(name)) || slices.Contains(Copies, name)
}

// MaxOptions bounds the options of a driver, names and values together: they travel in one message.
const MaxOptions = 16 << 10

// optionBytes counts them.
func optionBytes(options map[string]string) (n int) {
	for k, v := range options {
		n += len(k) + len("=") + len(v)
	}
	return n
}

// A group of processes has GroupSize members, GroupEach in each of the two ends.
const (
	GroupSize = 8
	GroupEach = GroupSize / 2
)

// Plan is the lead's message to the other ranks before anything is opened.
type Plan struct {
	Driver  string            `json:"driver"`
	Device  string            `json:"device,omitempty"`
	Options map[string]string `json:"options,omitempty"` // of the driver
	Peers   int               `json:"peers,omitempty"`   // idle ones, which one more rank holds
	Ranks   int               `json:"ranks,omitempty"`   // of a session of more than two; 0: the two ends
	Places  []Place           `json:"places,omitempty"`  // of each rank, in a lab
	CPUs    []int             `json:"cpus,omitempty"`    // of each rank of this machine
	Unbound bool              `json:"unbound,omitempty"` // ranks are not pinned
	Yield   bool              `json:"yield,omitempty"`   // they share a CPU
}

// Place is where one rank opens the driver.
type Place struct {
	Device string `json:"device"`
	Netns  string `json:"netns"`
}

// Size is the number of ranks.
func (p *Plan) Size() int {
	switch {
	case p.Ranks > 0:
		return p.Ranks
	case p.Peers > 0:
		return 3
	}
	return 2
}

// At returns the plan of a rank.
func (p *Plan) At(rank int) Plan {
	q := *p
	if rank < len(p.Places) {
		q.Device = p.Places[rank].Device
		q.Options = maps.Clone(p.Options)
		if q.Options == nil {
			q.Options = make(map[string]string)
		}
		q.Options["netns"] = p.Places[rank].Netns
	}
	return q
}

// Check returns an error for plans that a lead of this version does not make for that many ranks.
func (p *Plan) Check(ranks int) error {
	switch {
	case p.Peers < 0 || p.Peers > maxPeers:
		return fmt.Errorf("%d peers", p.Peers)
	case p.Ranks < 0 || p.Ranks > MaxRanks || p.Size() != ranks:
		return fmt.Errorf("a plan for %d ranks in a job of %d", p.Size(), ranks)
	case optionBytes(p.Options) > MaxOptions:
		return fmt.Errorf("%d bytes of options", optionBytes(p.Options))
	}
	return nil
}
