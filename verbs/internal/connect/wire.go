//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/bywash/bywash/driver"
)

// protocolVersion is the version of links, claims and messages.
const protocolVersion = 4

// messageKind is the kind of a message about the endpoint that a link serves. Messages travel over authenticated links;
// all integers are little-endian. Each message begins with its kind and a byte 0. The rest depends on the kind.
type messageKind uint8

const (
	msgRequest messageKind = iota + 1 // offer
	msgReply                          // offer
	msgConfirm                        // the sender can receive (asker), or is in RTS (answerer)
	msgReject                         // code, detail: the endpoint has failed
	msgGone                           // the endpoint is finalized
	msgAlive                          // nothing has happened
	msgBye                            // the sender's context closes

	msgKinds = int(msgBye)
)

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
	rejectTime    // the other side took too long
)

// String describes the reason so that it is true for either side.
func (c rejectCode) String() string {
	reasons := [...]string{
		rejectLinkLayer: "one port is InfiniBand, the other Ethernet",
		rejectGIDType:   "the ports use different RoCE versions, or one IPv4 and the other IPv6 (choose GIDs of one type)",
		rejectSubnet:    "the ports are on different subnets",
		rejectPKey:      "the ports are in different partitions, or are both limited members of one",
		rejectQPs:       "the two ends have different numbers of queue pairs",
		rejectStep:      "a queue pair could not be modified",
		rejectPrepare:   "receives could not be prepared",
		rejectTime:      "it took too long",
	}
	if c == 0 || int(c) >= len(reasons) {
		return fmt.Sprintf("code %d", uint32(c))
	}
	return reasons[c]
}

// sameRelease is the remedy for different versions.
const sameRelease = "use the same release on both sides"

const (
	headBytes  = 1 + 1
	offerBytes = 6 + 2 + 2 + 16 + 1
	qpBytes    = 8
	// maxPayload is the size of the longest message in bytes.
	maxPayload = headBytes + offerBytes + maxQPs*qpBytes + maxUserData
)

// offer is the description of one end.
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
	qps       [maxQPs]qpOffer
	user      []byte
}

type qpOffer struct{ num, psn uint32 }

// message is a message of any kind; its kind determines which fields it has.
type message struct {
	kind   messageKind
	code   rejectCode
	detail uint32
	offer  offer
}

// Errors for which a link ends, besides the sentinels of package driver.
var (
	errMalformed = errors.New("malformed message")
	errTryAgain  = errors.New("try again")
)

// append encodes m.
func (m *message) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, byte(m.kind), 0)
	switch m.kind {
	case msgRequest, msgReply:
		b = m.offer.append(b)
	case msgReject:
		b = le.AppendUint32(b, uint32(m.code))
		b = le.AppendUint32(b, m.detail)
	}
	return b
}

