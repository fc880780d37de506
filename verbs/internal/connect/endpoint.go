//go:build linux && !(386 || arm || mips || mipsle)

package connect

// Limits of an endpoint.
const (
	maxQPs      = 4   // queue pairs of one endpoint
	maxUserData = 128 // bytes of user data in each direction
)

// QP is a queue pair in state RESET that is to be connected. One goroutine at a time calls its methods, in the order
// below. They may block. The caller of [Endpoint] never waits for them.
type QP interface {
	// Num is the queue pair's number. It does not change.
	Num() uint32
	// Init, RTR and RTS move the queue pair to the state of that name.
	Init(*Path) error
	RTR(*Path) error
	RTS(*Path) error
}

// Path contains everything that the steps of one queue pair need, as both sides agreed on it.
type Path struct {
	Port      uint8
	GIDIndex  uint8
	PKeyIndex uint16
	LinkLayer LinkLayer
	MTU       int // bytes; the lower of both sides' MTUs

	PSN     uint32 // 24 bits: number of the first packet that this side sends
	PeerPSN uint32
	PeerQP  uint32
	PeerLID uint16 // InfiniBand
	PeerGID [16]byte

	// Responder and Initiator are how many reads and atomics this side answers and may have under way. The other side's
	// values bound them.
	Responder, Initiator uint8

	Quality
}

// State is the progress of an endpoint. It never decreases.
type State uint32

const (
	Connecting State = iota
	Ready            // the peer can receive
	Failed           // it could not be connected; see Err
	Lost             // was Ready, and the peer has gone; see Err
	Finalized
)

// String names the state.
func (s State) String() string {
	return [...]string{"connecting", "ready", "failed", "lost", "finalized"}[s]
}

// EndpointConfig describes one end of a connection.
type EndpointConfig struct {
	PeerIncarnation uint64
	PeerCard        string // [Managers.Card] of the peer
	PeerName        string // for errors, usually its url

	// QPs are 1 to maxQPs queue pairs of the port; the peer must have as many. The caller owns them, but must not
	// change their state until the endpoint is Ready or Done.
	QPs []QP

	// UserData, at most maxUserData bytes, is given to the peer.
	UserData []byte

	// Prepare, if not nil, posts receives. A goroutine of this package calls it once, when the queue pairs are in INIT,
	// with the peer's UserData. Its error fails the endpoint. It may block. The peer can send as soon as it has returned.
	Prepare func(peer []byte) error

	// Wake, if not nil, is called after each change of state, by a goroutine of
	// this package. It must not block, nor call the endpoint's methods other
	// than State and Err.
	Wake func()
}
