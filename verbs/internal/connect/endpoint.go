package connect

import (
	"time"
)

// Limits of an endpoint.
const (
	MaxQPs      = 4   // queue pairs that are connected together
	MaxUserData = 128 // bytes that go along, each way
)

// QP is a queue pair, in state RESET, that is to be connected. Its methods are
// called by one goroutine at a time, in this order, never while the caller of
// [Endpoint] waits for them; they may block.
type QP interface {
	// Num is the queue pair's number. It does not change.
	Num() uint32
	// Init, RTR and RTS move to that state.
	Init(*Path) error
	RTR(*Path) error
	RTS(*Path) error
}

// Path is what was agreed on for one queue pair: all that its steps need.
type Path struct {
	Port      uint8
	GIDIndex  uint8
	PKeyIndex uint16
	LinkLayer LinkLayer
	MTU       int // bytes; the lower one of both sides

	PSN     uint32 // 24 bits; of what this side sends first
	PeerPSN uint32
	PeerQP  uint32
	PeerLID uint16 // InfiniBand
	PeerGID [16]byte

	// Responder and Initiator are how many reads and atomics this side
	// answers and has under way: at most what the other side has and answers.
	Responder, Initiator uint8

	Quality // without zero values
}

// Remote is what the peer said about its end.
type Remote struct {
	QPs      []uint32 // queue pair numbers
	LID      uint16
	GID      [16]byte
	MTU      int    // agreed on
	UserData []byte // the peer's EndpointConfig.UserData
}

// State is how far an endpoint is. It only grows.
type State uint32

const (
	Idle       State = iota // made; answers the peer, does not start by itself
	Connecting              // started, or asked by the peer
	Connected               // queue pairs are in RTS; CTS is awaited
	Ready                   // the peer can receive
	Failed                  // could not be connected: Err
	Lost                    // was Connected or Ready, and the peer left: Err
	Finalized
)

// String names the state.
func (s State) String() string {
	switch s {
	case Idle:
		return "idle"
	case Connecting:
		return "connecting"
	case Connected:
		return "connected"
	case Ready:
		return "ready"
	case Failed:
		return "failed"
	case Lost:
		return "lost"
	case Finalized:
		return "finalized"
	}
	return "unknown"
}

// EndpointConfig describes one end of a connection.
type EndpointConfig struct {
	PeerIncarnation uint64
	PeerCard        string // [Modules.Card] of the peer
	PeerName        string // for errors, usually its url

	// QPs are 1 to MaxQPs queue pairs of the port; the peer must have as
	// many. They stay the caller's, who may not touch their state until the
	// endpoint is Connected, Ready, or Done.
	QPs []QP

	// UserData, at most MaxUserData bytes, is given to the peer.
	UserData []byte

	// Prepare, if not nil, is called once, by a goroutine of this package,
	// when the queue pairs are in INIT and the peer is known: it posts
	// receives. Its error fails the endpoint. It may block.
	Prepare func(*Remote) error

	// Deferred says that receives will only be posted when the endpoint is
	// Connected, after which the caller calls ClearToSend. It makes both
	// sides use CTS.
	Deferred bool

	// Wake, if not nil, is called after each change of state, by a goroutine of
	// this package. It must not block, nor call the endpoint's methods other
	// than State, Err and Remote.
	Wake func()

	// Timeout replaces Config.Timeout for this endpoint; 0 keeps that.
	Timeout time.Duration
}

// Endpoint is one end of a connection being made or made. Its methods may be
// called from any goroutine; none blocks.
type Endpoint interface {
	// Manager is the name of the manager that connects it.
	Manager() string

	// Start begins to connect, unless the peer already has. ErrClosed after
	// Finalize.
	Start() error

	// State is an atomic load.
	State() State

	// Err is why the endpoint is Failed or Lost, an *[Error], else nil.
	Err() error

	// Remote is the peer's end, from Connected on; nil before. The caller may
	// not change it.
	Remote() *Remote

	// ClearToSend says that receives are posted, on an endpoint with
	// Deferred.
	ClearToSend()

	// Finalize gives up the connection, in whatever state: the peer sees
	// Failed or Lost with ErrClosed. The queue pairs keep their states and
	// are the caller's once Done is closed: a step that is under way is
	// waited for, no further one begins. A second call does nothing.
	Finalize()

	// Done is closed when, after Finalize, the queue pairs and Prepare are
	// not used any more.
	Done() <-chan struct{}
}
