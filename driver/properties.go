package driver

import "time"

// Track is the use of a context. A rail has one context of each.
type Track uint8

const (
	// Small carries short messages as they come: eager, probed, buffered.
	Small Track = iota
	// Large carries messages that both sides have agreed on (rendezvous):
	// the receive is posted first, its rdv data travels to the sender by
	// other means, and the send is posted with it.
	Large
)

// String returns "small" or "large".
func (t Track) String() string {
	if t == Large {
		return "large"
	}
	return "small"
}

// Hints has what the layer above knows before a NIC is opened. The zero value
// asks for the small track of the driver's best device.
type Hints struct {
	// Device is a name from [Driver.Devices]; empty lets the driver choose.
	Device string
	// Track is the use of the context: short or long messages.
	Track Track
	// Peers is the number of instances expected; 0 if unknown. It sizes
	// shared queues. A driver may refuse connections beyond it (ErrBusy).
	Peers int
	// MaxMessage is the longest message the caller intends to send, in
	// bytes; 0 if unknown. A driver may size its buffers by it.
	MaxMessage int
	// Options are settings of one driver, named in its documentation. An
	// unknown name or a malformed value is ErrInvalid.
	Options map[string]string
}

// Attributes are fixed when a NIC is opened.
type Attributes struct {
	// SessionSize and Rank place this process in its session; 0 of 0 when
	// there is none.
	SessionSize int
	Rank        int
	// WideURL means that the launcher carries urls of any length. Without it
	// a driver keeps its url within [MaxURL] bytes.
	WideURL bool
	// Secret authenticates peers to one another: contexts with different
	// secrets cannot connect. It never travels. Empty means that only what
	// the driver's threat model names protects the context. Use 16 random
	// bytes or more: Open refuses fewer with ErrInvalid.
	Secret []byte
}

// MaxURL is the length in bytes that every url keeps unless
// [Attributes.WideURL] is set: what fits a PMI-1 value beside its framing.
const MaxURL = 256

// MaxRemoteKey is the largest remote key in bytes that any driver makes.
const MaxRemoteKey = 256

// Properties is a driver's answer to a query.
type Properties struct {
	Driver       string
	Device       string
	Track        Track
	Capabilities Capabilities
	Profile      Profile
}

// Capabilities are the parts of the contract that hold for a context. All sizes
// are in bytes.
type Capabilities struct {
	// MaxMessage is the longest message that can be posted.
	MaxMessage int
	// BufferSize is the most that a buffer send or buffer receive carries;
	// 0 without buffer forms.
	BufferSize int

	IOVec      bool // packets may have more than one IOV entry
	Data       bool // packets may carry a Layout
	BufferSend bool // instances are BufferSenders
	BufferRecv bool // instances are BufferReceivers
	Probe      bool // the context is a Prober
	SendWait   bool // instances are SendWaiters
	RecvWait   bool // instances are RecvWaiters
	Prefetch   bool // instances are Prefetchers
	RdvUpdate  bool // instances are RdvUpdaters
	WideURL    bool // the url may exceed MaxURL when that is allowed

	// RdvSize is the most rdv data that a receive produces; a sender
	// must be given it when it is not 0.
	RdvSize int

	// SendDepth and RecvDepth are how many packets may be posted and
	// unfinished on one instance before a post returns ErrBusy. A send may return
	// so earlier when the peer does not receive.
	SendDepth int
	RecvDepth int

	// OneSided is nil where instances are not OneSided.
	OneSided *OneSidedCapabilities

	// Ordered: messages of one instance arrive in the order of their posts.
	// On the large track, where a send names its receive through rdv data,
	// it speaks of completion order and is usually false.
	Ordered bool

	// DeadTime is how long a peer that died can go unnoticed at most. A peer
	// that was silent (stopped) for up to four fifths of it loses nothing.
	DeadTime time.Duration
}

// OneSidedCapabilities limit put, get and atomics.
type OneSidedCapabilities struct {
	Put, Get     bool
	MaxPut       int // bytes an operation
	MaxGet       int
	PutAlignment int // of remote offset and length; 1: none
	GetAlignment int
	Atomics32    AtomicSet // 32-bit operations
	Atomics64    AtomicSet // 64-bit operations
	// Fetching: the atomics that return the old value. Operations in the
	// sets above but not here are only available non-fetching.
	Fetch32, Fetch64 AtomicSet
	// AtomicWithCPU: atomics of the NIC are atomic with the target CPU's own.
	AtomicWithCPU bool
	// RevokedKeyBreaks: an operation with a key that was revoked breaks the
	// connection; its error is both ErrRemoteKey and ErrBroken.
	RevokedKeyBreaks bool
	// AtomicArenaOnly: remote atomics need a region inside an [Arena].
	AtomicArenaOnly bool
	KeySize         int // bytes of a remote key, at most MaxRemoteKey
	Depth           int // operations in flight on one instance
}

// Profile is nominal performance: what selection starts from before anything
// has been measured.
type Profile struct {
	Latency   time.Duration // of an empty message, one way
	Bandwidth float64       // bytes a second, one way, long messages
	CPUs      []int         // the CPUs near the device; nil: all
	// Exclusivity ranks drivers that reach the same peer (see [Reacher]): only
	// those with the highest value are used: shm 48, verbs 32, qnix 24, afxdp
	// 16, tcp 0.
	Exclusivity int
}

// Device is a NIC that a driver knows of.
type Device struct {
	Name        string
	Description string
	// Err is nil when the device can be opened, else an [*UnavailableError]
	// that contains the reason and the remedy.
	Err error
	// Details are facts for people, in order.
	Details []Detail
}

// Detail is one fact about a device.
type Detail struct {
	Name, Value string
}
