//go:build linux

package hostile

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/lab/attack"
	"github.com/bywash/bywash/internal/lab/veth"
	"github.com/bywash/bywash/session"
)

// replay is the task of a replayer: the devices of a router between two hosts.
type replay struct {
	Devices [2]int // indices
	Seed    uint64
}

// recorder has the frames that went to one host.
type recorder struct {
	fd, device int
	frames     [][]byte
}

const (
	mostFrames = 4096
	etherLen   = 14
)

func newRecorder(device int) (*recorder, error) {
	all := int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL)))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
	if err != nil {
		return nil, err
	}
	return &recorder{fd: fd, device: device}, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: device})
}

// listen takes what has been sent to the host since.
func (r *recorder) listen(rng *rand.Rand) {
	b := make([]byte, 64<<10)
	for range 64 {
		n, from, err := unix.Recvfrom(r.fd, b, 0)
		if err != nil {
			return
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype != unix.PACKET_OUTGOING || n <= etherLen {
			continue
		}
		f := append([]byte(nil), b[:n]...)
		if len(r.frames) < mostFrames {
			r.frames = append(r.frames, f)
		} else {
			r.frames[rng.IntN(mostFrames)] = f
		}
	}
}

// forge makes a frame out of those that were recorded: one of them, changed or not, or with other contents.
func (r *recorder) forge(rng *rand.Rand) []byte {
	f := append([]byte(nil), r.frames[rng.IntN(len(r.frames))]...)
	switch rng.IntN(6) {
	case 0, 1: // as it is
	case 2: // one bit
		f[etherLen+rng.IntN(len(f)-etherLen)] ^= 1 << rng.IntN(8)
	case 3: // a byte of the headers
		f[etherLen+rng.IntN(min(100, len(f)-etherLen))] = byte(rng.Uint32())
	case 4: // shorter
		f = f[:etherLen+rng.IntN(len(f)-etherLen)]
	case 5: // the beginning of one and the end of another
		g := r.frames[rng.IntN(len(r.frames))]
		at := rng.IntN(min(len(f), len(g)))
		copy(f[at:], g[at:])
	}
	return f
}

func (r *recorder) send(f []byte) error {
	return unix.Sendto(r.fd, f, 0, &unix.SockaddrLinklayer{Ifindex: r.device})
}

// replayProgram sits on the router: it records frames and sends them again, changed or not, to both hosts.
func replayProgram(in *json.Decoder, out *json.Encoder) error {
	var k replay
	if err := in.Decode(&k); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(k.Seed, 13))
	var to [2]*recorder
	for i, d := range k.Devices {
		var err error
		if to[i], err = newRecorder(d); err != nil {
			return err
		}
	}
	var n atomic.Int64
	go func() {
		for ; ; time.Sleep(20 * time.Millisecond) {
			_ = out.Encode(n.Load())
		}
	}()
	for {
		for _, r := range to {
			r.listen(rng)
			for range rng.IntN(20) {
				if len(r.frames) == 0 {
					break
				}
				if r.send(r.forge(rng)) == nil {
					n.Add(1)
				}
			}
		}
		time.Sleep(time.Duration(rng.IntN(500)) * time.Microsecond)
	}
}

// Frames that were recorded, changed and made up, sent by a host on the path to both ends of a connection over afxdp:
// its transfers go on and every byte is right, also when an end is stopped for less than the dead time.
func TestReplayer(t *testing.T) {
	for _, encrypt := range []string{"on", "off"} {
		t.Run("encrypt="+encrypt, func(t *testing.T) {
			rng := attack.Seed(t)
			pair, err := veth.New(veth.Config{Router: true})
			if err != nil {
				t.Skip("needs root: makes namespaces: ", err)
			}
			t.Cleanup(func() { _ = pair.Close() })
			rail := func(k int) []session.Rail {
				return []session.Rail{{Driver: "afxdp", Device: pair.Ends[k].Device, Options: map[string]string{
					"netns": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), pair.Ends[k].Namespace), "encrypt": encrypt,
				}}}
			}
			v := newVictims(t, rail(0), rail(1), rng, nil)
			k := replay{Devices: [2]int{pair.Router[0].Index, pair.Router[1].Index}, Seed: rng.Uint64()}
			p := attack.Start(t, "replayer", k, func(p *attack.Program) {
				p.Begin = func(c *exec.Cmd) error { return pair.Router[0].Start(c) }
			})
			var sent int64
			for sent == 0 {
				p.Receive(&sent)
			}
			printed := make(chan struct{})
			go func() {
				defer close(printed)
				for p.Out.Decode(&sent) == nil {
				}
			}()
			for end := time.Now().Add(attack.Duration(t)); time.Now().Before(end); {
				v.goesOn("among forged frames")
				if rng.IntN(4) == 0 {
					v.stopPeer(time.Duration(rng.IntN(500)) * time.Millisecond)
				}
			}
			_ = p.Cmd.Process.Kill()
			<-printed
			p.Kill()
			t.Logf("%d frames were sent; %d rounds", sent, v.honest.n.Load())
			v.close()
		})
	}
}

// stopPeer stops the honest peer for a while that it must survive.
func (v *victim) stopPeer(d time.Duration) {
	_ = v.peer.Cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(d)
	_ = v.peer.Cmd.Process.Signal(syscall.SIGCONT)
}
