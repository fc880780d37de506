//go:build linux && !(386 || arm || mips || mipsle) && cgo

package nic_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// rung waits for a doorbell.
func rung(p *nic.Process, doorbell func(int) (nic.State, int), i int) (nic.State, int) {
	for {
		seen := p.RingTail()
		if s, n := doorbell(i); s.Rung() {
			return s, n
		}
		if err := p.Wait(seen, -1); err != nil {
			log.Fatal(err)
		}
	}
}

// twoProcesses registers two "processes" with a NIC. Real ones are in programs of
// their own, and open nic.DefaultPath().
func twoProcesses() (alice, bob *nic.Process, done func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(dir, "qnix0.sock")
	server, err := softnic.Start(softnic.Config{Sockets: []string{path}})
	if err != nil {
		log.Fatal(err)
	}
	var processes [2]*nic.Process
	for i, name := range []string{"alice", "bob"} {
		n, err := nic.Open(path)
		if err != nil {
			log.Fatal(err)
		}
		if processes[i], err = n.Register(context.Background(), nic.Config{Name: name}); err != nil {
			log.Fatal(err)
		}
	}
	return processes[0], processes[1], func() { _, _ = server.Close(), os.RemoveAll(dir) }
}

// A short message goes from Context Region to Context Region.
func ExampleProcess_SendShort() {
	alice, bob, done := twoProcesses()
	defer done()
	a, _ := nic.MakeName("alice")
	b, _ := nic.MakeName("bob")

	if err := bob.ReceiveShort(0, a, 7, 100); err != nil {
		log.Fatal(err)
	}
	_ = bob.Kick()

	n := copy(alice.SendRegion(0), "hello, bob")
	if err := alice.SendShort(0, b, 7, n); err != nil {
		log.Fatal(err)
	}
	_ = alice.Kick()

	state, n := rung(bob, bob.ReceiveDoorbell, 0)
	fmt.Printf("%v: %s\n", state, bob.ReceiveRegion(0)[:n])
	// Output: done: hello, bob
}

// A longer one goes from memory to memory, which is registered with the NIC.
func ExampleProcess_Translate() {
	alice, bob, done := twoProcesses()
	defer done()
	a, _ := nic.MakeName("alice")
	b, _ := nic.MakeName("bob")
	const size = 1 << 20
	post := func(p *nic.Process, c nic.Command, peer nic.Name, access nic.Access) []byte {
		// Outside the Go heap, so that it stays where it is.
		mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			log.Fatal(err)
		}
		if c == nic.Send {
			copy(mem[size-4:], "last")
		}
		h, err := p.Translate(mem, access)
		if err != nil {
			log.Fatal(err)
		}
		err = p.Post(c, 0, &nic.Message{Peer: peer, Len: size, Flags: nic.Doorbell,
			Descriptors: []nic.Descriptor{{Handle: h, Len: size}}})
		if err != nil {
			log.Fatal(err)
		}
		_ = p.Kick()
		return mem
	}
	to := post(bob, nic.Receive, a, nic.Write)
	post(alice, nic.Send, b, nic.Read)
	state, n := rung(bob, bob.ReceiveDoorbell, 0)
	fmt.Printf("%v: %d bytes, …%s\n", state, n, to[size-4:])
	// Output: done: 1048576 bytes, …last
}
