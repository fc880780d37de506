// Package credit limits how much a sender may have under way that its receiver has to store: messages whose receive may
// come later. The receiver grants credit out of a pool that all its peers share, in absolute amounts since the
// connection began, so that a grant that is repeated, or that another one overtakes, does no harm. The sender keeps what
// exceeds its credit, and can send everything else meanwhile.
//
// The package does no I/O. A [Sender] is one end of a connection, a [Receiver] the other; a message costs both of them
// [Cost].
//
// What a receiver has granted and what it stores is reserved in the [Pool]. Each peer has credit for a window of data
// and messages, as far as the pool and the peer's share of it allow; credit is renewed when
// a quarter of the window is left.
// A peer of which nothing is stored always has credit for one packet of the greatest length, whatever the others have
// taken, so that messages that a receive waits for arrive. So the reserved memory is at most the pool, and one packet
// for each peer.
package credit

import "math/bits"

const (
	// Overhead is what each message costs beside its data, in bytes: more than the memory of the record about it.
	Overhead = 384
	// minPacket is the length in bytes from which on the length of a packet counts.
	minPacket = 64
	// largeClass is the exponent of the length in bytes beyond which lengths are not rounded up to powers of two.
	largeClass = 16
	// leastMessages is the least number of messages in a window.
	leastMessages = 16
)

// Class returns the size class of a packet of n bytes, the exponent of a power of two, and whether memory for the
// packet has the size of the class. Otherwise it has n bytes.
func Class(n int) (class int, rounded bool) {
	class = bits.Len(uint(max(n, minPacket) - 1))
	return class, class <= largeClass
}

// Cost returns how much credit a packet of n bytes, header included, takes in bytes. It also takes one message.
func Cost(n int) int {
	if n <= minPacket {
		return Overhead + minPacket
	}
	return costOf(n)
}

//go:noinline
func costOf(n int) int {
	if class, rounded := Class(n); rounded {
		return Overhead + 1<<class
	}
	return Overhead + n
}

// Amount is an amount of credit.
type Amount struct {
	Bytes, Messages uint64
}

// MaxAmount bounds the bytes and the messages of an amount, so that sums cannot overflow.
const MaxAmount = 1 << 62

// Sender is the state of a sender. The zero value has no credit.
type Sender struct {
	sent, limit Amount
}

// Allows reports whether the credit suffices for a message of that cost.
func (s *Sender) Allows(cost int) bool {
	return s.sent.Bytes+uint64(cost) <= s.limit.Bytes && s.sent.Messages < s.limit.Messages
}

// Sent takes the credit for a message of that cost.
func (s *Sender) Sent(cost int) {
	s.sent.Bytes += uint64(cost)
	s.sent.Messages++
}

// Unsent gives back the credit for a message of that cost that the receiver will not get.
func (s *Sender) Unsent(cost int) {
	s.sent.Bytes -= uint64(cost)
	s.sent.Messages--
}

// Granted takes a grant of the receiver. Less than before changes nothing: another grant has overtaken this one.
func (s *Sender) Granted(a Amount) {
	s.limit.Bytes = max(s.limit.Bytes, a.Bytes)
	s.limit.Messages = max(s.limit.Messages, a.Messages)
}

// Pool is the memory that all receivers of a process may reserve.
type Pool struct {
	Bytes        int // most for all peers
	Messages     int // likewise
	PeerMessages int // most for one peer
	Peers        int // peers that may send; one of several may reserve half of the bytes

	bytes, messages int // reserved
}

// Free returns how many bytes are not reserved; less than 0 if peers use the packet that each always has.
func (p *Pool) Free() int { return p.Bytes - p.bytes }

func (p *Pool) reserve(bytes, messages int) {
	p.bytes += bytes
	p.messages += messages
}

// Receiver is the state of a receiver for one peer.
type Receiver struct {
	granted, arrived Amount // of this connection
	low              Amount // of arrived: when it is reached, a quarter of the window is left
	packet           int    // cost of the longest packet; 0: there is no connection

	keptBytes, kept int // stored messages, also of earlier connections
}

// Begin begins a connection whose longest packet has that many bytes. It grants the first credit and returns what Extend
// does.
func (r *Receiver) Begin(p *Pool, packet int) (more, poolShort bool) {
	r.packet = Cost(packet)
	return r.Extend(p)
}

