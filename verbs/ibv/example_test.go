//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/verbs/ibv"
)

// Lists the machine's devices, or the reason why there are none.
func ExampleDevices() {
	devs, err := ibv.Devices()
	if err != nil {
		fmt.Println("no RDMA here:", err)
		return
	}
	for _, d := range devs {
		c, err := ibv.Open(d.Name)
		if err != nil {
			fmt.Println(err)
			continue
		}
		attr := c.Query()
		for port := 1; port <= attr.Ports; port++ {
			p, err := c.QueryPort(port)
			if err != nil {
				fmt.Println(err)
				continue
			}
			fmt.Printf("%s port %d: %v, %v, MTU %v, atomics %v\n", d.Name, port, p.State, p.LinkLayer, p.ActiveMTU, attr.Atomic)
		}
		c.Close()
	}
}

// Two queue pairs of one process, connected to each other: a write to
// registered memory, and the wait for its completion.
func Example() {
	err := func() error {
		c, err := ibv.Open("rxe0")
		if err != nil {
			return err
		}
		defer c.Close()
		pd, err := c.AllocPD()
		if err != nil {
			return err
		}
		defer pd.Close()
		cq, err := c.CreateCQ(64, nil, 0)
		if err != nil {
			return err
		}
		defer cq.Close()
		from, to := []byte("across the lock"), make([]byte, 15)
		src, err := pd.RegMR(from, 0)
		if err != nil {
			return err
		}
		defer src.Close()
		dst, err := pd.RegMR(to, ibv.AccessLocalWrite|ibv.AccessRemoteWrite)
		if err != nil {
			return err
		}
		defer dst.Close()

		var qps [2]*ibv.QP
		for i := range qps {
			qps[i], err = pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
			if err != nil {
				return err
			}
			defer qps[i].Close()
		}
		gids, err := c.GIDs(1)
		if err != nil {
			return err
		}
		gid := gids[len(gids)-1] // programs choose by type and address, see GIDEntry
		for i, qp := range qps {
			if err := qp.ToInit(ibv.InitAttr{Port: 1, Access: ibv.AccessRemoteWrite}); err != nil {
				return err
			}
			if err := qp.ToRTR(ibv.RTRAttr{
				Path: ibv.Path{DGID: gid.GID, SGIDIndex: gid.Index},
				MTU:  ibv.MTU1024, DestQPN: qps[1-i].Num(), MinRNRTimer: 12,
			}); err != nil {
				return err
			}
			if err := qp.ToRTS(ibv.RTSAttr{Timeout: 14, RetryCount: 6, RNRRetry: 6}); err != nil {
				return err
			}
		}

		chain, err := ibv.NewSendChain(8, 1, 0)
		if err != nil {
			return err
		}
		wr := chain.Next()
		wr.ID, wr.Flags = 1, ibv.SendSignaled
		wr.Write(dst.Addr(), dst.RKey())
		wr.AddSGE(src.Addr(), uint32(src.Len()), src.LKey())
		if _, err := qps[0].PostSend(chain); err != nil {
			return err
		}
		var wcs [8]ibv.WC
		for {
			n, err := cq.Poll(wcs[:])
			if err != nil {
				return err
			}
			if n > 0 {
				fmt.Println(string(to), wcs[0].Err())
				return nil
			}
		}
	}()
	if err != nil {
		log.Print(err)
	}
}

// Waiting without burning a core: arm, poll until empty, wait.
func ExampleCompChannel_Wait() {
	wait := func(ctx context.Context, ch *ibv.CompChannel, cq *ibv.CQ, handle func(ibv.WC)) error {
		var wcs [16]ibv.WC
		for {
			if err := cq.ReqNotify(false); err != nil {
				return err
			}
			for n := 1; n > 0; { // completions from before the arming
				var err error
				if n, err = cq.Poll(wcs[:]); err != nil {
					return err
				}
				for _, wc := range wcs[:n] {
					handle(wc)
				}
			}
			if _, err := ch.Wait(ctx); err != nil {
				return err
			}
		}
	}
	_ = wait
	// Output:
}

// The connecting side of a connection through the connection manager.
func ExampleCMID() {
	type newQP func(device string) (*ibv.QP, error)
	connect := func(ctx context.Context, peer netip.AddrPort, newQP newQP) (*ibv.QP, error) {
		ch, err := ibv.NewCMChannel()
		if err != nil {
			return nil, err
		}
		id, err := ch.NewID()
		if err != nil {
			return nil, err
		}
		if err := id.ResolveAddr(netip.AddrPort{}, peer, time.Second); err != nil {
			return nil, err
		}
		if _, err := ch.Expect(ctx, ibv.CMAddrResolved); err != nil {
			return nil, err
		}
		if err := id.ResolveRoute(time.Second); err != nil {
			return nil, err
		}
		if _, err := ch.Expect(ctx, ibv.CMRouteResolved); err != nil {
			return nil, err
		}
		info, err := id.Info()
		if err != nil {
			return nil, err
		}
		qp, err := newQP(info.Device)
		if err != nil {
			return nil, err
		}
		if err := id.Step(qp, ibv.StateInit, nil); err != nil {
			return nil, err
		}
		// Receives are posted here, before the peer can send.
		if err := id.Connect(qp, ibv.CMParam{Data: []byte("who I am"), RetryCount: 6, RNRRetryCount: 6}); err != nil {
			return nil, err
		}
		if _, err := ch.Expect(ctx, ibv.CMConnectResponse); err != nil {
			return nil, err // of a rejection: with the peer's data in the event
		}
		if err := id.Step(qp, ibv.StateRTR, nil); err != nil {
			return nil, err
		}
		if err := id.Step(qp, ibv.StateRTS, nil); err != nil {
			return nil, err
		}
		return qp, id.Establish()
	}
	_ = connect
	// Output:
}

// The examples run as documented, on a machine with Soft-RoCE.
func TestExamples(t *testing.T) {
	if name := deviceName(t); name != "rxe0" {
		t.Skipf("needs the device rxe0; here is %s", name)
	}
	if got, want := printed(t, Example), "across the lock <nil>\n"; got != want {
		t.Errorf("Example prints %q, want %q", got, want)
	}
	if got, want := printed(t, ExampleDevices), "rxe0 port 1: "; !strings.Contains(got, want) {
		t.Errorf("ExampleDevices prints %q, want %q in it", got, want)
	}
}

// printed returns what f prints to standard output, which must fit into a pipe.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	f()
	os.Stdout = stdout
	w.Close()
	got, err := io.ReadAll(r)
	must(t, err)
	return string(got)
}
