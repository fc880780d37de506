package header_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/bywash/bywash/session/internal/credit"
	"github.com/bywash/bywash/session/internal/header"
)

// golden has a message of each kind that has a layout of its own. A change of testdata/messages.txt is a change of the
// wire format: Version grows, and docs/wire.md with it.
var golden = []struct {
	name string
	head header.Header
	body interface{ Put([]byte) }
	data string
}{
	{"hello", header.Header{Kind: header.Hello, Extra: header.Version, Length: 28, Tag: 9}, &hello, string(hello.Data())},
	{"eager", header.Header{Kind: header.Eager, Extra: 2, Length: 3, Tag: 0xabcdef}, nil, "hhddd"},
	{"rts", header.Header{Kind: header.RTS, Extra: 1, Length: 2, Tag: 7}, &header.Request{ID: 5, Total: 1 << 32, Modes: 0xf, Rail: 1}, "hkk"},
	{"rtr", header.Header{Kind: header.RTR, Length: 2, Tag: 5}, &header.Ready{ID: 9, Offset: 16, Length: 32, Want: 64, Chunk: 2, Mode: 3, Rail: 1}, "rr"},
	{"done", header.Header{Kind: header.Done, Tag: 9}, &header.Part{Chunk: 2, Status: 3, ToSender: true, All: true}, ""},
	{"op", header.Header{Kind: header.Op, Length: 1, Tag: 0}, &header.Operation{ID: 1, Region: 2, Offset: 3, Operand: 4, Compare: 5, Length: 6, What: 7, Size: 8}, "d"},
	{"reply", header.Header{Kind: header.Reply, Tag: 1}, &header.Outcome{Result: 258, Status: 3}, ""},
	{"seen", header.Header{Kind: header.Seen, Tag: 0x1234}, nil, ""},
	{"leave", header.Header{Kind: header.Leave}, nil, ""},
	{"resume", header.Header{Kind: header.Resume, Flags: 3, Tag: 0x1234}, nil, ""},
	{"grant", header.Header{Kind: header.Grant}, &hello.Grant, ""},
}

var hello = header.Greeting{
	Rank: 3, Size: 8, Incarnation: 0x1122334455667788, Era: 0x01020304,
	Grant: header.Credit{Amount: credit.Amount{Bytes: 8 << 20, Messages: 8192}, Unasked: 8192},
}

func encode(h header.Header, body interface{ Put([]byte) }, data string) []byte {
	b := make([]byte, header.Size+header.BodySize(h.Kind), header.Size+header.BodySize(h.Kind)+len(data))
	h.Put(b)
	if body != nil {
		body.Put(b[header.Size:])
	}
	return append(b, data...)
}

// vectors are the bytes of the golden messages by name, from testdata/messages.txt.
func vectors(t *testing.T) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/messages.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if name, digits, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(line, "#") {
			if all[name], err = hex.DecodeString(strings.ReplaceAll(digits, " ", "")); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

func TestLayoutsStayAsTheyAre(t *testing.T) {
	want := vectors(t)
	if len(want) != len(golden) {
		t.Errorf("there are %d vectors, want %d", len(want), len(golden))
	}
	for _, tt := range golden {
		if got := encode(tt.head, tt.body, tt.data); !bytes.Equal(got, want[tt.name]) {
			t.Errorf("%s is %x, want %x", tt.name, got, want[tt.name])
		}
	}
}

func TestLengthsThatDoNotFitAreMalformed(t *testing.T) {
	for name, b := range vectors(t) {
		for _, bad := range [][]byte{nil, b[:1], b[:header.Size-1], b[:len(b)-1], append(bytes.Clone(b), 0)} {
			var h header.Header
			if err := h.Parse(bad); !errors.Is(err, header.ErrMalformed) {
				t.Errorf("%s with %d bytes: %v, want malformed", name, len(bad), err)
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
	case header.Grant:
		v = new(header.Credit)
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

// A grant that could overflow a sum, or leaves no room for a message, is malformed.
func TestGrantsOutsideTheirBoundsAreMalformed(t *testing.T) {
	for _, bad := range []header.Credit{
		{Amount: credit.Amount{Bytes: credit.MaxAmount + 1}, Unasked: header.LeastUnasked},
		{Amount: credit.Amount{Messages: credit.MaxAmount + 1}, Unasked: header.LeastUnasked},
		{Unasked: header.LeastUnasked - 1},
	} {
		b := make([]byte, header.BodySize(header.Grant))
		bad.Put(b)
		if err := new(header.Credit).Parse(b); !errors.Is(err, header.ErrMalformed) {
			t.Errorf("%+v: %v, want malformed", bad, err)
		}
	}
}
