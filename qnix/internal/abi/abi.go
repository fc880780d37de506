// Package abi mirrors kmod/uapi/qnix.h, and defines the messages of a softnic's socket, which carry the same
// structures. Its test compares every size and offset with the C header.
package abi

// Version is the version of the structures. An incompatible change increases it.
const Version = 3

// Limits of one registration.
const (
	NameLen         = 20
	NamesPerCommand = 3

	MaxContexts = 4096
	MaxCommands = 4096
	MaxRegion   = 16384
	MaxPool     = 65536
	MaxMessage  = 0x7fffffff
	MaxTag      = 0xff7f
)

// Commands of the Command Queue.
const (
	CmdNone = iota
	CmdSend
	CmdSendShort
	CmdBroadcast
	CmdBroadcastShort
	CmdMulticast
	CmdMulticastShort
	CmdNames
	CmdJoinGroup
	CmdLeaveGroup
	CmdReceive
	CmdBarrier
	CmdCancelSend
	CmdCancelReceive
)

// Command is an entry of the Command Queue, one cache line. Context, Size and
// Name lie under the names of a CmdNames: see Names.
type Command struct {
	Command  uint32
	Context  uint16
	Reserved uint16
	Size     uint32
	Name     [NameLen]byte
	Pad      [32]byte
}

// Names is the other form of a Command.
type Names struct {
	Command uint32
	Names   [NamesPerCommand][NameLen]byte
}

// Context.Flags
const (
	CtxDoorbell = 1 << iota
	CtxInline
	CtxPool
)

// Context is a Send or a Receive Context.
type Context struct {
	Process     [NameLen]byte
	Tag         uint16
	Flags       uint16
	Len         uint32
	Descriptors uint32
	PoolIndex   uint32
	Pad         [28]byte
}

// Descriptor is a piece of translated memory.
type Descriptor struct {
	Handle uint32
	Len    uint32
	Offset uint64
}

// MemoryInfo is the NIC Memory Info.
type MemoryInfo struct {
	ABIVersion       uint32
	CommandQueue     uint32
	SendContexts     uint32
	ReceiveContexts  uint32
	SendRegions      uint32
	ReceiveRegions   uint32
	BufferPool       uint32
	VNISize          uint32
	Status           uint32
	SendDoorbells    uint32
	ReceiveDoorbells uint32
	DoorbellRing     uint32
	HPSSize          uint32
	Commands         uint32
	Sends            uint32
	Receives         uint32
	RegionSize       uint32
	PoolEntries      uint32
	RingEntries      uint32
	Pad              uint32
}

// Status is the Virtual Network Interface Status.
type Status struct {
	CommandQueueHead uint32
	NeedWakeup       uint32
	Misuse           uint32
	Gone             uint32
	Pad0             [48]byte
	RingTail         uint32
	Pad1             [60]byte
	Sleepers         uint32
	Pad2             [60]byte
}

// Doorbell.State
const (
	DBFree = iota
	DBPending
	DBDone
	DBTruncated
	DBUnknown
	DBGone
	DBCanceled
	DBInvalid
	DBFault
	DBNoMemory
)

// Doorbell is read and written as one 64-bit word.
type Doorbell struct {
	Len   uint32
	State uint32
}

// Entries of the Doorbell Ring.
const (
	RingReceive = 0x80000000
	RingIndex   = 0x0000ffff
)

// FeatureSoft, in Info.Features: a NIC in user space.
const FeatureSoft = 1

// Info is the result of QNIX_IOC_INFO.
type Info struct {
	ABIVersion      uint32
	Features        uint32
	NIC             uint16
	Pad0            uint16
	NICs            uint32
	PacketSize      uint32
	LocalMemory     uint32
	MaxProcesses    uint32
	MaxPerUser      uint32
	MaxContexts     uint32
	MaxCommands     uint32
	MaxRegion       uint32
	MaxPool         uint32
	MaxMessage      uint32
	MaxTranslations uint32
	SizeCommand     uint32
	SizeContext     uint32
	SizeDescriptor  uint32
	SizeMemoryInfo  uint32
	SizeStatus      uint32
	SizeDoorbell    uint32
	Pad             [12]uint32
}

// Register is a request for a registration, and the NIC's answer.
type Register struct {
	Name        [NameLen]byte
	Group       [NameLen]byte
	GroupSize   uint32
	TimeoutMs   uint32
	Commands    uint32
	Sends       uint32
	Receives    uint32
	RegionSize  uint32
	PoolEntries uint32
	PID         uint16
	Generation  uint16
	NIC         uint16
	Pad0        uint16
	VNISize     uint32
	VNIOffset   uint64
	HPSOffset   uint64
	HPSSize     uint32
	Pad1        uint32
}

// Translate.Access
const (
	AccessRead  = 1
	AccessWrite = 2
)

// NoPool is the Translate.PoolIndex with which no entry of the Buffer Pool is filled.
const NoPool = 0xffffffff

// Translate makes memory accessible to the NIC.
type Translate struct {
	Addr       uint64
	Len        uint64
	Access     uint32
	PoolIndex  uint32
	PoolStride uint32
	Handle     uint32
}

// Untranslate undoes Translate.
type Untranslate struct {
	Handle uint32
	Pad    uint32
}

// Group is the request to join or leave a group.
type Group struct {
	Name      [NameLen]byte
	Size      uint32
	TimeoutMs uint32
	Pad       uint32
}

// Wait is the request to sleep until the ring's tail differs from RingTail.
type Wait struct {
	RingTail  uint32
	Pad       uint32
	TimeoutNs int64
}

// Statistics are counters of a process or NIC.
type Statistics struct {
	Commands           uint64
	PacketsSent        uint64
	PacketsReceived    uint64
	BytesSent          uint64
	BytesReceived      uint64
	Doorbells          uint64
	RequestsSent       uint64
	RequestsRemembered uint64
	RequestsBuffered   uint64
	Failures           uint64
	Misuse             uint64
	SystemMessages     uint64
	BadFrames          uint64
	LateFrames         uint64
	Processes          uint64
	LocalMemory        uint64
	Pad                [8]uint64
}
