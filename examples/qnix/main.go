// Qnix sends a message between two processes of a QNIX network interface, without a driver or a session: package
// qnix/nic. It runs the interface itself, in user space: package qnix/softnic, which needs cgo. To use the kernel module
// instead, open /dev/qnix0.
//
//	go run ./examples/qnix
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

const (
	context0 = 0 // of the contexts that describe messages, the first
	tag      = 7
	room     = 100 // bytes
)

func main() {
	dir := must(os.MkdirTemp("", "qnix"))
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "qnix0.sock")
	server := must(softnic.Start(softnic.Config{Sockets: []string{path}}))
	defer server.Close()

	// Both are in this program, which has a handle for each. Others would open the same path.
	alice, bob := register(path, "alice"), register(path, "bob")
	must(0, bob.ReceiveShort(context0, must(nic.MakeName("alice")), tag, room))
	must(0, bob.Kick())

	n := copy(alice.SendRegion(context0), "around the kernel")
	must(0, alice.SendShort(context0, must(nic.MakeName("bob")), tag, n))
	must(0, alice.Kick())

	n = wait(bob, bob.ReceiveDoorbell)
	fmt.Printf("bob received %q\n", bob.ReceiveRegion(context0)[:n])
	fmt.Printf("alice sent %d bytes\n", wait(alice, alice.SendDoorbell))
	must(0, alice.Deregister())
	must(0, bob.Deregister())
}

func register(path, name string) *nic.Process {
	n := must(nic.Open(path))
	fmt.Printf("%s registers with NIC %d\n", name, n.Info().NIC)
	return must(n.Register(context.Background(), nic.Config{Name: name}))
}

// wait blocks until the context's doorbell has rung, and returns the number of bytes that were moved.
func wait(p *nic.Process, doorbell func(int) (nic.State, int)) int {
	for {
		seen := p.RingTail()
		state, n := doorbell(context0)
		if state == nic.Done {
			return n
		}
		if state.Rung() {
			log.Fatal("the message failed: ", state)
		}
		must(0, p.Wait(seen, -1))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
