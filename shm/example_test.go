//go:build linux && !(386 || arm || mips || mipsle)

package shm_test

import (
	"context"
	"fmt"
	"log"

	"github.com/bywash/bywash/driver"
	_ "github.com/bywash/bywash/shm"
)

// must keeps the examples short.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

func openHost(track driver.Track) driver.Context {
	d := must(driver.Lookup("shm"))
	nic := must(d.Query(driver.Hints{Track: track}))
	return must(nic.Open(driver.Attributes{Secret: []byte("from the launcher")}))
}

// connect makes both ends, which usually are in two processes that have sent
// each other their urls.
func connect(a, b driver.Context) (driver.Instance, driver.Instance) {
	x := must(a.Connect(b.URL()))
	y := must(b.Connect(a.URL()))
	for _, i := range []driver.Instance{x, y} {
		if err := i.ConnectWait(context.Background()); err != nil {
			log.Fatal(err)
		}
	}
	return x, y
}

func Example() {
	a, b := openHost(driver.Small), openHost(driver.Small)
	defer a.Close()
	defer b.Close()
	to, from := connect(a, b)

	out := driver.Packet{IOV: [][]byte{[]byte("around the kernel")}}
	if err := to.SendPost(&out); err != nil {
		log.Fatal(err)
	}
	if err := to.(driver.SendWaiter).SendWait(context.Background(), &out); err != nil {
		log.Fatal(err)
	}
	in := driver.Packet{IOV: [][]byte{make([]byte, 100)}}
	if err := from.RecvPost(&in); err != nil {
		log.Fatal(err)
	}
	if err := from.(driver.RecvWaiter).RecvWait(context.Background(), &in); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, by %s\n", in.IOV[0][:in.N], from.Path())
	// Output: around the kernel, by ring
}

func Example_oneSided() {
	a, b := openHost(driver.Large), openHost(driver.Large)
	defer a.Close()
	defer b.Close()
	here, _ := connect(a, b)

	// There: memory that peers may add to, and its key.
	arena := must(driver.NewArena(4096))
	counter := arena.Alloc(8)
	region := must(b.(driver.Registrar).Register(counter, driver.RemoteRead|driver.RemoteAtomic))
	key := region.Key() // travels by other means

	// Here: two additions, and the second returns the value before it.
	remote := must(here.(driver.OneSided).Import(key))
	for range 2 {
		op := driver.Op{Remote: remote, Atomic: driver.Add, Size: 8, Operand: 21, Fetch: true}
		if err := here.(driver.OneSided).AtomicPost(&op); err != nil {
			log.Fatal(err)
		}
		for done := false; !done; {
			done = must(here.(driver.OneSided).OpPoll(&op))
		}
		fmt.Println("was", op.Result)
	}
	fmt.Println("is", counter[0])
	// Output:
	// was 0
	// was 21
	// is 42
}
