// Ibv-write writes into the memory of another queue pair by RDMA: package verbs/ibv, an independent binding to
// libibverbs. Both queue pairs are on one device, in one process. Without a name it takes the first device; the device
// needs GIDs, so not iWARP.
//
//	go run ./examples/ibv-write [DEVICE]
package main

import (
	"fmt"
	"log"
	"os"
	"runtime"

	"github.com/bywash/bywash/verbs/ibv"
)

func main() {
	log.SetFlags(0)
	var name string
	if len(os.Args) > 1 {
		name = os.Args[1]
	} else if devices := must(ibv.Devices()); len(devices) > 0 {
		name = devices[0].Name
	} else {
		log.Fatal("no RDMA device here; docs/rdma.md shows how to make one of any Ethernet interface (Soft-RoCE)")
	}
	device := must(ibv.Open(name))
	pd := must(device.AllocPD())
	cq := must(device.CreateCQ(16, nil, 0))
	from, to := []byte("around the kernel"), make([]byte, 17)
	src := must(pd.RegMR(from, 0))
	dst := must(pd.RegMR(to, ibv.AccessLocalWrite|ibv.AccessRemoteWrite))

	var qps [2]*ibv.QP
	for i := range qps {
		qps[i] = must(pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4}))
	}
	gids, port := must(device.GIDs(1)), must(device.QueryPort(1))
	if len(gids) == 0 {
		log.Fatalf("port 1 of %s has no GID: is its network interface up?", name)
	}
	gid := gids[len(gids)-1] // any, as the packets stay on the device
	for i, qp := range qps {
		must(0, qp.ToInit(ibv.InitAttr{Port: 1, Access: ibv.AccessRemoteWrite}))
		must(0, qp.ToRTR(ibv.RTRAttr{
			Path: ibv.Path{DGID: gid.GID, SGIDIndex: gid.Index, DLID: port.LID},
			MTU:  port.ActiveMTU, DestQPN: qps[1-i].Num(), MinRNRTimer: 12,
		}))
		must(0, qp.ToRTS(ibv.RTSAttr{Timeout: 14, RetryCount: 6, RNRRetry: 6}))
	}

	chain := must(ibv.NewSendChain(1, 1, 0)) // one work request with one piece of memory
	wr := chain.Next()
	wr.Flags = ibv.SendSignaled
	wr.Write(dst.Addr(), dst.RKey())
	wr.AddSGE(src.Addr(), uint32(src.Len()), src.LKey())
	must(qps[0].PostSend(chain))

	var done [1]ibv.WC // the memory is the device's until the completion
	for must(cq.Poll(done[:])) == 0 {
		runtime.Gosched()
	}
	must(0, done[0].Err())
	fmt.Printf("%s wrote %q\n", name, to)
	for _, c := range []interface{ Close() error }{qps[0], qps[1], src, dst, cq, pd, device} {
		must(0, c.Close()) // an object is closed after those that use it
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
