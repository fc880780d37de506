package launch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"

	"github.com/bywash/bywash/internal/handshake"
)

// The wire of the embedded launcher begins with the handshake of internal/handshake for the protocol protocolName, in
// which the client dials. All integers of what follows are big endian:
//
//	claim      client, once   version 1, 0 3, rank 4, size 4
//	welcome    server, once   version 1, status 1, 0 2
//	frame      both, then     kind 1, body
//
// Each of them is sealed: frames cannot be forged, replayed, reordered or dropped unnoticed.
const (
	protocolName = "bywash rendezvous"
	wireVersion  = 5

	claimSize   = 12
	welcomeSize = 4

	// Bytes of a handshake, claim and welcome included.
	clientBytes = handshake.DialBytes + handshake.FrameBytes + claimSize
	serverBytes = handshake.AcceptBytes + handshake.FrameBytes + welcomeSize

	maxBody = 5 + MaxCard
	maxWhy  = 256
)

var frameConfig = handshake.Config{Protocol: protocolName, Limit: 1 + maxBody}

// status is the content of a welcome.
type status uint8

const (
	statusOK status = iota
	statusVersion
	statusSize
	statusRank
	statusTaken
	statusLate
)

// Kinds of frames: of clients, and of the server.
type kind uint8

const (
	kindPublish kind = 1 // card
	kindFence   kind = 2
	kindLookup  kind = 3 // id 4, rank 4
	kindAbort   kind = 4 // code 4, why
	kindBye     kind = 5
	kindAgree   kind = 6 // word

	kindExchange kind = 7 // data
	kindWatch    kind = 8 // ends of ranks are reported from now on

	kindFenced  kind = 129
	kindGone    kind = 130 // rank 4, state 1: the fence fails
	kindCard    kind = 131 // id 4, found 1, card
	kindAborted kind = 132 // rank 4, code 4, why
	kindAgreed  kind = 133 // 1: all sent the same word, else 0

	kindGiven kind = 134 // rank 4, data: one for each rank ends an exchange
	kindLost  kind = 135 // rank 4, state 1: no exchange can complete any more
	kindEnded kind = 136 // rank 4, how 1, code 4: once for each rank that has ended
)

var errFrame = errors.New("malformed message")

// launchError wraps an error of the handshake in the corresponding one of this package.
func launchError(err error) error {
	switch {
	case errors.Is(err, handshake.ErrSecret):
		return fmt.Errorf("%w: %w", ErrAuth, err)
	case errors.Is(err, handshake.ErrVersion):
		return fmt.Errorf("%w: %w", ErrVersion, err)
	case errors.Is(err, handshake.ErrMalformed):
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	return err
}

// hello is what a client claims.
type hello struct{ rank, size uint32 }

func (h *hello) put() []byte {
	b := binary.BigEndian.AppendUint32([]byte{wireVersion, 0, 0, 0}, h.rank)
	return binary.BigEndian.AppendUint32(b, h.size)
}

// checkVersion distinguishes another version (ErrVersion) from a malformed message.
func checkVersion(b []byte) error {
	if len(b) < 1 {
		return errFrame
	}
	if b[0] != wireVersion {
		return fmt.Errorf("peer has version %d, this program %d: %w", b[0], wireVersion, ErrVersion)
	}
	return nil
}

// parseHello reads a client's claim; the error is ErrVersion or malformed.
func parseHello(b []byte) (h hello, err error) {
	if err := checkVersion(b); err != nil {
		return h, err
	}
	if len(b) != claimSize || b[1]|b[2]|b[3] != 0 {
		return h, errFrame
	}
	return hello{binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])}, nil
}

func putWelcome(s status) []byte { return []byte{wireVersion, byte(s), 0, 0} }

