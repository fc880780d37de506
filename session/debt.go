package session

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/bywash/bywash/session/header"
)

// A peer must not make this process keep more than it has agreed to. What is kept on a peer's behalf is of two kinds,
// and each is counted for the gate and for the session, with everything that it costs:
//
//   - Messages that nobody has received (kept.go). Beyond their budget a peer is held up.
//   - Debt: answers that the peer has not taken (owed), control messages, chunks and long messages that it has begun or
//     asked for. It is counted where it is made and where it is given back, and the limits are checked after each
//     message of the peer that is not a plain one. Beyond them the gate ends with ErrLimit: the link is still read
//     until then, as control must not wait behind data.
//
// An honest peer stays far below the limits of the debt. It has at most maxSyncs synchronous messages, maxLongs long
// ones and maxAsked operations without an answer: further ones wait in the backlog of the sender, which is the
// sender's memory. Near the limit a receiver has one chunk of each long message under way instead of several.

// ErrLimit means that a peer wanted this process to keep more for it than Config.PeerMemory or Config.PeersMemory
// allows. The error is ErrBroken as well, and names the limit.
var ErrLimit = errors.New("limit of what is kept for a peer")

// How many messages to one peer may wait for its answer. They are part of the protocol (docs/wire.md).
const (
	maxSyncs = 1 << 16 // synchronous messages that are not acknowledged
	maxLongs = 1 << 14 // long messages that are not received
)

// Defaults and minima of the limits, in bytes. An honest peer needs up to 76 MiB: maxLongs messages in each direction,
// each with a chunk, and those chunks that are begun before the limit is near.
const (
	defaultPeerMemory = 128 << 20
	peersMemoryFactor = 4
	minPeerMemory     = 1 << 20
	nearLimit         = 8    // from this part of the limit on, long messages take one chunk at a time
	bytesPerAnswer    = 1024 // one answer may wait for each of these bytes of the limit: 131 072 by default
)

// What things cost in bytes, beside the data that they hold.
const (
	parcelCost   = int(unsafe.Sizeof(parcel{}))
	pieceCost    = int(unsafe.Sizeof(piece{}))
	incomingCost = int(unsafe.Sizeof(incoming{})) + int(unsafe.Sizeof(slabItem[*incoming]{}))
	answerCost   = 2 * int(unsafe.Sizeof(answer{})) // its queue doubles
)

// owe adds to the debt.
func (g *Gate) owe(n int) {
	g.debt += n
	g.s.debt += n
}

// own charges a parcel to the gate until it is given back.
func (g *Gate) own(pc *parcel) {
	if pc.debtor == nil {
		pc.debtor, pc.cost = g, int32(parcelCost+cap(pc.big))
		g.owe(int(pc.cost))
	}
}

// replies is how many operations of the peer have an answer that waits.
func (g *Gate) replies() int {
	if pc := g.door; pc != nil && header.Kind(pc.buf[0]) == header.Reply {
		return g.answers.replies + 1
	}
	return g.answers.replies
}

// crowded reports whether a gate is so near its limit that it should begin nothing that can wait.
func (g *Gate) crowded() bool {
	c := &g.s.cfg
	return g.debt > c.PeerMemory/nearLimit || g.s.debt > c.PeersMemory/nearLimit
}

// within ends the gate if the peer wants more than the limits allow. It returns what handle does.
func (l *link) within() bool {
	g, s := l.g, l.g.s
	switch most := s.cfg.PeerMemory; {
	case l.dead:
		return false
	case g.answers.n > most/bytesPerAnswer:
		return l.bad(fmt.Errorf("%w: %w: %d answers wait for the peer, which does not take them; Config.PeerMemory (%d bytes) allows %d: raise it if the peer needs more",
			ErrBroken, ErrLimit, g.answers.n, most, most/bytesPerAnswer))
	case g.debt > most:
		return l.bad(fmt.Errorf("%w: %w: messages under way and answers cost %d bytes; Config.PeerMemory allows %d: raise it if the peer needs more",
			ErrBroken, ErrLimit, g.debt, most))
	case s.debt > s.cfg.PeersMemory:
		s.endDebtor()
	}
	return !l.dead
}

// endDebtor ends the gate that has the largest part of a debt that is too large in sum.
func (s *Session) endDebtor() {
	var worst *Gate
	for _, g := range s.gates {
		if g != nil && g.lead != nil && (worst == nil || g.debt > worst.debt) {
			worst = g
		}
	}
	if worst != nil && worst.debt > 0 {
		worst.lead.bad(fmt.Errorf("%w: %w: messages under way and answers of all peers cost %d bytes, %d of them this peer's; Config.PeersMemory allows %d: raise it if the peers need more",
			ErrBroken, ErrLimit, s.debt, worst.debt, s.cfg.PeersMemory))
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
		return fmt.Errorf("%w: PeerMemory is %d bytes and PeersMemory %d: want at least %d for one peer, and not less for all", ErrInvalid, c.PeerMemory, c.PeersMemory, minPeerMemory)
	case c.MaxMessage < 0 || c.MaxMessage > header.MaxTotal:
		return fmt.Errorf("%w: MaxMessage is %d bytes, want 1 to %d, or 0", ErrInvalid, c.MaxMessage, header.MaxTotal)
	}
	return nil
}

// machineMemory is how many bytes of memory the machine has; 16 GiB where it does not say.
func machineMemory() int {
	b, err := os.ReadFile("/proc/meminfo")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
				if kib, err := strconv.Atoi(f[1]); err == nil && kib > 0 {
					return kib << 10
				}
			}
		}
	}
	return 16 << 30
}

