package header_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/bywash/bywash/session/header"
)

// golden has a message of each kind that has a layout of its own. A change here
// is a change of the wire format: Version grows, and docs/wire.md with it.
var golden = []struct {
	name string
	head header.Header
	body interface{ Put([]byte) }
	data string
	want string
}{
	{"hello", header.Header{Kind: header.Hello, Extra: header.Version, Length: 4, Tag: 9}, &header.Greeting{Rank: 3, Size: 8, Incarnation: 0x1122334455667788, Era: 0x01020304},
		"\x04\x03\x02\x01", "01000400040000000900000000000000" + "03000000080000008877665544332211" + "04030201"},
	{"eager", header.Header{Kind: header.Eager, Extra: 2, Length: 3, Tag: 0xabcdef}, nil, "hhddd",
		"0200020003000000efcdab0000000000" + "6868646464"},
	{"rts", header.Header{Kind: header.RTS, Extra: 1, Length: 2, Tag: 7}, &header.Request{ID: 5, Total: 1 << 32, Modes: 0xf, Rail: 1, First: 4096}, "hkk",
		"05000100020000000700000000000000" + "050000000000000000000000010000000f01000000100000" + "686b6b"},
	{"rtr", header.Header{Kind: header.RTR, Length: 2, Tag: 5}, &header.Ready{ID: 9, Offset: 16, Length: 32, Want: 64, Chunk: 2, Mode: 3, Rail: 1}, "rr",
		"06000000020000000500000000000000" + "0900000000000000100000000000000020000000000000004000000000000000" + "0200000003010000" + "7272"},
	{"done", header.Header{Kind: header.Done, Tag: 9}, &header.Part{Chunk: 2, Status: 4, ToSender: true, All: true}, "",
		"08000000000000000900000000000000" + "0200000004010100"},
	{"op", header.Header{Kind: header.Op, Length: 1, Tag: 0}, &header.Operation{ID: 1, Region: 2, Offset: 3, Operand: 4, Compare: 5, Length: 6, What: 7, Size: 8}, "d",
		"0b000000010000000000000000000000" + "01000000000000000200000000000000030000000000000004000000000000000500000000000000" + "0600000007080000" + "64"},
	{"reply", header.Header{Kind: header.Reply, Tag: 1}, &header.Outcome{Result: 258, Status: 3}, "",
		"0c000000000000000100000000000000" + "02010000000000000300000000000000"},
	{"seen", header.Header{Kind: header.Seen, Tag: 0x1234}, nil, "", "0e000000000000003412000000000000"},
	{"leave", header.Header{Kind: header.Leave}, nil, "", "11000000000000000000000000000000"},
	{"resume", header.Header{Kind: header.Resume, Flags: 3, Tag: 0x1234}, nil, "", "0f030000000000003412000000000000"},
}

func encode(h header.Header, body interface{ Put([]byte) }, data string) []byte {
	b := make([]byte, header.Size+header.BodySize(h.Kind), header.Size+header.BodySize(h.Kind)+len(data))
	h.Put(b)
	if body != nil {
		body.Put(b[header.Size:])
	}
	return append(b, data...)
}

func TestLayoutsStayAsTheyAre(t *testing.T) {
	for _, tt := range golden {
		if got := hex.EncodeToString(encode(tt.head, tt.body, tt.data)); got != tt.want {
			t.Errorf("%s is %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestLengthsThatDoNotFitAreMalformed(t *testing.T) {
	for _, tt := range golden {
		b, err := hex.DecodeString(tt.want)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range [][]byte{nil, b[:1], b[:header.Size-1], b[:len(b)-1], append(bytes.Clone(b), 0)} {
			var h header.Header
			if err := h.Parse(bad); !errors.Is(err, header.ErrMalformed) {
				t.Errorf("%s with %d bytes: %v, want malformed", tt.name, len(bad), err)
			}
		}
	}
}

// A message that parses has its body and data inside the packet, and is written back to the same bytes.
func FuzzParse(f *testing.F) {
	for _, tt := range golden {
		f.Add(encode(tt.head, tt.body, tt.data))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h header.Header
		if h.Parse(b) != nil {
			return
		}
		again := make([]byte, header.Size)
		h.Put(again)
		if !bytes.Equal(again, b[:header.Size]) {
			t.Fatalf("%x was written back as %x", b[:header.Size], again)
		}
		extra, data := h.Data(b)
		if h.Kind != header.Hello && (len(extra) != int(h.Extra) || len(data) != int(h.Length)) {
			t.Fatalf("%d and %d bytes, want %d and %d", len(extra), len(data), h.Extra, h.Length)
		}
		if h.Kind == header.Hello {
			checkHello(t, h.Body(b), data)
			return
		}
		checkBody(t, h.Kind, h.Body(b))
	})
}

func checkHello(t *testing.T, b, data []byte) {
	var g header.Greeting
	if g.Parse(b, data) != nil {
		return
	}
	again := make([]byte, len(b))
	if g.Put(again); !bytes.Equal(again, b) || !bytes.Equal(g.Data(), data) {
		t.Fatalf("hello: %x, %x was written back as %x, %x", b, data, again, g.Data())
	}
}

func checkBody(t *testing.T, k header.Kind, b []byte) {
	var v interface {
		Put([]byte)
		Parse([]byte) error
	}
	switch k {
	case header.RTS:
		v = new(header.Request)
	case header.RTR:
		v = new(header.Ready)
	case header.Cookie, header.Done:
		v = new(header.Part)
	case header.Op:
		v = new(header.Operation)
	case header.Reply:
		v = new(header.Outcome)
	default:
		return
	}
	if v.Parse(b) != nil {
		return
	}
	again := make([]byte, len(b))
	v.Put(again)
	if !bytes.Equal(again, b) {
		t.Fatalf("%v: %x was written back as %x", k, b, again)
	}
	if r, ok := v.(*header.Ready); ok && (r.Offset+r.Length > r.Want || r.Want > header.MaxTotal) {
		t.Fatalf("chunk %+v leaves the message", r)
	}
}