// parseWelcome returns nil if the server accepts this rank.
func (h *hello) parseWelcome(b []byte) error {
	if err := checkVersion(b); err != nil {
		return err
	}
	if len(b) != welcomeSize || b[2]|b[3] != 0 {
		return errFrame
	}
	switch status(b[1]) {
	case statusOK:
		return nil
	case statusVersion:
		return fmt.Errorf("refused: %w", ErrVersion)
	case statusSize:
		return fmt.Errorf("the job does not have %d ranks: %w", h.size, ErrInvalid)
	case statusRank:
		return fmt.Errorf("the job has no rank %d: %w", h.rank, ErrInvalid)
	case statusTaken:
		return fmt.Errorf("rank %d %w: %w", h.rank, ErrTaken, ErrInvalid)
	case statusLate:
		return fmt.Errorf("rank %d %w", h.rank, ErrLate)
	}
	return errFrame
}

// buffered is a connection that is read in large pieces.
func buffered(c net.Conn) io.ReadWriter {
	return struct {
		io.Reader
		io.Writer
	}{bufio.NewReader(c), c}
}

func frameSize(body int) int { return handshake.FrameBytes + 1 + body }

// sendFrame writes a frame.
func sendFrame(c *handshake.Conn, k kind, body []byte) error {
	return c.Send(append([]byte{byte(k)}, body...))
}

// receiveFrame reads the next frame. The body is the caller's.
func receiveFrame(c *handshake.Conn) (kind, []byte, error) {
	b, err := c.Receive()
	if err != nil {
		return 0, nil, launchError(err)
	}
	if len(b) == 0 {
		return 0, nil, errFrame
	}
	return kind(b[0]), bytes.Clone(b[1:]), nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func putLookup(id, rank uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, id), rank)
}

func parseLookup(b []byte) (id, rank uint32, err error) {
	if len(b) != 8 {
		return 0, 0, errFrame
	}
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), nil
}

func putCard(id uint32, card []byte) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 5+len(card)), id)
	if card == nil {
		return append(b, 0)
	}
	return append(append(b, 1), card...)
}

// parseCard returns a nil card where the rank has published none.
func parseCard(b []byte) (id uint32, card []byte, err error) {
	if len(b) < 5 {
		return 0, nil, errFrame
	}
	id, card = binary.BigEndian.Uint32(b), b[5:]
	switch {
	case b[4] == 0 && len(card) == 0:
		return id, nil, nil
	case b[4] == 1 && len(card) > 0:
		return id, card, nil
	}
	return 0, nil, errFrame
}

func putAbort(code int, why string) []byte {
	if len(why) > maxWhy {
		why = why[:maxWhy]
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(exitCode(code))), why...)
}

func parseAbort(b []byte) (code int, why string, err error) {
	if len(b) < 4 || len(b) > 4+maxWhy {
		return 0, "", errFrame
	}
	n := binary.BigEndian.Uint32(b)
	if n < 1 || n > 255 {
		return 0, "", errFrame
	}
	return int(n), plain(string(b[4:])), nil
}

func putAborted(rank, code int, why string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(rank)), putAbort(code, why)...)
}

func parseAborted(b []byte) (rank, code int, why string, err error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) > math.MaxInt32 {
		return 0, 0, "", errFrame
	}
	code, why, err = parseAbort(b[4:])
	return int(binary.BigEndian.Uint32(b)), code, why, err
}

func putGone(rank int, f rankState) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(rank)), byte(f))
}

func parseGone(b []byte) (rank int, f rankState, err error) {
	if len(b) != 5 || binary.BigEndian.Uint32(b) > math.MaxInt32 {
		return 0, 0, errFrame
	}
	f = rankState(b[4])
	if f < rankLeft || f > rankLate {
		return 0, 0, errFrame
	}
	return int(binary.BigEndian.Uint32(b)), f, nil
}

func putGiven(rank int, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(data)), uint32(rank)), data...)
}

// parseGiven returns data that is never nil.
func parseGiven(b []byte) (rank int, data []byte, err error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) > math.MaxInt32 {
		return 0, nil, errFrame
	}
	return int(binary.BigEndian.Uint32(b)), b[4:], nil
}

// plain replaces the control characters of a peer's text, so that it is harmless on a terminal and one line long.
func plain(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < 0x20 || c > 0x7e {
			b[i] = '?'
		}
	}
	return string(b)
}
