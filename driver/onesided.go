package driver

import "context"

// Access is the set of operations that peers may use a region for. Local use needs no flag.
type Access uint8

const (
	RemoteRead   Access = 1 << iota // target of get
	RemoteWrite                     // target of put
	RemoteAtomic                    // target of atomics
)

// AtomicOp is an operation on one integer in a peer's memory.
type AtomicOp uint8

const (
	Add AtomicOp = iota
	And
	Or
	Xor
	Swap
	CompareSwap
)

var atomicNames = [...]string{"add", "and", "or", "xor", "swap", "compare-and-swap"}

// String returns the operation's name.
func (o AtomicOp) String() string {
	if int(o) < len(atomicNames) {
		return atomicNames[o]
	}
	return "unknown"
}

// AtomicSet is a set of operations.
type AtomicSet uint8

// AllAtomics holds every operation.
const AllAtomics AtomicSet = 1<<(CompareSwap+1) - 1

// AtomicsOf returns the set of ops.
func AtomicsOf(ops ...AtomicOp) AtomicSet {
	var s AtomicSet
	for _, o := range ops {
		s |= 1 << o
	}
	return s
}

// Has reports whether op is in the set.
func (s AtomicSet) Has(op AtomicOp) bool { return s&(1<<op) != 0 }

// Registrar makes memory available to the instances of a context. A context is
// one exactly when Capabilities.OneSided is not nil. Registration belongs to
// the context, not to an instance, because NICs protect memory by domain: one
// key serves all peers.
type Registrar interface {
	Context

	// Register makes b available to peers with the given access, and to
	// operations of this context as local memory. It may take long (pinning).
	// The memory must stay allocated until Deregister has returned nil; Go
	// heap memory is pinned by the driver.
	Register(b []byte, access Access) (Region, error)
}

// Region is registered memory.
type Region interface {
	// Bytes is the memory.
	Bytes() []byte

	// Key is what a peer needs to reach the region, at most MaxRemoteKey
	// bytes. Any process that has it can use it: send it to those peers only.
	Key() []byte

	// Deregister revokes the key: operations that start afterwards fail with
	// ErrRemoteKey. After nil nothing of a peer's operation happens in the
	// memory; "Memory" in the documentation of this package describes what
	// counts. It never blocks: after ErrBusy, or another error than ErrClosed, the
	// memory may not be freed or used for something else; call again.
	// ErrBusy means that an operation of a peer may be inside the region,
	// over whatever connection, open or not: it lasts until that peer goes on, or
	// dies. A region that is gone, because it was deregistered or its context was
	// closed, returns ErrClosed: its memory is the caller's. When a context is
	// closed while a peer is inside, Deregister still returns ErrBusy.
	Deregister() error
}

// RemoteRegion is a peer's region, as seen from one instance.
type RemoteRegion interface {
	// Len is the region's length in bytes.
	Len() int
	// Access returns the access that the region was registered for.
	Access() Access
}

// Op is a one-sided operation. The caller allocates it and may reuse it once it
// is done.
type Op struct {
	// Local is the source of a put, the destination of a get. On drivers
	// that need it (see LocalRegion) it lies inside a region.
	Local []byte
	// LocalRegion is the region Local lies in; nil lets the driver register
	// it for this operation if it has to.
	LocalRegion Region
	// Remote and Offset name the target.
	Remote RemoteRegion
	Offset int

	// Atomic, Operand and Compare are for atomics; Size is 4 or 8 bytes.
	Atomic  AtomicOp
	Size    int
	Operand uint64 // for CompareSwap the new value
	Compare uint64 // CompareSwap only: the value expected
	Fetch   bool   // whether Result is wanted
	Result  uint64 // the value before, when done and Fetch is set

	// User is the caller's.
	User any
	// Driver belongs to the driver.
	Driver OpState
}

// OpState is the room a driver has in an Op.
type OpState struct {
	Phase  Phase
	Ticket uint64
	Next   *Op
	Err    error
}

// OneSided accesses a peer's memory without the peer's help. Instances have it
// exactly when Capabilities.OneSided is not nil.
//
// Posts never block; ErrBusy if Depth operations are in flight. Bounds
// (ErrBounds), alignment (ErrAlignment), access (ErrAccess) and unknown
// atomics (ErrUnsupported) are found when posting where the driver can, else
// the operation completes with that error; a key that was revoked is
// ErrRemoteKey. None of these breaks the connection unless the driver documents it.
//
// Operations are not ordered among each other, nor with messages, except by
// Fence and Flush.
type OneSided interface {
	Instance

	// Import turns a key from the peer of this instance into a region. A
	// damaged key, or one of another context, is ErrRemoteKey.
	Import(key []byte) (RemoteRegion, error)

	// PutPost writes Local to the peer's memory. Done means: visible to the
	// peer's CPU; Local may be reused and its region deregistered.
	PutPost(op *Op) error

	// GetPost reads the peer's memory into Local.
	GetPost(op *Op) error

	// AtomicPost applies Atomic to the integer at Offset, which must be a
	// multiple of Size.
	AtomicPost(op *Op) error

	// OpPoll makes progress and reports whether the operation is done.
	OpPoll(op *Op) (done bool, err error)

	// Flush blocks until all operations that were posted on this instance
	// are done, without polling each: they still have to be polled for their
	// outcome.
	Flush(ctx context.Context) error

	// Fence orders: operations posted later take effect at the target after
	// those posted before. It never blocks.
	Fence() error
}
