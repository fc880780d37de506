//go:build linux && !(386 || arm || mips || mipsle)

package xsk

import (
	"encoding/binary"
	"testing"
)

func attribute(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}

func FuzzFeaturesParse(f *testing.F) {
	head := []byte{1, 1, 0, 0}
	flags := func(kind uint16, v uint64) []byte {
		return attribute(kind, binary.NativeEndian.AppendUint64(nil, v)...)
	}
	f.Add(append(head, flags(netdevXDPFeatures, xdpActBasic|xdpActRedirect|xdpActRxSG)...))
	f.Add(append(append(head, flags(netdevXSKFeatures, 7)...), attribute(netdevZCMaxSegs, 8, 0, 0, 0)...))
	f.Add(head)
	f.Add([]byte{})
	f.Add(append(head, 0, 0, 0, 0))
	f.Add(append(head, 255, 255, 3, 0))
	f.Fuzz(func(t *testing.T, reply []byte) {
		var got, again Features
		err := got.parse(reply)
		if got != (Features{}) && len(reply) < 4+4+4 {
			t.Errorf("% x: got %+v out of nothing", reply, got)
		}
		// A single flag is the only one that is read.
		if err == nil && len(reply) >= 4 {
			more := append(reply[:len(reply):len(reply)], flags(netdevXSKFeatures, xskTxChecksum)...)
			if err := again.parse(more); err == nil && len(reply)%4 == 0 && (!again.TxChecksum || again.TxTimestamp) {
				t.Errorf("% x: got %+v, want the checksum alone", more, again)
			}
		}
	})
}
