//go:build linux && !(386 || arm || mips || mipsle)

package carrier_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/bywash/bywash/afxdp/internal/carrier"
)

func ExamplePath() {
	path, err := carrier.NewPath(carrier.Config{
		Kind:   carrier.UDP4,
		SrcMAC: carrier.MAC{2, 0, 0, 0, 0, 1},
		DstMAC: carrier.MAC{2, 0, 0, 0, 0, 2},
		Src:    netip.MustParseAddrPort("192.0.2.1:50000"),
		Dst:    netip.MustParseAddrPort("192.0.2.2:7070"),
	})
	if err != nil {
		log.Fatal(err)
	}
	frame := make([]byte, 2048) // for example, of the UMEM
	payload := copy(frame[path.HeaderLen():], "hello")
	frame = frame[:path.Put(frame, payload)]
	fmt.Printf("%d bytes: % x\n", len(frame), frame[path.HeaderLen()-8:])
	// Output: 47 bytes: c3 50 1b 9e 00 0d 59 0f 68 65 6c 6c 6f
}

func ExampleParse() {
	frame := []byte("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x88\xb5" + // Ethernet
		"\x42\x01\x1b\x9e\xc3\x50\x00\x05" + "hello" + "padding")
	filter := carrier.Filter{
		Kinds: [...]bool{carrier.Ether: true},
		MAC:   carrier.MAC{2, 0, 0, 0, 0, 2},
		Port:  7070,
	}
	var counters [carrier.Codes]uint64
	arrived, code := carrier.Parse(frame, &filter)
	counters[code]++
	fmt.Printf("%v: %s from %v port %d\n", code, arrived.Payload, arrived.SrcMAC, arrived.Src.Port())
	_, code = carrier.Parse(frame[:20], &filter)
	fmt.Println(code)
	// Output:
	// ok: hello from 02:00:00:00:00:01 port 50000
	// wrong length
}
