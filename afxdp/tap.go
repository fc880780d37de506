//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"time"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/kit"
)

// showArrived passes a frame to captures, before link decrypts it in place.
func (n *nic) showArrived(to []kit.Sink, frame []byte) {
	f := kit.Frame{Time: time.Now().UnixNano(), Data: frame}
	if a, code := carrier.Parse(f.Data, &n.filter); code == carrier.OK && isOurs(a.Payload) {
		f.Context = n.incarnation(a.Payload[2])
	}
	for _, s := range to {
		s.Frame(f)
	}
}

// showSent passes a batch in the transmit ring to captures. Its chunks are not completed while the lock is held.
func (n *nic) showSent(to []kit.Sink, batch []xsk.Desc) {
	f := kit.Frame{Time: time.Now().UnixNano(), Sent: true}
	m := &n.memory
	for len(batch) > 0 {
		d, size := batch[0], 0
		for more := true; more; batch = batch[1:] { // the chunks of a long frame are adjacent
			size += int(batch[0].Len)
			more = batch[0].Options&xsk.DescContinued != 0
		}
		f.Data = m.umem.Span(d.Addr, size)
		f.Context = n.incarnation(m.bytes(uint32(m.umem.Chunk(d.Addr)))[dataAt-1])
		for _, s := range to {
			s.Frame(f)
		}
	}
}

// isOurs reports whether a payload begins with this protocol's prefix.
func isOurs(b []byte) bool { return len(b) >= prefixSize && b[0] == prefixMagic && b[1] == urlVersion }

// incarnation returns the incarnation of a context of this NIC, or 0 if there is none.
func (n *nic) incarnation(number uint8) uint64 {
	if c := n.contexts[number]; c != nil {
		return c.Incarnation
	}
	return 0
}