// parse decodes a message. It returns errMalformed unless b is exactly one message. The user data of the offer is a
// copy.
func (m *message) parse(b []byte) error {
	le := binary.LittleEndian
	if len(b) < headBytes {
		return fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	*m = message{kind: messageKind(b[0])}
	if m.kind == 0 || int(m.kind) > msgKinds || b[1] != 0 {
		return fmt.Errorf("%w: kind %d, then %#x", errMalformed, m.kind, b[1])
	}
	b = b[headBytes:]
	need, ok := 0, true
	switch m.kind {
	case msgRequest, msgReply:
		need, ok = m.offer.parse(b)
	case msgReject:
		if need = 8; len(b) == need {
			m.code, m.detail = rejectCode(le.Uint32(b)), le.Uint32(b[4:])
		}
	}
	if !ok || len(b) != need {
		return fmt.Errorf("%w: body of %d bytes in kind %d", errMalformed, len(b), m.kind)
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

// parse decodes an offer and returns its length. ok is false for values out of range.
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
	if o.n == 0 || o.n > maxQPs || user > maxUserData || o.mtu == 0 || o.mtu > 5 || len(b) != need {
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

// isIPv4 and isLocal report whether a GID of a RoCE port is an IPv4 address, or a link-local one of IPv6.
func isIPv4(gid [16]byte) bool  { return [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff} }
func isLocal(gid [16]byte) bool { return gid[0] == 0xfe && gid[1]&0xc0 == 0x80 }

// fits returns the reason for which two ends cannot be connected, or 0.
func (o *offer) fits(p *offer) rejectCode {
	switch {
	case o.linkLayer != p.linkLayer:
		return rejectLinkLayer
	case o.gidType != p.gidType:
		return rejectGIDType
	case o.linkLayer == InfiniBand && [8]byte(o.gid[:8]) != [8]byte(p.gid[:8]):
		return rejectSubnet
	case o.linkLayer == Ethernet && isIPv4(o.gid) != isIPv4(p.gid):
		return rejectGIDType
	case o.linkLayer == Ethernet && isLocal(o.gid) != isLocal(p.gid):
		return rejectSubnet
	case (o.pkey^p.pkey)&0x7fff != 0 || (o.pkey|p.pkey)&0x8000 == 0: // two limited members of a partition cannot communicate
		return rejectPKey
	case o.n != p.n:
		return rejectQPs
	}
	return 0
}

// rejectError returns the error of a reject for its receiver.
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
	return fmt.Errorf("%w: the peer reports: %v", driver.ErrBroken, m.code)
}

// claim is a dialer's first frame after it has proven the secret: its context, the context that it wants, and what for.
type claim struct {
	version  uint16
	purpose  purpose
	from, to uint64 // incarnations
}

// purpose is what a link is for.
type purpose uint16

const (
	forEndpoint purpose = iota + 1 // the dialer, which is the asker, connects one endpoint
	forWatching                    // the dialer watches whether the listener's process lives
)

const claimBytes = 2 + 2 + 8 + 8

func (c *claim) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, c.version)
	b = le.AppendUint16(b, uint16(c.purpose))
	b = le.AppendUint64(b, c.from)
	return le.AppendUint64(b, c.to)
}

// parse decodes a claim: ErrVersion for another version, else errMalformed.
func (c *claim) parse(b []byte) error {
	le := binary.LittleEndian
	if len(b) < 2 {
		return fmt.Errorf("%w: claim of %d bytes", errMalformed, len(b))
	}
	if c.version = le.Uint16(b); c.version != protocolVersion {
		return fmt.Errorf("%w: connection protocol %d, this program has %d: %s", driver.ErrVersion, c.version,
			protocolVersion, sameRelease)
	}
	if len(b) != claimBytes {
		return fmt.Errorf("%w: claim of %d bytes", errMalformed, len(b))
	}
	c.purpose, c.from, c.to = purpose(le.Uint16(b[2:])), le.Uint64(b[4:]), le.Uint64(b[12:])
	if c.purpose != forEndpoint && c.purpose != forWatching {
		return fmt.Errorf("%w: claim with purpose %d", errMalformed, c.purpose)
	}
	return nil
}

// welcome is the listener's answer to a claim, the first frame of a link.
type welcome struct{ code refusal }

// refusal is the reason for which no link was made, or 0.
type refusal uint16

const (
	refuseVersion refusal = iota + 1
	refuseSecret          // rdmacm: the ticket's MAC is wrong
	refuseStale           // the context here has another incarnation
	refuseBusy            // the listener is closing or has too many dialers
)

const welcomeBytes = 2 + 2

func (w *welcome) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, protocolVersion)
	return le.AppendUint16(b, uint16(w.code))
}

func (w *welcome) parse(b []byte) error {
	le := binary.LittleEndian
	if len(b) != welcomeBytes {
		return fmt.Errorf("%w: welcome of %d bytes", errMalformed, len(b))
	}
	w.code = refusal(le.Uint16(b[2:]))
	if v := le.Uint16(b); v != protocolVersion {
		return refuseVersion.err()
	}
	return nil
}

// err returns the dialer's error for a refusal.
func (r refusal) err() error {
	switch r {
	case 0:
		return nil
	case refuseVersion:
		return fmt.Errorf("%w: the peer speaks another version of the connection protocol: %s", driver.ErrVersion, sameRelease)
	case refuseSecret:
		return fmt.Errorf("%w: the session secrets differ", driver.ErrAuth)
	case refuseStale:
		return fmt.Errorf("%w: the peer process was restarted, or has ended", driver.ErrBroken)
	case refuseBusy:
		return fmt.Errorf("%w: the peer is closing, or has too many links", errTryAgain)
	}
	return fmt.Errorf("%w: the peer refused the link (code %d)", driver.ErrBroken, uint16(r))
}
