//go:build linux && !(386 || arm || mips || mipsle)

package regcache_test

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
)

// key is what a device returns for a registration.
type key uint32

// nic is a device that prints what it does.
type nic struct{ last key }

func (n *nic) Register(b []byte, _ regcache.Access) (key, error) {
	n.last++
	fmt.Printf("register %d KiB: key %d\n", len(b)>>10, n.last)
	return n.last, nil
}

func (n *nic) Deregister(k key) error {
	fmt.Println("deregister key", k)
	return nil
}

func Example() {
	arena, err := driver.NewArena(1 << 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer arena.Close()
	c := regcache.New(&nic{}, regcache.Config{Name: "example nic0"})

	const receive = 1 // the driver's own bits
	buf := arena.Alloc(64 << 10)
	for range 3 {
		r, err := c.Acquire(buf, receive)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("use key", r.Handle())
		r.Release()
	}
	fmt.Println("close:", c.Close())
	// Output:
	// register 64 KiB: key 1
	// use key 1
	// use key 1
	// use key 1
	// deregister key 1
	// close: <nil>
}

// A driver's post must not block: it looks the region up, and lets it be
// registered in the background where there is none.
func ExampleCache_Prefetch() {
	arena, err := driver.NewArena(1 << 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer arena.Close()
	c := regcache.New(&nic{}, regcache.Config{})
	defer c.Close()
	buf := arena.Alloc(256 << 10)

	r := c.Lookup(buf, 0)
	if r == nil {
		f, err := c.Prefetch(buf, 0) // keep f in the packet's state
		if err != nil {
			fmt.Println(err) // driver.ErrBusy: the queue is full
			return
		}
		for done := false; !done; { // in each poll
			if r, done, err = f.TryAcquire(); err != nil {
				fmt.Println(err)
				return
			}
		}
	}
	fmt.Println("use key", r.Handle())
	r.Release()
	// Output:
	// register 256 KiB: key 1
	// use key 1
	// deregister key 1
}
