//go:build linux

package nic

import "github.com/bywash/bywash/qnix/internal/abi"

// Statistics returns the counters of the process that is registered through this handle, or of the NIC if none is.
func (n *NIC) Statistics() (Statistics, error) {
	var s abi.Statistics
	if err := n.host.statistics(&s); err != nil {
		return Statistics{}, hostError("statistics", err)
	}
	return makeStatistics(&s), nil
}

// Statistics returns the counters of this process.
func (p *Process) Statistics() (Statistics, error) { return p.nic.Statistics() }

func makeStatistics(s *abi.Statistics) Statistics {
	return Statistics{
		Commands: s.Commands, PacketsSent: s.PacketsSent, PacketsReceived: s.PacketsReceived,
		BytesSent: s.BytesSent, BytesReceived: s.BytesReceived, Doorbells: s.Doorbells,
		RequestsSent: s.RequestsSent, RequestsRemembered: s.RequestsRemembered,
		RequestsBuffered: s.RequestsBuffered, Failures: s.Failures, Misuse: s.Misuse,
		SystemMessages: s.SystemMessages, BadFrames: s.BadFrames, LateFrames: s.LateFrames,
		Processes: s.Processes, LocalMemory: s.LocalMemory,
	}
}
