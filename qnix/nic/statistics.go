//go:build linux

package nic

import "github.com/bywash/bywash/qnix/internal/abi"

// Statistics are counters of a process or a NIC.
type Statistics struct {
	Commands           uint64 `json:"commands"`
	PacketsSent        uint64 `json:"packets_sent"` // to other NICs and to processes of this one
	PacketsReceived    uint64 `json:"packets_received"`
	BytesSent          uint64 `json:"bytes_sent"`
	BytesReceived      uint64 `json:"bytes_received"`
	Doorbells          uint64 `json:"doorbells"`
	RequestsSent       uint64 `json:"requests_sent"`       // Permission_Request
	RequestsRemembered uint64 `json:"requests_remembered"` // not granted when they arrived
	RequestsBuffered   uint64 `json:"requests_buffered"`   // granted with a local buffer
	Failures           uint64 `json:"failures"`            // doorbells that reported a failure
	Misuse             uint64 `json:"misuse"`
	SystemMessages     uint64 `json:"system_messages"`
	BadFrames          uint64 `json:"bad_frames"`   // from other NICs, dropped
	LateFrames         uint64 `json:"late_frames"`  // for a process that is gone, dropped
	Processes          uint64 `json:"processes"`    // now
	LocalMemory        uint64 `json:"local_memory"` // bytes in use, now
}

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
