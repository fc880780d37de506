package connect

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/bywash/bywash/driver"
)

// Messages about endpoints, which travel over authenticated links. All integers
// are little-endian. Each begins with kind (8 bits), flags (8), id of the
// sender's endpoint (64), id of the receiver's (64; 0 if the sender does not
// know it); what follows depends on the kind.
type messageKind uint8

const (
	msgCall    messageKind = iota + 1 // count: so many endpoints here want to be asked
	msgRequest                        // prev, offer
	msgWait                           // the endpoint is known, and its peer works or waits
	msgReply                          // offer
	msgConfirm                        // the sender can receive (asker), or is in RTS (answerer); flags
	msgReject                         // code, detail: the endpoint has failed
	msgClose                          // the sender's endpoint is finalized
	msgClosed                         // answers close, or what came for an endpoint that is not here
	msgCheck                          // after a new link: answered with closed unless the pair is still there
	msgBye                            // the sender closes this link; flagFinal: for ever
	msgWelcome                        // first on a link, by the side that accepted it
)

// Flags, by kind.
const (
	flagCTS    = 1 << 0 // request, reply: the sender uses CTS
	flagClear  = 1 << 0 // confirm: the sender's receives are posted
	flagAnswer = 1 << 1 // confirm: is not answered
	flagFinal  = 1 << 0 // bye
)

// flagsOf are the flags that a kind may have.
var flagsOf = [...]uint8{
	msgCall: 0, msgRequest: flagCTS, msgWait: 0, msgReply: flagCTS, msgConfirm: flagClear | flagAnswer,
	msgReject: 0, msgClose: 0, msgClosed: 0, msgCheck: 0, msgBye: flagFinal, msgWelcome: 0,
}

// Codes of reject.
type rejectCode uint32

const (
	rejectLinkLayer rejectCode = iota + 1
	rejectGIDType
	rejectSubnet
	rejectPKey
	rejectQPs
	rejectStep    // detail: step in the upper 16 bits, errno in the lower
	rejectPrepare // the user's Prepare failed
	rejectBusy    // too many requests that nobody has answered
	rejectTime    // the other side took too long
)

// String says it from the point of view of either side.
func (c rejectCode) String() string {
	switch c {
	case rejectLinkLayer:
		return "one port is InfiniBand, the other Ethernet"
	case rejectGIDType:
		return "the ports use different RoCE versions, or one IPv4 and the other IPv6 (choose GIDs of one type)"
	case rejectSubnet:
		return "the ports are on different subnets"
	case rejectPKey:
		return "the ports are in different partitions"
	case rejectQPs:
		return "the two ends have different numbers of queue pairs"
	case rejectStep:
		return "a queue pair could not be modified"
	case rejectPrepare:
		return "receives could not be prepared"
	case rejectBusy:
		return "too many requests wait there"
	case rejectTime:
		return "it took too long"
	}
	return fmt.Sprintf("code %d", uint32(c))
}

// sameRelease is what to do about a version.
const sameRelease = "use the same release on both sides"

const (
	headBytes  = 1 + 1 + 8 + 8
	offerBytes = 6 + 2 + 2 + 16 + 1
	qpBytes    = 8
	// maxPayload is the longest message.
	maxPayload = headBytes + 8 + offerBytes + MaxQPs*qpBytes + MaxUserData
)

// offer is what one end says about itself.
type offer struct {
	linkLayer LinkLayer
	gidType   GIDType
	mtu       uint8 // code
	responder uint8
	initiator uint8
	lid       uint16
	pkey      uint16
	gid       [16]byte
	n         int // queue pairs
	qps       [MaxQPs]qpOffer
	user      []byte
}

type qpOffer struct{ num, psn uint32 }

// message is any message; which fields it has depends on its kind.
type message struct {
	kind     messageKind
	flags    uint8
	from, to uint64
	count    uint32 // call
	prev     uint64 // request: one that must be known first, or 0
	code     rejectCode
	detail   uint32
	offer    offer
}

// Why a link ended, besides the sentinels of package driver.
var (
	errMalformed = errors.New("malformed message")
	errTryAgain  = errors.New("try again")
)

// append encodes m.
func (m *message) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, byte(m.kind), m.flags)
	b = le.AppendUint64(b, m.from)
	b = le.AppendUint64(b, m.to)
	switch m.kind {
	case msgCall:
		b = le.AppendUint32(b, m.count)
	case msgRequest:
		b = m.offer.append(le.AppendUint64(b, m.prev))
	case msgReply:
		b = m.offer.append(b)
	case msgReject:
		b = le.AppendUint32(b, uint32(m.code))
		b = le.AppendUint32(b, m.detail)
	}
	return b
}

