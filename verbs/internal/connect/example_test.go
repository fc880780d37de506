//go:build linux && !(386 || arm || mips || mipsle)

package connect_test

import (
	"fmt"
	"net/netip"

	"github.com/bywash/bywash/verbs/internal/connect"
)

// printer represents a queue pair; a driver passes the steps on to its device.
type printer struct{ num uint32 }

func (q printer) Num() uint32               { return q.num }
func (q printer) Init(*connect.Path) error  { return nil }
func (q printer) RTR(p *connect.Path) error { return nil }
func (q printer) RTS(p *connect.Path) error { return nil }

// Two contexts, here in one process, connect a queue pair each.
func Example() {
	port := connect.Port{Device: "rxe0", Num: 1, LinkLayer: connect.Ethernet, GIDType: connect.GIDRoCEv2, MTU: 1024,
		Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	var hosts [2]*connect.Managers
	for k := range hosts {
		var err error
		cfg := connect.Config{Incarnation: uint64(k + 1), Secret: []byte("sixteen bytes or more"), Include: []string{"oob"}}
		if hosts[k], err = connect.Open(cfg, &port); err != nil {
			fmt.Println(err)
			return
		}
		defer hosts[k].Close()
	}

	wake := make(chan struct{}, 10)
	var ends [2]*connect.Endpoint
	var told [2]string
	for k := range ends {
		var err error
		ends[k], err = hosts[k].NewEndpoint(&connect.EndpointConfig{
			PeerIncarnation: uint64(2 - k), PeerCard: hosts[1-k].Card(), QPs: []connect.QP{printer{uint32(10 + k)}},
			UserData: fmt.Appendf(nil, "credits=%d", 8<<k), Wake: func() { wake <- struct{}{} },
			Prepare: func(peer []byte) error { told[k] = string(peer); return nil },
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	for k, e := range ends {
		for e.State() < connect.Ready {
			<-wake
		}
		fmt.Printf("%d: %v, %s\n", k, e.State(), told[k])
	}
	// Output:
	// 0: ready, credits=16
	// 1: ready, credits=8
}
