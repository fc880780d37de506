package ibv

import "fmt"

// word returns the name of value v, or its number.
func word[T ~uint32](names []string, kind string, v T) string {
	if uint64(v) < uint64(len(names)) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s %d", kind, uint32(v))
}

// QPState is a queue pair's state.
type QPState uint32

// The states of a queue pair. A reliable connection goes RESET, INIT (receives
// can be posted), RTR (ready to receive), RTS (ready to send).
const (
	StateReset QPState = iota
	StateInit
	StateRTR
	StateRTS
	StateErr QPState = 6 // everything outstanding is flushed
)

// String returns the specification's name.
func (s QPState) String() string {
	return word([]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}, "state", s)
}

// WCStatus is the result of a work request.
type WCStatus uint32

// The statuses of completions.
const (
	WCSuccess           WCStatus = 0
	WCLocalLength       WCStatus = 1
	WCLocalQPOperation  WCStatus = 2
	WCLocalProtection   WCStatus = 4
	WCFlushed           WCStatus = 5
	WCBind              WCStatus = 6
	WCBadResponse       WCStatus = 7
	WCLocalAccess       WCStatus = 8
	WCRemoteInvalid     WCStatus = 9
	WCRemoteAccess      WCStatus = 10
	WCRemoteOperation   WCStatus = 11
	WCRetryExceeded     WCStatus = 12
	WCRNRRetryExceeded  WCStatus = 13
	WCRemoteInvalidRead WCStatus = 15
	WCRemoteAborted     WCStatus = 16
	WCFatal             WCStatus = 19
	WCResponseTimeout   WCStatus = 20
	WCGeneral           WCStatus = 21
)

// String describes the result in words.
func (s WCStatus) String() string {
	return word([]string{
		0:  "success",
		1:  "local length error: the message does not fit the receive posted, or is longer than allowed",
		2:  "local queue pair operation error: the work request does not fit the queue pair, or a receive was too short",
		4:  "local protection error: a local key or its range or access is wrong",
		5:  "flushed: the queue pair went into the error state before this was done",
		6:  "memory window bind error: key, range or access is wrong",
		7:  "bad response from the peer",
		8:  "local access error: the memory given does not allow this access",
		9:  "remote invalid request: the peer cannot take such a request, or its receive was too short",
		10: "remote access error: the remote key is wrong or revoked, or the range or access is not allowed",
		11: "remote operation error: the peer could not complete the request",
		12: "retries exceeded: the peer does not answer, is gone, or the link is down",
		13: "receiver not ready: the peer posted no receive in time",
		15: "remote invalid read request",
		16: "remote aborted",
		19: "fatal error of the device",
		20: "response timeout",
		21: "general error of the device",
	}, "status", s)
}

// WCOpcode is the operation that completed. It is valid only in successful completions.
type WCOpcode uint32

// Opcodes of completions: requests of the send queue, and receives.
const (
	WCSend         WCOpcode = 0
	WCWrite        WCOpcode = 1
	WCRead         WCOpcode = 2
	WCCompareSwap  WCOpcode = 3
	WCFetchAdd     WCOpcode = 4
	WCBindMW       WCOpcode = 5
	WCLocalInv     WCOpcode = 6
	WCRecv         WCOpcode = 128
	WCRecvWriteImm WCOpcode = 129
)

// IsRecv reports whether it completes a receive.
func (o WCOpcode) IsRecv() bool { return o&WCRecv != 0 }

// String returns the operation's name.
func (o WCOpcode) String() string {
	switch o {
	case WCRecv:
		return "receive"
	case WCRecvWriteImm:
		return "receive of a write with immediate"
	}
	return word([]string{"send", "write", "read", "compare and swap", "fetch and add", "bind", "local invalidate"},
		"operation", o)
}

// WCFlags list the valid fields of a receive completion.
type WCFlags uint32

// Flags of receive completions.
const (
	WCWithImm WCFlags = 1 << 1 // Imm is valid
	WCWithInv WCFlags = 1 << 3 // InvalidatedRKey is valid
)

// PortState is the state of a port's link.
type PortState uint32

// The states of a port; only an active one carries data.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

// String returns the state's name.
func (s PortState) String() string {
	return word([]string{"no state", "down", "initializing", "armed", "active", "active (deferred)"}, "state", s)
}

// LinkLayer is the link layer of a port.
type LinkLayer uint32

// Link layers; RoCE and iWARP run over Ethernet.
const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

// String returns the link layer's name.
func (l LinkLayer) String() string {
	return word([]string{"unspecified", "InfiniBand", "Ethernet"}, "link layer", l)
}

// GIDType is the protocol of a GID's packets.
type GIDType uint32

// The types of GIDs.
const (
	GIDInfiniBand GIDType = iota
	GIDRoCEv1             // Ethernet frames, one L2 segment
	GIDRoCEv2             // UDP/IP, routable
)

// String returns the type's name.
func (t GIDType) String() string {
	return word([]string{"IB", "RoCE v1", "RoCE v2"}, "type", t)
}

// AtomicCap describes the operations with which a device's atomics are atomic.
type AtomicCap uint32

// Atomicity of a device's atomics.
const (
	AtomicNone   AtomicCap = iota // the device has none
	AtomicDevice                  // among operations through this device
	AtomicGlobal                  // with the CPU and other devices too
)

// String returns the value in words.
func (a AtomicCap) String() string {
	return word([]string{"none", "within the device", "global"}, "atomicity", a)
}

// MTU is a path's maximum transfer unit, in the specification's code.
type MTU uint32

// The transfer units there are.
const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the size in bytes, or 0 for a code that does not exist.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// String is the size.
func (m MTU) String() string { return fmt.Sprintf("%d bytes", m.Bytes()) }
