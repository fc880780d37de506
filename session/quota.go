package session

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/bywash/bywash/session/internal/header"
)

// A peer must not make this process hold more memory than the Config allows. Memory that is held for a peer is of two
// kinds; each is counted with all its overhead, for the gate and for the session:
//
//   - Unexpected messages (unexpected.go). Beyond their budget no more messages are taken from the peer.
//   - Gate.held: answers that the peer has not read (answers.go), control messages, chunks and long messages that
//     it has begun or requested. Memory is charged where it is taken and credited where it is freed, and the limits
//     are checked after each message of the peer that is not a plain one. Beyond them the gate ends with ErrLimit. The
//     link is read until then, because control must not wait behind data.
//
// A peer that follows the protocol stays far below the limits of the held memory. It has at most maxSyncs synchronous
// messages, maxLongs long ones and maxUnanswered operations without an answer: further ones wait in the backlog of the
// sender, which is the sender's memory. Near the limit a receiver has one chunk of each long message under way instead
// of several.

// How many messages to one peer may wait for its answer. They are part of the protocol (docs/wire.md).
const (
	maxSyncs = 1 << 16 // synchronous messages that are not acknowledged
	maxLongs = 1 << 14 // long messages that are not received
)

// Defaults and minima of the limits, in bytes. A peer that follows the protocol needs up to 80 MiB: maxLongs messages
// in each direction, each with a chunk, and those chunks that are begun before the limit is near.
const (
	defaultPeerMemory = 128 << 20
	peersMemoryFactor = 4
	minPeerMemory     = 1 << 20
	nearLimit         = 8    // from this part of the limit on, long messages take one chunk at a time
	bytesPerAnswer    = 1024 // one answer may wait for each of these bytes of the limit: 131 072 by default
)

// charges is what a gate's peer is charged with.
type charges struct {
	bytes int
	syncs int // synchronous messages that it has not acknowledged
	longs int // long messages that it has not received
}

// Overhead in bytes, beside the data.
const (
	outMsgCost   = int(unsafe.Sizeof(outMsg{}))
	pieceCost    = int(unsafe.Sizeof(piece{}))
	incomingCost = int(unsafe.Sizeof(incoming{})) + int(unsafe.Sizeof(slabItem[*incoming]{}))
	answerCost   = 2 * int(unsafe.Sizeof(answer{})) // its queue doubles
)

// charge adds to the memory that is held for the peer.
func (g *Gate) charge(n int) {
	g.held.bytes += n
	g.s.heldBytes += n
}

// chargeMsg charges a message to the gate until it is recycled.
func (g *Gate) chargeMsg(msg *outMsg) {
	if msg.charged == nil {
		msg.charged, msg.cost = g, int32(outMsgCost+cap(msg.big))
		g.charge(int(msg.cost))
	}
}

// nearQuota reports whether a gate is so near its limits that it should begin nothing that can wait.
func (g *Gate) nearQuota() bool {
	c := &g.s.cfg
	return g.held.bytes > c.PeerMemory/nearLimit || g.s.heldBytes > c.PeersMemory/nearLimit
}

// withinQuota ends the gate if the peer needs more than the limits allow. It returns what handle does.
func (l *link) withinQuota() bool {
	g, s := l.g, l.g.s
	switch most := s.cfg.PeerMemory; {
	case l.dead:
		return false
	case g.queues.answers.n > most/bytesPerAnswer:
		return l.failProtocol(fmt.Errorf("%w: %w: the peer does not read its replies: %d are queued; "+
			"Config.PeerMemory (%d bytes) allows %d: raise it if the peer needs more", ErrBroken, ErrLimit, g.queues.answers.n, most, most/bytesPerAnswer))
	case g.held.bytes > most:
		return l.failProtocol(fmt.Errorf("%w: %w: messages in progress and replies hold %d bytes; "+
			"Config.PeerMemory allows %d: raise it if the peer needs more", ErrBroken, ErrLimit, g.held.bytes, most))
	case s.heldBytes > s.cfg.PeersMemory:
		s.endLargest()
	}
	return !l.dead
}

// endLargest ends the gate that holds the most memory, because all gates together exceed Config.PeersMemory.
func (s *Session) endLargest() {
	var worst *Gate
	for _, g := range s.gates {
		if g != nil && g.lead != nil && (worst == nil || g.held.bytes > worst.held.bytes) {
			worst = g
		}
	}
	if worst != nil && worst.held.bytes > 0 {
		worst.lead.failProtocol(fmt.Errorf("%w: %w: messages in progress and replies of all peers hold %d bytes, %d of them for this peer; "+
			"Config.PeersMemory allows %d: raise it if the peers need more",
			ErrBroken, ErrLimit, s.heldBytes, worst.held.bytes, s.cfg.PeersMemory))
	}
}

// checkLimits sets and checks the limits of a configuration.
func (c *Config) checkLimits() error {
	if c.PeerMemory == 0 {
		c.PeerMemory = defaultPeerMemory
	}
	if c.PeersMemory == 0 {
		c.PeersMemory = peersMemoryFactor * c.PeerMemory
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = machineMemory() / 2
	}
	switch {
	case c.PeerMemory < minPeerMemory || c.PeersMemory < c.PeerMemory:
		return fmt.Errorf("%w: PeerMemory is %d bytes and PeersMemory %d: want at least %d for one peer, and not less for all",
			ErrInvalid, c.PeerMemory, c.PeersMemory, minPeerMemory)
	case c.MaxMessage < 0 || uint64(c.MaxMessage) > header.MaxTotal:
		return fmt.Errorf("%w: MaxMessage is %d bytes, want 1 to %d, or 0", ErrInvalid, c.MaxMessage, uint64(header.MaxTotal))
	}
	return nil
}

// machineMemory returns how many bytes of memory the machine has; 16 GiB if the kernel does not report it.
func machineMemory() int {
	b, err := os.ReadFile("/proc/meminfo")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
				if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil && kib > 0 {
					return int(min(kib<<10, math.MaxInt))
				}
			}
		}
	}
	return min(16<<30, math.MaxInt)
}

// mayLeave reports whether a message that waits for the peer's answer may leave now: not while too many do already.
func (g *Gate) mayLeave(msg *outMsg) bool {
	if msg.out != nil {
		return g.held.longs < maxLongs
	}
	return g.held.syncs < maxSyncs
}

// blocked reports whether the backlog waits for answers of the peer.
func (g *Gate) blocked() bool {
	msg := g.queues.backlog.first
	return msg != nil && msg.needsReply() && !g.mayLeave(msg)
}

// queued returns how many messages are queued for the connection that is established or being made.
func (g *Gate) queued() int {
	n := g.queues.replay.n + g.queues.answers.n + g.queues.control.n + g.queues.backlog.n
	if g.queues.firstAnswer != nil {
		n++
	}
	return n
}
