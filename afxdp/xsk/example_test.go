//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"fmt"
	"io"
	"log"
	"os"
	"testing"
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

// A frame travels from one device to another: here the two ends of a veth pair
// in namespaces of their own, elsewhere two machines.
func Example() {
	pair, err := veth.New(veth.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer pair.Close()

	var dev [2]*xsk.Device
	for i := range dev {
		end := &pair.Ends[i]
		err := end.Do(func() (err error) {
			dev[i], err = xsk.Open(xsk.Config{Device: end.Device, Match: xsk.Match{EtherType: 0x88b5}})
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
		defer dev[i].Close()
	}

	// The receiver gives chunks to the kernel.
	to := dev[1].Sockets[0]
	to.Fill([]uint64{dev[1].UMEM.Addr(0), dev[1].UMEM.Addr(1)})

	// The sender writes a frame into a chunk.
	from := dev[0].Sockets[0]
	addr := dev[0].UMEM.Addr(0)
	frame := dev[0].UMEM.Frame(addr)
	n := copy(frame, pair.Ends[1].MAC)
	n += copy(frame[n:], pair.Ends[0].MAC)
	n += copy(frame[n:], []byte{0x88, 0xb5})
	n += copy(frame[n:], "around the kernel")
	from.Transmit([]xsk.Desc{{Addr: addr, Len: uint32(n)}})
	if err := from.Kick(); err != nil {
		log.Fatal(err)
	}

	var descs [8]xsk.Desc
	for to.Receive(descs[:1]) == 0 {
		if _, err := to.Wait(xsk.EventRx, time.Second); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("%s, %s\n", dev[1].UMEM.Data(descs[0])[14:], dev[1].Mode())

	// The chunk goes back to the kernel, the sender's to the sender.
	to.Fill([]uint64{descs[0].Addr})
	from.Complete([]uint64{0})
	// prints: around the kernel, native-copy
}

// Without root the example cannot run, so the testing package must not do it by
// itself.
func TestExample(t *testing.T) {
	lab(t, veth.Config{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	Example()
	os.Stdout = stdout
	w.Close()
	got, err := io.ReadAll(r)
	if want := "around the kernel, native-copy\n"; string(got) != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}
