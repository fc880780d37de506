package xsk

import "time"

// Config configures a device. Device and Match are required.
type Config struct {
	Device string // in the network namespace of the calling thread
	Match  Match
	Attach Attachment

	// Queues are the receive queues to open a socket on; nil means all, as matching frames may arrive on any of them.
	// Give a list for devices whose ntuple rules or RSS table steer these frames to certain queues.
	Queues []int

	// UMEM is shared by the sockets. If it is nil, Open makes one from Memory and closes it with the device.
	UMEM   *UMEM
	Memory UMEMConfig

	// Socket configures each socket; its Device and Queue are ignored.
	Socket SocketConfig
}

// A Match selects the frames for the sockets: those that fulfil at least one of EtherType, UDPPort and All. They may
// carry one VLAN tag. The program does not see a tag that the device has removed: ethtool -K DEV rxvlan off keeps it.
type Match struct {
	// EtherType selects frames with this EtherType, 0x0600 or more; 0: none.
	EtherType uint16

	// UDPPort selects datagrams over IPv4 and IPv6 with this destination port; 0: none. Fragments, and IPv6 datagrams
	// with extension headers, never match.
	UDPPort uint16

	// All selects all frames. The kernel's stack then sees none.
	All bool

	// VLANs selects frames of all VLANs, too. Without it EtherType and UDPPort select only frames without a tag, or with
	// number 0 in it: the others belong to VLAN devices of the kernel.
	VLANs bool
}

// Attachment is the place in the receive path where the program runs.
type Attachment int

const (
	AttachAuto    Attachment = iota // in the driver, or else generically
	AttachNative                    // in the device's driver
	AttachGeneric                   // in the kernel's stack, for any device
)

func (a Attachment) String() string {
	switch a {
	case AttachNative:
		return "native"
	case AttachGeneric:
		return "skb"
	}
	return "auto"
}

// ProgramConfig configures a program.
type ProgramConfig struct {
	Device string // in the network namespace of the calling thread
	Match  Match
	Attach Attachment

	// MultiBuffer lets a program in the device's driver receive frames that are larger than a page (BPF_F_XDP_HAS_FRAGS,
	// Linux 5.18). One in the stack receives them without.
	MultiBuffer bool
}

// UMEMConfig describes the memory of frames. The zero value is 4096 chunks of
// 4096 bytes in anonymous memory.
type UMEMConfig struct {
	// Chunks is the number of chunks; 0 means 4096, or as many as Memory holds.
	Chunks int

	// ChunkSize is the size of a chunk in bytes, 2048 or 4096; 0 means 4096. It cannot be larger than a page.
	ChunkSize int

	// Headroom is how many bytes before each received frame are left free for the user's headers, in addition to
	// [RxReserve]. It is at most ChunkSize-768: the kernel needs room for a short frame and its own data behind it.
	Headroom int

	// HugePages asks for memory in huge pages. If there are none, the UMEM has ordinary pages, and [UMEM.HugePages]
	// returns the reason.
	HugePages bool

	// Memory is the caller's memory, page-aligned, a multiple of ChunkSize
	// long. Nil: memory is mapped, and unmapped by Close. The UMEM keeps Go
	// heap memory pinned until Close.
	Memory []byte

	// TxMetadata reserves room for [TxMetadata] before each frame that is
	// sent (Linux 6.11): see [UMEM.TxMetadata].
	TxMetadata bool

	// SoftwareChecksum makes the kernel compute requested checksums in
	// software, in copy mode (XDP_UMEM_TX_SW_CSUM, Linux 6.8).
	SoftwareChecksum bool
}

// SocketConfig configures a socket. Only Device is required.
type SocketConfig struct {
	Device string // in the network namespace of the calling thread
	Queue  int    // 0-based

	// Sizes of the rings in entries, powers of two; 0: 2048. A negative
	// Rx or Tx leaves that ring out; one of both must be there.
	Rx, Tx, Fill, Completion int

	// Copying and the two fields below are those of the first socket for all sockets that share a UMEM.
	Copying Copying

	// MultiBuffer allows frames of several descriptors (XDP_USE_SG, Linux 6.6). A program in the device's driver then
	// needs [ProgramConfig.MultiBuffer]. For a program in the stack the kernel makes each frame one buffer, for which
	// it needs contiguous memory.
	MultiBuffer bool

	BusyPoll BusyPoll

	// TxBudget is how many descriptors one system call sends in copy mode,
	// 32 if 0, up to the size of the ring (XDP_MAX_TX_SKB_BUDGET, Linux 6.17).
	TxBudget int

	// BindTimeout bounds how long opening waits for a queue that is busy: the
	// kernel releases one in the background after its socket was closed, which
	// takes some 20 ms, and seconds on a busy machine. 0: 3 s.
	BindTimeout time.Duration
}

// Copying is the way of frames between the device and the UMEM.
type Copying int

const (
	CopyAuto   Copying = iota // without a copy if the driver can, else by a copy
	CopyAlways                // the kernel copies (XDP_COPY)
	CopyNever                 // zero-copy or an error (XDP_ZEROCOPY)
)

// BusyPoll makes the process drive the device's driver by its system calls,
// instead of interrupts (Linux 5.11).
type BusyPoll struct {
	// Time is how long one call polls the driver, rounded to microseconds;
	// 0: busy-poll is not used.
	Time time.Duration

	// Budget is how many frames one call takes at most; 0: 64. More than 64
	// takes CAP_NET_ADMIN.
	Budget int
}

// A Desc names the bytes of a frame, or of a part of it, in a [UMEM]. It is the
// kernel's struct xdp_desc.
type Desc struct {
	Addr    uint64
	Len     uint32
	Options uint32 // DescContinued, DescMetadata
}

// Options of a descriptor.
const (
	// DescContinued means that the frame continues in the next descriptor (Linux 6.6). Sockets without
	// [SocketConfig.MultiBuffer] never get it.
	DescContinued = 1 // XDP_PKT_CONTD

	// DescMetadata, in the first descriptor of a frame to send, means that [TxMetadata] lies before the frame (Linux
	// 6.11).
	DescMetadata = 2 // XDP_TX_METADATA
)

// RxReserve is how many bytes at the start of each chunk the kernel keeps for XDP programs (XDP_PACKET_HEADROOM). A
// received frame starts behind this reserve and the configured headroom.
const RxReserve = 256