// parse decodes a message; errMalformed for what is not exactly one. The offer's
// user data is a copy.
func (m *message) parse(b []byte) error {
	le := binary.LittleEndian
	if len(b) < headBytes {
		return fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	*m = message{kind: messageKind(b[0]), flags: b[1], from: le.Uint64(b[2:]), to: le.Uint64(b[10:])}
	if m.kind == 0 || int(m.kind) >= len(flagsOf) || m.flags&^flagsOf[m.kind] != 0 {
		return fmt.Errorf("%w: kind %d with flags %#x", errMalformed, m.kind, m.flags)
	}
	b = b[headBytes:]
	need, ok := 0, true
	switch m.kind {
	case msgCall:
		if need = 4; len(b) == need {
			m.count = le.Uint32(b)
		}
	case msgRequest:
		if len(b) < 8 {
			return fmt.Errorf("%w: request of %d bytes", errMalformed, len(b))
		}
		m.prev = le.Uint64(b)
		b = b[8:]
		need, ok = m.offer.parse(b)
	case msgReply:
		need, ok = m.offer.parse(b)
	case msgReject:
		if need = 8; len(b) == need {
			m.code, m.detail = rejectCode(le.Uint32(b)), le.Uint32(b[4:])
		}
	}
	if !ok || len(b) != need {
		return fmt.Errorf("%w: body of %d bytes in kind %d", errMalformed, len(b), m.kind)
	}
	return m.checkIDs()
}

// checkIDs tells whether the ids are there that the kind needs.
func (m *message) checkIDs() error {
	from, to := m.from != 0, m.to != 0
	var ok bool
	switch m.kind {
	case msgCall, msgRequest:
		ok = from && !to
	case msgWait, msgClosed:
		ok = to
	case msgReply, msgConfirm, msgCheck:
		ok = from && to
	case msgReject, msgClose:
		ok = from || to
	case msgBye, msgWelcome:
		ok = !from && !to
	}
	if !ok {
		return fmt.Errorf("%w: kind %d with ids %d and %d", errMalformed, m.kind, m.from, m.to)
	}
	return nil
}

func (o *offer) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, byte(o.n), byte(o.linkLayer), byte(o.gidType), o.mtu, o.responder, o.initiator)
	b = le.AppendUint16(b, o.lid)
	b = le.AppendUint16(b, o.pkey)
	b = append(b, o.gid[:]...)
	b = append(b, byte(len(o.user)))
	for _, q := range o.qps[:o.n] {
		b = le.AppendUint32(b, q.num)
		b = le.AppendUint32(b, q.psn)
	}
	return append(b, o.user...)
}

// parse decodes an offer and tells how long it should be; not ok for values
// out of range.
func (o *offer) parse(b []byte) (need int, ok bool) {
	le := binary.LittleEndian
	if len(b) < offerBytes {
		return offerBytes, false
	}
	o.n, o.linkLayer, o.gidType, o.mtu = int(b[0]), LinkLayer(b[1]), GIDType(b[2]), b[3]
	o.responder, o.initiator, o.lid, o.pkey = b[4], b[5], le.Uint16(b[6:]), le.Uint16(b[8:])
	copy(o.gid[:], b[10:])
	user := int(b[26])
	need = offerBytes + o.n*qpBytes + user
	if o.n == 0 || o.n > MaxQPs || user > MaxUserData || o.mtu == 0 || o.mtu > 5 || len(b) != need {
		return need, false
	}
	for k := range o.n {
		q := qpOffer{le.Uint32(b[offerBytes+k*qpBytes:]), le.Uint32(b[offerBytes+k*qpBytes+4:])}
		if q.num >= 1<<24 || q.psn >= 1<<24 {
			return need, false
		}
		o.qps[k] = q
	}
	o.user = append([]byte(nil), b[need-user:]...)
	return need, true
}

// fits tells whether two ends can be connected; 0 if so.
func (o *offer) fits(p *offer) rejectCode {
	v4 := func(g [16]byte) bool { return [12]byte(g[:12]) == [12]byte{10: 0xff, 11: 0xff} }
	local := func(g [16]byte) bool { return g[0] == 0xfe && g[1]&0xc0 == 0x80 }
	switch {
	case o.linkLayer != p.linkLayer:
		return rejectLinkLayer
	case o.gidType != p.gidType:
		return rejectGIDType
	case o.linkLayer == InfiniBand && [8]byte(o.gid[:8]) != [8]byte(p.gid[:8]):
		return rejectSubnet
	case o.linkLayer == Ethernet && v4(o.gid) != v4(p.gid):
		return rejectGIDType
	case o.linkLayer == Ethernet && local(o.gid) != local(p.gid):
		return rejectSubnet
	case (o.pkey^p.pkey)&0x7fff != 0 || (o.pkey|p.pkey)&0x8000 == 0: // two limited members cannot talk
		return rejectPKey
	case o.n != p.n:
		return rejectQPs
	}
	return 0
}

// rejectError is what a reject means to its receiver.
func (m *message) rejectError() error {
	switch m.code {
	case rejectStep:
		step := [...]string{"INIT", "RTR", "RTS"}
		if s := int(m.detail >> 16); s < len(step) {
			return fmt.Errorf("%w: the peer could not move its queue pair to %s: errno %d", driver.ErrBroken, step[s], m.detail&0xffff)
		}
	case rejectLinkLayer, rejectGIDType, rejectSubnet, rejectPKey, rejectQPs:
		return fmt.Errorf("%w: %v", driver.ErrInvalid, m.code)
	}
	return fmt.Errorf("%w: the peer says: %v", driver.ErrBroken, m.code)
}
