//go:build linux && !(386 || arm || mips || mipsle)

package shm

import "encoding/binary"

// A long message needs no ring: both ends publish where their buffer lies, in a
// slot of shared memory, and each end that can reach the other's buffer (it has
// mapped the arena, or may attach to the process) copies pieces of it. The
// sender's end claims pieces from the front, the receiver's from the back, by
// compare-and-swap, until they meet. A claimed piece holds both buffers until it
// is done, or its claimant dead: so a process that is stopped in the middle of
// a copy never writes to a buffer that was given up meanwhile. Where neither
// end can reach the other's buffer, the sender copies pieces through the ring.

// transferSlot is one long message. Its receiver chooses the slot; rdv data
// names it.
type transferSlot struct {
	recv  endLine // written by the receiving end, published by recv.ticket
	send  endLine // written by the sending end, published by send.ticket
	claim uint64  // compare-and-swapped by both
	_     [56]byte
}

// endLine describes the buffer of one end.
type endLine struct {
	ticket uint64 // which use of the slot the line speaks of
	addr   uint64 // in the end's address space; 0: not contiguous
	length uint64
	arena  uint64 // 0: none
	offset uint64
	done   uint64 // pieces this end has copied
	reach  uint32 // how this end reaches the other's buffer
	failed uint32 // not 0: this end could not copy a piece that counts in done
	ack    uint64 // ticket that the sending end has finished with
}

// transferDepth is the number of messages that can be posted each way. There are twice as
// many slots, because the sender's poll frees one later than the receiver's.
const transferDepth = transferSlots / 2

// How an end reaches the other's buffer.
const (
	reachUnknown = iota
	reachNone
	reachArena
	reachCMA
	reachSelf
)

// Claim word: pieces claimed from the front, pieces claimed from the back, a
// flag, and the low bits of the ticket.
const (
	claimBits   = 23
	claimMask   = 1<<claimBits - 1
	claimGiveUp = 1 << (2 * claimBits) // no further claims
	claimTag    = 2*claimBits + 1      // shift

	// Pieces are as long as lets both ends work, up to where longer ones gain
	// nothing: every piece costs a claim, and a system call where memory is
	// private.
	minPiece = 16 << 10
	maxPiece = 512 << 10
)

func front(w uint64) uint64 { return w & claimMask }
func back(w uint64) uint64  { return w >> claimBits & claimMask }

// Rdv data: slot, a checksum of the rest, ticket.
const rdvBytes = 16

// rdvSum changes with every single bit of its input: multiplying by an odd
// number carries each of them into the upper half.
func rdvSum(slot uint32, ticket uint64) uint32 {
	return uint32(ticket*0x9e3779b97f4a7c15>>32) ^ slot*0x85ebca6b
}

// parseRdv takes rdv data apart; false if it is not of this driver, or damaged.
func parseRdv(b []byte) (slot uint32, ticket uint64, ok bool) {
	if len(b) != rdvBytes {
		return 0, 0, false
	}
	le := binary.LittleEndian
	slot, ticket = le.Uint32(b), le.Uint64(b[8:])
	return slot, ticket, slot < transferSlots && le.Uint32(b[4:]) == rdvSum(slot, ticket)
}
