package driver

import "context"

// The interfaces below are optional. An instance or context has them exactly
// when the capability of that name is set; find them by type assertion, once,
// off the data path.

// Configurable is a Driver that lists its options, for help. No capability
// announces it.
type Configurable interface {
	Driver

	// Options are the settings that Hints.Options can have.
	Options() []Option
}

// Option describes one setting of a driver, in words for people.
type Option struct {
	Name    string
	Values  string // what it can be
	Default string // what holds without it; empty: Help describes it
	Help    string // one line
}

// BufferSender sends from the driver's own memory, registered or shared.
type BufferSender interface {
	Instance

	// SendBufGet points p.Buf to a buffer of Capabilities.BufferSize bytes
	// that the caller fills. One buffer can be out at a time, and no other
	// send may be posted until it is. ErrBusy if there is no room.
	SendBufGet(p *Packet) error

	// SendBufPost sends the first n bytes of p.Buf. The buffer is the
	// driver's again. It cannot be busy. The packet is polled like any other
	// send before it is used again. n < 0 gives the buffer back unsent, and
	// there is nothing to poll.
	SendBufPost(p *Packet, n int) error
}

// BufferReceiver receives into the driver's own memory. RecvPoll, or RecvWait,
// on a packet that is not posted asks for it.
//
// The memory may be shared with the peer: a reader that does not trust the
// peer copies before it checks.
type BufferReceiver interface {
	Instance

	// RecvBufRelease gives p.Buf back. One buffer can be out at a time: until
	// then, receives on the instance make no progress.
	RecvBufRelease(p *Packet) error
}

// Ender reports the end of a connection without a receive: while a buffer is out
// receives make no progress, and a prober does not name the instance. No
// capability announces it: find it by type assertion.
type Ender interface {
	Instance

	// Err is nil while the connection is established. Once it has ended it returns how:
	// ErrBroken or ErrClosed, as a receive would after the messages that came
	// before. It may be called from any goroutine after ConnectWait has
	// returned nil.
	Err() error
}

// SendWaiter can sleep until a send is done.
type SendWaiter interface {
	Instance

	// SendWait blocks without burning a core until the send is done, and
	// returns what SendPoll would. When ctx ends it returns ctx's error and
	// the packet stays posted.
	SendWait(ctx context.Context, p *Packet) error
}

// RecvWaiter can sleep until a receive is done.
type RecvWaiter interface {
	Instance

	// RecvWait blocks without burning a core until the receive is done, and
	// returns what RecvPoll would. When ctx ends it returns ctx's error and
	// the packet stays posted (or unposted, for a buffer receive).
	RecvWait(ctx context.Context, p *Packet) error
}

// Prober asks all instances of a context at once. Its methods may be called
// from any goroutine.
type Prober interface {
	Context

	// RecvProbeAny names an instance on which a receive succeeds at once, or
	// fails at once because the connection has broken or was closed (each
	// instance is named once for that, after its messages). ErrAgain if it
	// found none: a call may look at some instances only, so that its cost
	// does not grow with their number; a message that is there is found by at
	// most as many calls as the context has instances. It is fair between
	// peers. A message is named to one caller: until something is
	// received from that instance, it is not named again.
	RecvProbeAny() (Instance, error)

	// RecvWaitAny is RecvProbeAny, but it sleeps until there is something to
	// name. ErrCanceled after RecvCancelAny, ctx's error when ctx ends.
	RecvWaitAny(ctx context.Context) (Instance, error)

	// RecvCancelAny wakes every RecvWaitAny that is running now; if none is,
	// it does nothing.
	RecvCancelAny() error
}

// Prefetcher starts registration ahead of a post that is likely to come, and
// undoes it when the message takes another way. A post of the same packet with
// the same memory, or the beginning of it, uses what was prefetched; with other
// memory it is an error not to unfetch first (ErrInvalid). A packet that is not
// posted is unfetched before Disconnect: its memory stays registered until then.
// A prefetch never blocks, and one that fails in the background leaves the work
// to the post. Only drivers whose posts otherwise wait for registration implement
// it.
type Prefetcher interface {
	Instance

	SendPrefetch(p *Packet) error // before the receiver's rdv data is there
	SendUnfetch(p *Packet) error
	RecvPrefetch(p *Packet) error // before the sender's request is there
	RecvUnfetch(p *Packet) error
}

// RdvUpdater produces further rdv data in the middle of a transfer, e.g. keys
// of sections that were registered meanwhile. The layer above asks for them as
// long as the receive is not done, also while it is being cancelled, and
// carries them, in order: without them a transfer may never end.
type RdvUpdater interface {
	Instance

	// RecvRdvUpdate returns rdv data that is due for the sender of p, at most
	// Capabilities.RdvSize bytes in the driver's memory until the next call; nil if none.
	RecvRdvUpdate(p *Packet) ([]byte, error)

	// SendRdvUpdate gives the sender's driver an update. It copies what it
	// needs. One for a send that is done, but not yet polled, is ignored; a
	// malformed one is ErrInvalid.
	SendRdvUpdate(p *Packet, data []byte) error
}

// ConnectRequestReceiver reports connect requests: a peer has called Connect, and this side has not yet. A layer above
// can then connect when either side needs the connection. A context whose driver listens anyway implements it. No
// capability announces it: find it by type assertion.
type ConnectRequestReceiver interface {
	Context

	// ConnectRequests appends to dst the incarnations of the peers that wait for a connection with this context while
	// no Connect for them is under way here. A peer that has given up is left out. The incarnations are not
	// authenticated: Connect checks the peer. [RankOf] returns the rank that an incarnation claims. It may be called
	// from any goroutine.
	ConnectRequests(dst []uint64) []uint64

	// OnConnectRequest makes the driver call f once right away, and then from a goroutine of its own whenever the
	// result of ConnectRequests may have changed. f must not block and must not call the driver. A second call replaces
	// f; nil removes it.
	OnConnectRequest(f func())
}

// Reacher is a context that knows from urls alone which peers it cannot reach, so that a layer above leaves it out
// instead of failing to connect. A driver whose reach ends somewhere implements it: at the host, at a directory, at a
// network. A context without it is taken to reach every context of its driver. No capability announces it: find it by
// type assertion.
type Reacher interface {
	Context

	// Reaches returns nil unless the two urls, this context's and the given one, show that a connection between the two
	// contexts cannot be established; then it returns ErrUnreachable with the reason and the remedy. Nil is no promise: a
	// connection may still fail. It is symmetric: if it returns nil at one end, it does at the other. It depends on the
	// two urls alone, does no I/O and does not block, and may be called from any goroutine, also after Close. A url that
	// is malformed or of another driver is ErrInvalid, one of another version ErrVersion.
	Reaches(url string) error

	// Domain names the contexts that reach each other: contexts of one driver whose domains are equal and not empty do,
	// as far as Reaches knows. Processes compare domains before they know each other's urls. It is empty if the driver
	// cannot tell; then, and between different domains, Reaches decides. It does not change.
	Domain() string
}
