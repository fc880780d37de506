//go:build linux && !(386 || arm || mips || mipsle)

package xsk

import (
	"errors"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/lab/veth"
)

// setQueues changes the numbers of queues in use (ETHTOOL_SCHANNELS).
func setQueues(t *testing.T, e *veth.End, rx, tx uint32) {
	t.Helper()
	err := e.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		c := ethtoolChannels{cmd: unix.ETHTOOL_SCHANNELS, rx: rx, tx: tx}
		return ethtool(fd, e.Device, unsafe.Pointer(&c))
	})
	if err != nil {
		t.Fatalf("set %d receive and %d transmit queues: %v", rx, tx, err)
	}
}

func TestQueueWithoutATransmitQueueIsReported(t *testing.T) {
	p, err := veth.New(veth.Config{Queues: 2})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	e := &p.Ends[0]
	setQueues(t, e, 2, 1)
	u, err := NewUMEM(UMEMConfig{Chunks: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	err = e.Do(func() error {
		cfg := Config{Device: e.Device, Match: Match{All: true}, UMEM: u}
		d, err := Open(cfg)
		if err == nil {
			d.Close()
		}
		if !errors.Is(err, ErrNoTxQueue) {
			t.Errorf("open: got %v, want ErrNoTxQueue", err)
		}
		// To receive alone is possible.
		cfg.Socket.Tx = -1
		if d, err = Open(cfg); err != nil {
			return err
		}
		if err := d.Close(); err != nil {
			return err
		}
		s, err := NewSocket(u, SocketConfig{Device: e.Device, Queue: 1})
		if err != nil {
			return err
		}
		defer s.Close()
		s.Transmit([]Desc{{Addr: 0, Len: 64}})
		if err := s.Kick(); err != ErrNoTxQueue {
			t.Errorf("kick: got %v, want ErrNoTxQueue", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Where a native program is refused, the one in the stack is that for frames in one buffer, which is faster, and a second
// process joins it.
func TestMultiBufferFallsBackToOneBuffer(t *testing.T) {
	if err := Probe(FeatureMultiBuffer); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the kernel: ", err)
	}
	p, err := veth.New(veth.Config{Queues: 3})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	e := &p.Ends[0]
	setQueues(t, e, 2, 3) // veth takes no native program if the other end has more transmit queues
	for q := range 2 {
		err := e.Do(func() error {
			d, err := Open(Config{Device: e.Device, Queues: []int{q}, Match: Match{All: true}, Socket: SocketConfig{MultiBuffer: true}})
			if err != nil {
				return err
			}
			t.Cleanup(func() { d.Close() })
			if how, _ := d.Program.Attached(); how != AttachGeneric {
				t.Errorf("queue %d: the program is attached in %s mode, want skb", q, how)
			}
			info, err := d.Program.prog.Info()
			if err != nil {
				return err
			}
			if q == 0 && info.Name != programName {
				t.Errorf("the program is %s, want %s", info.Name, programName)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("queue %d: %v", q, err)
		}
	}
}

// A MACVLAN device reports no queues by ethtool: they are counted, and a frame that comes on the second one is received.
func TestQueuesThatEthtoolDoesNotReport(t *testing.T) {
	var queues [2]int
	for i := range queues {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Skip("needs TAP devices: ", err)
		}
		defer unix.Close(fd)
		r, err := unix.NewIfreq("bywash-tap")
		if err != nil {
			t.Fatal(err)
		}
		r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); errors.Is(err, os.ErrPermission) {
			t.Skip("needs root: ", err)
		} else if err != nil {
			t.Fatal(err)
		}
		queues[i] = fd
	}
	tap, err := netlink.LinkByName("bywash-tap")
	if err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.NumRxQueues, attrs.NumTxQueues = "bywash-macvlan", tap.Attrs().Index, 2, 2
	err = netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("needs MACVLAN devices: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dev, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []netlink.Link{tap, dev} {
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	if q, err := DeviceQueues(attrs.Name); err != nil || q != (Queues{2, 2, 2, 2}) {
		t.Fatalf("the device has %+v, %v, want two of each", q, err)
	}
	d, err := Open(Config{Device: attrs.Name, Match: Match{EtherType: 0x88b5}, Attach: AttachGeneric})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := d.Sockets[1]
	s.Fill([]uint64{d.UMEM.Addr(0)})
	frame := make([]byte, 60)
	copy(frame, dev.Attrs().HardwareAddr)
	frame[12], frame[13] = 0x88, 0xb5
	if _, err := unix.Write(queues[1], frame); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(EventRx, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if s.Receive(make([]Desc, 1)) != 1 {
		t.Error("the frame on the second queue was not received")
	}
}