// End ends a connection. What is stored stays reserved.
func (r *Receiver) End(p *Pool) {
	bytes, messages := r.outstanding()
	p.reserve(-bytes, -messages)
	r.granted, r.arrived, r.low, r.packet = Amount{}, Amount{}, Amount{}, 0
}

// outstanding is the credit that the peer has not used.
func (r *Receiver) outstanding() (bytes, messages int) {
	return int(r.granted.Bytes - r.arrived.Bytes), int(r.granted.Messages - r.arrived.Messages)
}

// Grant returns all credit of this connection, used or not.
func (r *Receiver) Grant() Amount { return r.granted }

// Arrived counts a message of that cost, which is no longer reserved unless Keep is called. It returns what Low does; if
// it does not, the peer had credit for the message.
func (r *Receiver) Arrived(p *Pool, cost int) (low bool) {
	r.arrived.Bytes += uint64(cost)
	r.arrived.Messages++
	p.reserve(-cost, -1)
	return r.arrived.Bytes >= r.low.Bytes || r.arrived.Messages >= r.low.Messages
}

// Exceeded reports whether the peer has sent more than its credit.
func (r *Receiver) Exceeded() bool {
	return r.arrived.Bytes > r.granted.Bytes || r.arrived.Messages > r.granted.Messages
}

// Low reports whether the peer has used so much credit that Extend should be called.
func (r *Receiver) Low() bool {
	return r.packet > 0 && (r.arrived.Bytes >= r.low.Bytes || r.arrived.Messages >= r.low.Messages)
}

// Keep reserves the memory of a message of that cost that is stored.
func (r *Receiver) Keep(p *Pool, cost int) {
	r.keptBytes += cost
	r.kept++
	p.reserve(cost, 1)
}

// Release gives back the memory of a stored message. The peer may be due for more credit: see Low.
func (r *Receiver) Release(p *Pool, cost int) {
	r.keptBytes -= cost
	r.kept--
	p.reserve(-cost, -1)
}

// Kept returns how many messages are stored.
func (r *Receiver) Kept() int { return r.kept }

// Blocked reports whether a peer that follows the protocol may be unable to send a message.
func (r *Receiver) Blocked() bool {
	bytes, messages := r.outstanding()
	return r.packet > 0 && (bytes < r.packet || messages == 0)
}

// Full reports whether the peer lacks credit for the number of its messages, not for their bytes.
func (r *Receiver) Full() bool {
	_, messages := r.outstanding()
	return messages == 0
}

// Extend grants more credit if the peer has used most of its window. It returns whether there is a new grant, and
// whether only the other peers' reservations have prevented one that would do.
func (r *Receiver) Extend(p *Pool) (more, poolShort bool) {
	bytes, messages := r.outstanding()
	wantBytes := max(p.Bytes/(2*max(p.Peers, 1)), 2*r.packet)
	wantMessages := max(min(p.PeerMessages, p.Messages/(2*max(p.Peers, 1))), leastMessages)
	share := p.Bytes
	if p.Peers > 1 {
		share /= 2
	}
	// As far as the peer's share goes; then as far as the pool goes.
	addBytes := min(wantBytes-bytes, share-r.keptBytes-bytes)
	addMessages := min(wantMessages-messages, p.PeerMessages-r.kept-messages)
	byShare := bytes+addBytes >= r.packet && messages+addMessages > 0
	addBytes = min(addBytes, p.Bytes-p.bytes)
	addMessages = min(addMessages, p.Messages-p.messages)
	if r.kept == 0 {
		addBytes, addMessages = max(addBytes, r.packet-bytes), max(addMessages, leastMessages-messages)
	}
	addBytes, addMessages = max(addBytes, 0), max(addMessages, 0)
	poolShort = byShare && (bytes+addBytes < r.packet || messages+addMessages == 0)
	enough := bytes >= r.packet && messages >= leastMessages
	if addBytes+addMessages == 0 || enough && addBytes < wantBytes/4 && addMessages < wantMessages/4 {
		return false, poolShort
	}
	r.granted.Bytes += uint64(addBytes)
	r.granted.Messages += uint64(addMessages)
	p.reserve(addBytes, addMessages)
	r.low.Bytes = r.granted.Bytes - min(r.granted.Bytes, uint64(max(wantBytes/4, r.packet-1)))
	r.low.Messages = r.granted.Messages - min(r.granted.Messages, uint64(wantMessages/4))
	return true, poolShort
}
