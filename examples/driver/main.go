// Driver is the program of docs/driver.md: two processes exchange a message each way over shared memory, by package driver
// alone. Each prints its url on standard output, and reads that of the other from standard input.
//
//	go build -o bin/driver ./examples/driver
//	mkfifo bin/pipe && bin/driver < bin/pipe | bin/driver > bin/pipe; rm bin/pipe
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/bywash/bywash/driver"
	_ "github.com/bywash/bywash/driver/all"
)

func main() {
	ctx := context.Background()
	nic := must(must(driver.Lookup("shm")).Query(driver.Hints{}))
	c := must(nic.Open(driver.Attributes{}))
	defer c.Close()

	var url string
	fmt.Println(c.URL())   // the peer needs ours,
	must(fmt.Scanln(&url)) // we need the peer's
	peer := must(c.Connect(url))
	must(0, peer.ConnectWait(ctx))

	in := driver.Packet{IOV: [][]byte{make([]byte, 100)}}
	out := driver.Packet{IOV: [][]byte{fmt.Appendf(nil, "hello from process %d", os.Getpid())}}
	must(0, peer.RecvPost(&in))
	must(0, peer.SendPost(&out))
	must(0, peer.(driver.SendWaiter).SendWait(ctx, &out))
	must(0, peer.(driver.RecvWaiter).RecvWait(ctx, &in))
	fmt.Fprintf(os.Stderr, "%s, by %s\n", in.IOV[0][:in.N], peer.Path())
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