// mayLeave reports whether a message that waits for the peer's answer may leave now: not while too many do already.
func (g *Gate) mayLeave(pc *parcel) bool {
	if pc.out != nil {
		return g.longs < maxLongs
	}
	return g.syncs < maxSyncs
}

// blocked reports whether the backlog waits for answers of the peer.
func (g *Gate) blocked() bool {
	pc := g.backlog.first
	return pc != nil && pc.lasts() && !g.mayLeave(pc)
}

// queued is how much waits to leave over the connection that stands, or the one that is being made.
func (g *Gate) queued() int {
	n := g.replay.n + g.answers.n + g.control.n + g.backlog.n
	if g.door != nil {
		n++
	}
	return n
}

// answer is what is to be told to a peer that has asked. It is made a parcel when there is room for it in the driver.
type answer struct {
	kind   header.Kind // Ack, Done or Reply
	get    bool        // a Reply whose data is read when it leaves
	status uint8
	sender bool // Done: for the sender's half, else for the receiver's
	length uint32
	to     uint64 // the tag
	region uint64 // of a get
	value  uint64 // offset of a get, result of another operation
}

// answers is a queue of them.
type answers struct {
	ring    []answer // a power of two
	first   int
	n       int
	replies int // of them, to operations
}

const minAnswers = 16

func (q *answers) push(a *answer) {
	if q.n == len(q.ring) {
		ring := make([]answer, max(minAnswers, 2*q.n))
		for i := range q.n {
			ring[i] = q.ring[(q.first+i)&(len(q.ring)-1)]
		}
		q.ring, q.first = ring, 0
	}
	q.ring[(q.first+q.n)&(len(q.ring)-1)] = *a
	q.n++
	if a.kind == header.Reply {
		q.replies++
	}
}

func (q *answers) pop() (a answer) {
	a = q.ring[q.first]
	q.first = (q.first + 1) & (len(q.ring) - 1)
	if a.kind == header.Reply {
		q.replies--
	}
	if q.n--; q.n == 0 && len(q.ring) > minAnswers {
		q.ring, q.first = nil, 0
	}
	return a
}

// answer tells the peer, or has it told when there is room. Answers go before everything else that waits.
func (g *Gate) answer(a answer) {
	switch {
	case g.pausing == paused: // the peer still wants to know
	case g.pausing == pausing && g.byeSent && a.kind != header.Reply: // the peer waits for its replies before it says bye
		g.owe(answerCost)
		g.nextAnswers.push(&a)
		return
	case g.state != gateUp && g.state != gateClosing:
		return // there is nobody to tell
	}
	if g.clear && g.replay.n == 0 && g.door == nil && g.answers.n == 0 {
		pc := g.s.answerParcel(&a)
		if _, taken := g.lead.post(pc); taken {
			return
		}
		g.door = pc
		g.work()
		return
	}
	g.owe(answerCost)
	g.answers.push(&a)
	if g.state == gateIdle {
		g.connect()
	}
	g.work()
}

// done tells the peer that a message is over, by the number of its half.
func (g *Gate) done(to uint64, status uint8, sender bool) {
	g.answer(answer{kind: header.Done, to: to, status: status, sender: sender})
}

// answerParcel makes the parcel of an answer.
func (s *Session) answerParcel(a *answer) *parcel {
	h := header.Header{Kind: a.kind, Tag: a.to}
	switch a.kind {
	case header.Done:
		pc, body := s.control(h, nil)
		part := header.Part{Status: a.status, ToSender: a.sender, All: true}
		part.Put(body)
		return pc
	case header.Reply:
		out := header.Outcome{Status: a.status, Result: a.value}
		var data []byte
		if a.get {
			var err error
			data, err = s.carryOut(&header.Operation{Region: a.region, Offset: a.value, Length: a.length, What: opGet}, nil, nil)
			out.Status, out.Result = opStatus(err), 0
		}
		pc, body := s.control(h, data)
		out.Put(body)
		return pc
	}
	pc, _ := s.control(h, nil)
	return pc
}

// opStatus is the status of a reply.
func opStatus(err error) uint8 {
	for i, e := range opErrors {
		if err == e {
			return uint8(i)
		}
	}
	return uint8(len(opErrors) - 1)
}

// pushAnswers sends what is owed. False if there is no room for the next answer.
func (g *Gate) pushAnswers() (moved, room bool) {
	for g.clear {
		pc := g.door
		if pc == nil {
			if g.answers.n == 0 {
				return moved, true
			}
			g.owe(-answerCost)
			a := g.answers.pop()
			pc = g.s.answerParcel(&a)
		}
		g.door = nil
		left, taken := g.lead.post(pc)
		if !taken {
			g.door = pc
			return moved, false
		}
		moved = moved || left
	}
	return moved, false
}

// pushQueue sends what waits in a queue. False if there is no room for the next.
func (g *Gate) pushQueue(q *parcelQueue) (moved, room bool) {
	for q.n > 0 && g.clear {
		pc := q.pop()
		left, taken := g.lead.post(pc)
		if !taken {
			q.pushFront(pc)
			return moved, false
		}
		moved = moved || left
	}
	return moved, g.clear
}

// dropAnswers forgets what is owed over a connection that is no more.
func (g *Gate) dropAnswers(err error) {
	g.owe(-answerCost * (g.answers.n + g.nextAnswers.n))
	g.answers, g.nextAnswers = answers{}, answers{}
	if pc := g.door; pc != nil {
		g.door = nil
		g.s.lost(pc, err)
	}
}

// resumeAnswers has those that wait for the next connection go over it.
func (g *Gate) resumeAnswers() {
	for g.nextAnswers.n > 0 {
		a := g.nextAnswers.pop()
		g.answers.push(&a)
	}
}
