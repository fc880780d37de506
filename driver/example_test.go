package driver_test

import (
	"context"
	"fmt"
	"log"
	"runtime"

	"github.com/bywash/bywash/driver"
	_ "github.com/bywash/bywash/shm"
)

// A context connects to itself here; with the url of another process, which
// connects to ours, the rest is the same.
func Example() {
	d, err := driver.Lookup("shm")
	if err != nil {
		log.Fatal(err)
	}
	nic, err := d.Query(driver.Hints{})
	if err != nil {
		log.Fatal(err)
	}
	c, err := nic.Open(driver.Attributes{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	i, err := c.Connect(c.URL())
	if err != nil {
		log.Fatal(err)
	}
	if err := i.ConnectWait(context.Background()); err != nil {
		log.Fatal(err)
	}

	in := driver.Packet{IOV: [][]byte{make([]byte, 100)}}
	out := driver.Packet{IOV: [][]byte{[]byte("around "), []byte("the lock")}}
	if err := i.RecvPost(&in); err != nil {
		log.Fatal(err)
	}
	if err := i.SendPost(&out); err != nil {
		log.Fatal(err)
	}
	for sent, received := false, false; !sent || !received; runtime.Gosched() {
		if !sent {
			if sent, err = i.SendPoll(&out); err != nil {
				log.Fatal(err)
			}
		}
		if !received {
			if received, err = i.RecvPoll(&in); err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Printf("%s\n", in.IOV[0][:in.N])
	// Output: around the lock
}
