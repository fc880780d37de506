// Xsk-echo answers UDP datagrams to port 7777 of an interface without the kernel's network stack, which gets all other
// frames: package afxdp/xsk, an independent binding to AF_XDP. It needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.
//
//	go build -o bin/xsk-echo ./examples/xsk-echo
//	sudo bin/xsk-echo eth1    # then, on another host: echo hello | nc -u -w1 ADDRESS 7777
package main

import (
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/bywash/bywash/afxdp/xsk"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: xsk-echo INTERFACE")
	}
	dev := must(xsk.Open(xsk.Config{Device: os.Args[1], Match: xsk.Match{UDPPort: 7777, VLANs: true}}))
	fmt.Printf("echoing UDP port 7777 of %s, %s\n", os.Args[1], dev.Mode())
	for i := range dev.Sockets[1:] { // one for each receive queue
		go echo(dev, i+1)
	}
	echo(dev, 0)
}

// echo sends each frame back in the chunk in which it came. A chunk of the socket is free, or in the kernel's rings.
func echo(dev *xsk.Device, queue int) {
	s, free := dev.Sockets[queue], make([]uint64, dev.UMEM.Chunks()/len(dev.Sockets))
	for i := range free {
		free[i] = dev.UMEM.Addr(queue*len(free) + i)
	}
	for descs := make([]xsk.Desc, 64); ; {
		free = append(free[:0], free[s.Fill(free):]...)
		n := s.Receive(descs[:min(len(descs), s.TxFree())])
		for _, d := range descs[:n] {
			turn(dev.UMEM.Data(d))
		}
		s.Transmit(descs[:n])
		if err := s.Kick(); !errors.Is(err, xsk.ErrAgain) { // then the rest leaves with a later call
			must(0, err)
		}
		sent := s.Complete(free[len(free):cap(free)])
		if free = free[:len(free)+sent]; n+sent == 0 {
			must(s.Wait(xsk.EventRx, -1))
		}
	}
}

// turn makes the sender of a datagram in an Ethernet frame its receiver, and reverse, which keeps all checksums right.
func turn(frame []byte) {
	swap(frame[:12])
	ip := frame[14:]
	if frame[12] == 0x81 || frame[12] == 0x88 { // EtherType 0x8100 or 0x88a8: a VLAN tag
		ip = frame[18:]
	}
	addresses, ports := ip[8:40], ip[40:44]
	if ip[0]>>4 == 4 {
		addresses, ports = ip[12:20], ip[4*int(ip[0]&15):][:4]
	}
	swap(addresses)
	swap(ports)
}

// swap exchanges the halves of b.
func swap(b []byte) {
	for i := range len(b) / 2 {
		b[i], b[len(b)/2+i] = b[len(b)/2+i], b[i]
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
