//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/kit"
)

// showArrived passes a frame to captures, before link decrypts it in place.
func (n *nic) showArrived(to []kit.Sink, frame []byte) {
	f := kit.Frame{Time: time.Now().UnixNano(), Data: frame}
	for _, s := range to {
		s.Frame(f)
	}
}

// showSent passes a batch in the transmit ring to captures. Its chunks are not completed while the lock is held.
func (n *nic) showSent(to []kit.Sink, batch []xsk.Desc) {
	f := kit.Frame{Time: time.Now().UnixNano(), Sent: true}
	for len(batch) > 0 {
		d, size := batch[0], 0
		for more := true; more; batch = batch[1:] { // the chunks of a long frame are adjacent
			size += int(batch[0].Len)
			more = batch[0].Options&xsk.DescContinued != 0
		}
		f.Data = n.memory.umem.Span(d.Addr, size)
		for _, s := range to {
			s.Frame(f)
		}
	}
}

// isOurs reports whether a payload begins with this protocol's prefix.
func isOurs(b []byte) bool { return len(b) >= prefixSize && b[0] == prefixMagic && b[1] == urlVersion }
