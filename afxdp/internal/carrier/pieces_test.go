//go:build linux && !(386 || arm || mips || mipsle)

package carrier

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// cutAt cuts a frame into pieces at the given sizes, over and over; none is empty.
func cutAt(frame []byte, first int, sizes []byte) (pieces [][]byte) {
	n := min(max(first, 1), len(frame))
	pieces, frame = append(pieces, frame[:n:n]), frame[n:]
	for k := 0; len(frame) > 0; k++ {
		n := len(frame)
		if len(sizes) > 0 {
			n = min(n, int(sizes[k%len(sizes)])+1)
		}
		pieces, frame = append(pieces, frame[:n:n]), frame[n:]
	}
	return pieces
}

// A frame in pieces is taken as the same frame in one, wherever it is cut behind its headers: checksums too, whose
// words may lie in two pieces.
func TestFramesInPiecesAreTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, k := range []Kind{UDP4, UDP6, Ether} {
		for range 200 {
			payload := make([]byte, 2+r.IntN(9000))
			for j := range payload {
				payload[j] = byte(r.Uint32())
			}
			frame := put(t, aConfig(k), payload)
			sizes := []byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}
			pieces := cutAt(frame, k.HeaderLen(false)+1+r.IntN(len(payload)-1), sizes)
			f := Filter{Kinds: allKinds, MAC: mac2}
			want, _ := Parse(frame, &f)
			got, code := ParsePieces(pieces[0], pieces[1:], &f)
			whole := slices.Concat(append([][]byte{got.Payload}, pieces[1:]...)...)
			if code != OK || !bytes.Equal(whole, payload) || got.Src != want.Src || got.Dst != want.Dst || got.SrcMAC != want.SrcMAC {
				t.Fatalf("%v in %d pieces: %v, %d bytes of %d", k, len(pieces), code, len(whole), len(payload))
			}
			last := pieces[len(pieces)-1]
			for name, rest := range map[string][][]byte{
				"the last piece is missing": pieces[1 : len(pieces)-1 : len(pieces)-1],
				"a piece comes twice":       append(slices.Clone(pieces[1:]), last),
				"a byte is missing":         append(slices.Clone(pieces[1:len(pieces)-1]), last[:len(last)-1]),
				"a byte is too much":        append(slices.Clone(pieces[1:]), []byte{0}),
			} {
				if _, code := ParsePieces(pieces[0], rest, &f); code != BadLength {
					t.Fatalf("%v, %s: %v, want %v", k, name, code, BadLength)
				}
			}
			if k != Ether {
				last[0] ^= 1
				if _, code := ParsePieces(pieces[0], pieces[1:], &f); code != BadSum {
					t.Fatalf("%v, a flipped bit: %v, want %v", k, code, BadSum)
				}
			}
		}
	}
}

// Every frame that ParsePieces accepts in pieces, Parse accepts in one piece with the same result.
func FuzzParsePieces(f *testing.F) {
	for _, frame := range goldenFrames(f) {
		f.Add(frame, uint16(80), []byte{3, 200}, false)
		f.Add(frame, uint16(50), []byte{}, true)
		f.Add(frame, uint16(14), []byte{0}, false)
	}
	f.Fuzz(func(t *testing.T, frame []byte, first uint16, sizes []byte, partial bool) {
		pieces := cutAt(frame, int(first), sizes)
		if len(pieces) < 2 {
			return
		}
		want := Filter{Kinds: allKinds}
		if partial {
			want.Verify = VerifyPartial
		}
		a, code := ParsePieces(pieces[0], pieces[1:], &want)
		if code != OK {
			return
		}
		b, code := Parse(frame, &want)
		whole := slices.Concat(append([][]byte{a.Payload}, pieces[1:]...)...)
		if code != OK || !bytes.Equal(whole, b.Payload) || a.Src != b.Src || a.Dst != b.Dst || a.SrcMAC != b.SrcMAC {
			t.Fatalf("%+v in pieces, %v and %+v in one", a, code, b)
		}
	})
}
