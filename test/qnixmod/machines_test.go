//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestBetweenMachines runs in both machines of "vm -two", on a link that may lose packets.
func TestBetweenMachines(t *testing.T) {
	needModule(t)
	peer := os.Getenv("VM_PEER")
	if peer == "" {
		t.Skip("one machine alone: \"make test-vm\" runs this in two")
	}
	rank := os.Getenv("VM_RANK")
	coordinates, other := 1, "machine1"
	if rank == "1" {
		coordinates, other = 5, "machine0"
	}
	load(t, fmt.Sprintf("nics=2 coordinates=%d key=0f0e0d0c0b0a09080706050403020100 peers=%s", coordinates, peer))
	waitForNICs(t, 4)
	// Registration in a group is the barrier before and after: it returns when both are there.
	r := small("machine" + rank)
	r.Group, r.GroupSize, r.TimeoutMs = name("both"), 2, 120_000
	p := mustRegister(t, 1, r)
	for i := range 50 {
		exchange(t, p, name(other), i)
	}
	long(t, p, name(other), rank == "0")
	done := groupArg{Name: name("done"), Size: 2, TimeoutMs: 120_000}
	if err := ioctl(p.fd, iocJoin, unsafe.Pointer(&done)); err != nil {
		t.Fatalf("join: %v", err)
	}
}

func waitForNICs(t *testing.T, want uint32) {
	t.Helper()
	fd, err := openDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var i info
		if err := ioctl(fd, iocInfo, unsafe.Pointer(&i)); err != nil {
			t.Fatal(err)
		}
		if i.NICs == want {
			return
		}
		if time.Now().After(deadline) {
			text, _ := readFile("/sys/kernel/debug/qnix/qnix0/links")
			t.Fatalf("the cluster has %d NICs, want %d: %s", i.NICs, want, text)
		}
	}
}

// exchange sends short message i to the other and receives its message i.
func exchange(t *testing.T, p *process, other [20]byte, i int) {
	t.Helper()
	text := fmt.Sprintf("message %d", i)
	if err := p.transfer(cmdReceive, 0, sendContext{Process: other, Tag: 9, Flags: flagDoorbell | flagInline, Len: 64}); err != nil {
		t.Fatal(err)
	}
	copy(p.region(false, 0), text)
	length := uint32(len(text))
	if err := p.transfer(cmdSendShort, 0, sendContext{Process: other, Tag: 9, Flags: flagDoorbell, Len: length}); err != nil {
		t.Fatal(err)
	}
	checkRung(t, p, false, 0, stateDone, length)
	checkRung(t, p, true, 0, stateDone, length)
	if got := string(p.region(true, 0)[:length]); got != text {
		t.Fatalf("received %q, want %q", got, text)
	}
}

// long sends 1 MiB to the other, or receives it.
func long(t *testing.T, p *process, other [20]byte, send bool) {
	t.Helper()
	const size = 1 << 20
	memory := mustMap(t, size)
	pattern := strings.Repeat("0123456789abcde", size/15+1)[:size]
	if send {
		copy(memory, pattern)
	}
	h, err := p.translate(memory, accessRead|accessWrite)
	if err != nil {
		t.Fatal(err)
	}
	cmd := uint32(cmdReceive)
	if send {
		cmd = cmdSend
	}
	p.describe(!send, 1, descriptor{Handle: h, Len: size})
	if err := p.transfer(cmd, 1, sendContext{Process: other, Tag: 3, Flags: flagDoorbell, Len: size, Descriptors: 1}); err != nil {
		t.Fatal(err)
	}
	checkRung(t, p, !send, 1, stateDone, size)
	if string(memory) != pattern {
		t.Fatal("1 MiB did not arrive as it was sent")
	}
}
