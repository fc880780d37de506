package driver

import "context"

// Driver makes contexts. It has no state of its own and its methods may be
// called from any goroutine.
type Driver interface {
	// Name is the driver's name in urls, in the registry and on the tool's
	// command line: lower-case letters and digits.
	Name() string

	// Devices lists the NICs that this driver knows of, usable or not. It
	// never fails as a whole: what is missing is part of each [Device].
	Devices() []Device

	// Query finds the NIC that fits the hints and returns its properties. It
	// is always called first. Errors: ErrInvalid for hints or options that
	// make no sense, *UnavailableError for a NIC that cannot be used here.
	Query(Hints) (NIC, error)
}

// Ranked is a Driver that reports how exclusive its NICs are without a query, which may take long or start a NIC. It
// is optional: of two drivers, a caller need not query the one that it would not use beside the other.
type Ranked interface {
	Driver

	// MaxExclusivity returns the greatest Profile.Exclusivity of the driver's NICs.
	MaxExclusivity() int
}

// Reserved is a Driver that a session opens only if it is named: opening it changes the machine for others. It is
// optional.
type Reserved interface {
	Driver

	// Reserved returns the reason, in one clause.
	Reserved() string
}

// NIC is a network interface that was queried and not opened yet. It holds no
// resources, so that it may be dropped.
type NIC interface {
	// Properties returns what the context will be able to do. The caller may
	// not change it.
	Properties() *Properties

	// Open opens the NIC, once: a second call is ErrInvalid. Errors name the
	// resource that was refused and the remedy.
	Open(Attributes) (Context, error)
}

// Context is one NIC opened by a driver. Its methods may be called from any
// goroutine.
type Context interface {
	// Properties returns the properties of the NIC that was opened.
	Properties() *Properties

	// URL returns the name that peers connect to: printable ASCII without spaces, at most
	// MaxURL bytes unless wide urls were granted. It names driver, version
	// and incarnation, so that a restarted process has another one.
	URL() string

	// Connect starts a connection to the context that published url, and
	// never blocks. Both sides call it, in any order or at the same moment;
	// the nth unfinished call for a peer on one side is matched with the
	// nth on the other. Connecting to one's own url gives an instance that receives
	// what it sends.
	//
	// It fails at once for a url that is malformed, of another driver
	// (ErrInvalid) or of another version (ErrVersion), with ErrBusy if there is
	// no room for another connection, and with ErrClosed after Close. What only
	// the peer can tell comes out of [Instance.ConnectWait].
	Connect(url string) (Instance, error)

	// Counters adds this context's counters to c.
	Counters(c *Counters)

	// Close closes all instances at once, as if the process had ended in
	// order (peers see ErrClosed), and frees everything: descriptors,
	// mappings, files, goroutines. Disconnect the instances first so that
	// pending sends finish. Packets that are still posted fail with
	// ErrClosed. Buffers got from the driver are invalid afterwards. A second
	// call returns ErrClosed.
	Close() error
}

// Instance is one peer on a context. It is used by one goroutine at a time;
// different instances by many at once.
//
// A packet belongs to the driver from a successful post until a poll or wait
// reports that it is done, with or without an error; until then neither the
// packet nor the memory it names may be touched.
type Instance interface {
	// Peer is the url that Connect was given.
	Peer() string

	// ConnectWait blocks until the connection is established, has failed, or ctx
	// ends; it may be called again after ctx has ended. Until it has
	// returned nil, posts return ErrInvalid. Errors: ErrBroken (the peer's
	// process is gone or was restarted), ErrUnreachable, ErrAuth, ErrVersion,
	// ErrInvalid (the peer has another track, or options that do not fit),
	// ErrClosed.
	ConnectWait(ctx context.Context) error

	// Disconnect closes the connection in order and never blocks: what has
	// been posted is still delivered or fails, the peer then sees ErrClosed.
	// It returns ErrBusy while sends are pending, after which it is called
	// again (poll the sends meanwhile); receives that are posted fail with
	// ErrClosed. Afterwards every call returns ErrClosed. It also gives up a
	// connection that is still being made.
	Disconnect() error

	// SendPost posts a message given by IOV or Data. It never blocks.
	// Errors: ErrBusy (nothing was taken), ErrTooLong, ErrInvalid, ErrClosed,
	// ErrBroken. On the large track RdvData must hold what the receiver's
	// driver gave.
	SendPost(p *Packet) error

	// SendPoll makes progress and reports whether the send is done: its
	// memory may be reused. It does not mean that the peer has received it.
	SendPoll(p *Packet) (done bool, err error)

	// RecvPost posts memory, given by IOV or Data, for the next message (the
	// large track: for the one whose sender is given RdvData, which the
	// driver fills in). It never blocks. Errors as for SendPost.
	RecvPost(p *Packet) error

	// RecvPoll makes progress and reports whether the receive is done. p.N is
	// then the length. An error is about this receive (ErrTruncated,
	// ErrCanceled) or the connection (ErrBroken, ErrClosed); done is true
	// with each of them.
	//
	// On a [BufferReceiver], a packet that was not posted asks for a buffer
	// receive: if a message is there, p.Buf names it in the driver's memory
	// until RecvBufRelease.
	RecvPoll(p *Packet) (done bool, err error)

	// RecvCancel asks for a posted receive back. It never blocks. The packet
	// stays the driver's until RecvPoll reports done: with ErrCanceled, or with
	// nil or ErrTruncated if the message won. From then on the buffer is
	// never written. A packet that is not posted is ErrInvalid; one that is
	// done and not polled yet is left as it is.
	RecvCancel(p *Packet) error

	// Path names what carries messages, e.g. "ring", "arena-both",
	// "cma-both", "rdma-write": the way of the most recent message or
	// one-sided operation, or the most likely one before the first.
	Path() string
}
