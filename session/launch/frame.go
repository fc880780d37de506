package launch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
	wireVersion  = 6

	claimSize   = 12
	welcomeSize = 4

	// Bytes of a handshake, claim and welcome included.
	clientBytes = handshake.DialBytes + handshake.FrameBytes + claimSize
	serverBytes = handshake.AcceptBytes + handshake.FrameBytes + welcomeSize

	maxBody = 1 + MaxCard
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
	kindFence   kind = 2 // how 1, data
	kindLookup  kind = 3 // rank 4
	kindAbort   kind = 4 // rank 4, code 4, why
	kindBye     kind = 5
	kindWatch   kind = 6 // ends of ranks are reported from now on

	kindFenced kind = 129 // the fence is complete
	kindGone   kind = 130 // rank 4, code 4, why: an abort, or code is 0 and the fence fails, and each exchange
	kindCard   kind = 131 // card, or nothing: answers the first look-up that was not answered
	kindGiven  kind = 132 // data: before kindFenced, as often as fenceKind.answers says
	kindEnded  kind = 133 // rank 4, how 1, code 4: once for each rank that has ended
)

// fenceKind is what the ranks in a fence wait for, in addition to each other.
type fenceKind uint8

const (
	fencePlain    fenceKind = iota // no data
	fenceAgree                     // a word; the answer is one byte: 1 if all ranks have sent the same one, else 0
	fenceExchange                  // data; the answers are the data of each rank, in the order of ranks
)

// answers returns how many kindGiven come before kindFenced.
func (k fenceKind) answers(size int) int { return [...]int{0, 1, size}[k] }

func parseFence(b []byte) (how fenceKind, data []byte, err error) {
	if len(b) == 0 {
		return 0, nil, errFrame
	}
	how, data = fenceKind(b[0]), b[1:]
	switch {
	case how == fencePlain && len(data) == 0, how == fenceAgree && len(data) >= 1 && len(data) <= MaxWord, how == fenceExchange && len(data) <= MaxCard:
		return how, data, nil
	}
	return 0, nil, errFrame
}

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

func putLookup(rank int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(rank)) }

func putRankError(e *RankError) []byte {
	b := binary.BigEndian.AppendUint32(putLookup(e.Rank), uint32(e.Code))
	return append(b, e.Why[:min(len(e.Why), maxWhy)]...)
}

func parseRankError(b []byte) (*RankError, error) {
	if len(b) < 8 || len(b) > 8+maxWhy {
		return nil, errFrame
	}
	rank, code := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	if rank >= MaxSize || code > 255 {
		return nil, errFrame
	}
	return &RankError{int(rank), int(code), plain(string(b[8:]))}, nil
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
