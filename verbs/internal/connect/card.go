//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/bywash/bywash/driver"
)

// An entry is the part of one manager in a card, the text that the managers of a port publish together:
//
//	name,priority,blob;name,priority,blob…
//
// The priority is decimal; the blob is unpadded base64 for urls.
type entry struct {
	name     string
	priority int
	blob     []byte
}

const (
	maxName     = 64  // bytes of a manager's name
	maxBlob     = 255 // bytes of a blob
	maxPriority = 100

	maxEntries = 16
	maxCard    = maxEntries * (maxName + 5 + (maxBlob*4+2)/3 + 1)
)

var blobText = base64.RawURLEncoding.Strict()

func formatCard(entries []entry) string {
	var b strings.Builder
	for k, e := range entries {
		if k > 0 {
			b.WriteByte(';')
		}
		fmt.Fprintf(&b, "%s,%d,%s", e.name, e.priority, blobText.EncodeToString(e.blob))
	}
	return b.String()
}

// parseCard parses a card of a peer. Its error wraps ErrInvalid and gives the reason.
func parseCard(s string) ([]entry, error) {
	if len(s) > maxCard {
		return nil, fmt.Errorf("%w: card of %d bytes, limit is %d", driver.ErrInvalid, len(s), maxCard)
	}
	var entries []entry
	for text := range strings.SplitSeq(s, ";") {
		f := strings.Split(text, ",")
		if len(f) != 3 || !validName(f[0]) {
			return nil, fmt.Errorf("%w: card entry %.80q is not name,priority,blob", driver.ErrInvalid, text)
		}
		p, err := strconv.ParseUint(f[1], 10, 8)
		if err != nil || p > maxPriority || strconv.FormatUint(p, 10) != f[1] {
			return nil, fmt.Errorf("%w: card entry %.80q: priority %q is not 0 to %d", driver.ErrInvalid, text, f[1], maxPriority)
		}
		blob, err := decodeBlob(f[2])
		if err != nil {
			return nil, fmt.Errorf("%w: card entry %.80q: %w", driver.ErrInvalid, text, err)
		}
		for _, e := range entries {
			if e.name == f[0] {
				return nil, fmt.Errorf("%w: card names %s twice", driver.ErrInvalid, f[0])
			}
		}
		if len(entries) == maxEntries {
			return nil, fmt.Errorf("%w: card with more than %d entries", driver.ErrInvalid, maxEntries)
		}
		entries = append(entries, entry{f[0], int(p), blob})
	}
	return entries, nil
}

func decodeBlob(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") { // the decoder would skip them
		return nil, fmt.Errorf("blob with a line break")
	}
	blob, err := blobText.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("blob: %w", err)
	}
	if len(blob) > maxBlob {
		return nil, fmt.Errorf("blob of %d bytes, limit is %d", len(blob), maxBlob)
	}
	return blob, nil
}

// match chooses the manager that connects two ports: one that both cards have. It returns the indexes of its entries,
// or -1 if there is none. It is symmetric: match(a, b) and match(b, a) choose the same manager.
func match(a, b []entry) (inA, inB int) {
	inA, inB = -1, -1
	for i := range a {
		for k := range b {
			if a[i].name == b[k].name && (inA < 0 || better(&a[i], &b[k], &a[inA], &b[inB])) {
				inA, inB = i, k
			}
		}
	}
	return inA, inB
}

// better orders managers by the lower of both priorities, then the higher one,
// then the name.
func better(a, b, bestA, bestB *entry) bool {
	if x, y := min(a.priority, b.priority), min(bestA.priority, bestB.priority); x != y {
		return x > y
	}
	if x, y := max(a.priority, b.priority), max(bestA.priority, bestB.priority); x != y {
		return x > y
	}
	return a.name < bestA.name
}

func validName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
