//go:build linux

package hostile

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// The session's messages as docs/wire.md lays them out: attackers share no code with the session.

// Kinds of messages.
const (
	msgHello = iota + 1
	msgEager
	msgSync
	msgAck
	msgRTS
	msgRTR
	msgCookie
	msgDone
	msgFrag
	msgAM
	msgOp
	msgReply
	msgBye
	msgSeen
	msgResume
	msgPause
	msgLeave
	msgGrant
)

const (
	layoutVersion = 7
	headSize      = 16
	flagActive    = 2 // of an rts: it announces an active message
)

// bodyWords are the lengths of bodies, in words of 8 bytes.
var bodyWords = [...]int{msgHello: 2, msgSync: 1, msgRTS: 3, msgRTR: 5, msgCookie: 1, msgDone: 1, msgFrag: 1, msgOp: 6, msgReply: 2, msgGrant: 3}

// header is what all messages begin with.
type header struct {
	kind, flags uint8
	extra       uint16
	tag         uint64
}

// message lays out a message with n bytes of data, all zero; words that body leaves out are zero, too.
func message(h header, n int, body ...uint64) []byte {
	le := binary.LittleEndian
	b := make([]byte, headSize+8*bodyWords[h.kind]+n)
	le.PutUint64(b, uint64(h.kind)|uint64(h.flags)<<8|uint64(h.extra)<<16|uint64(n)<<32)
	le.PutUint64(b[8:], h.tag)
	for i, w := range body {
		le.PutUint64(b[headSize+8*i:], w)
	}
	return b
}

// An rts that is not of mode get.
func rtsOf(number, total uint64, flags uint8) []byte {
	const null = 1
	return message(header{kind: msgRTS, tag: 3, flags: flags}, 0, number, total, null)
}

// opOf lays out an operation with n bytes of data. The argument what is 0 for a put, 1 for a get, and 2 or more for an
// atomic operation of 8 bytes.
func opOf(number, region uint64, what uint8, length uint32, n int) []byte {
	return message(header{kind: msgOp}, n, number, region, 0, 0, 0, uint64(length)|uint64(what)<<32|8<<40)
}

// grantOf lays out a grant of credit.
func grantOf(bytes, messages, unasked uint64) []byte {
	return message(header{kind: msgGrant}, 0, bytes, messages, unasked)
}

// The attackers' messages have the layout of the session's golden vectors.
func TestLayoutOfFloods(t *testing.T) {
	const vectors = "../../session/internal/header/testdata/messages.txt"
	text, err := os.ReadFile(vectors)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if name, bytes, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(line, "#") {
			if want[name], err = hex.DecodeString(strings.ReplaceAll(bytes, " ", "")); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, got := range map[string][]byte{
		"hello":  message(header{kind: msgHello, extra: layoutVersion, tag: 9}, 28, 8<<32|3, 0x1122334455667788),
		"eager":  message(header{kind: msgEager, extra: 2, tag: 0xabcdef}, 3),
		"rts":    message(header{kind: msgRTS, extra: 1, tag: 7}, 2, 5, 1<<32, 1<<8|0xf),
		"rtr":    message(header{kind: msgRTR, tag: 5}, 2, 9, 16, 32, 64, 1<<40|3<<32|2),
		"done":   message(header{kind: msgDone, tag: 9}, 0, 1<<48|1<<40|3<<32|2),
		"op":     message(header{kind: msgOp}, 1, 1, 2, 3, 4, 5, 8<<40|7<<32|6),
		"reply":  message(header{kind: msgReply, tag: 1}, 0, 258, 3),
		"seen":   message(header{kind: msgSeen, tag: 0x1234}, 0),
		"leave":  message(header{kind: msgLeave}, 0),
		"resume": message(header{kind: msgResume, flags: 3, tag: 0x1234}, 0),
		"grant":  grantOf(8<<20, 8192, 8192),
	} {
		n := headSize + 8*bodyWords[got[0]] // the user's bytes follow
		if len(want[name]) < n || !bytes.Equal(got[:n], want[name][:n]) {
			t.Errorf("%s is %x, want %x as in %s", name, got[:n], want[name], vectors)
		}
	}
}
