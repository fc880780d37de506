//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/bywash/bywash/afxdp"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// newSwitch makes namespaces on a bridge, or skips.
func newSwitch(t *testing.T, n int) *veth.Switch {
	t.Helper()
	s, err := veth.NewSwitch(n, veth.Config{})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// onSwitch opens a context at each of the first n ends, and connects the first two.
func onSwitch(t *testing.T, s *veth.Switch, n int, options map[string]string) (ctxs []driver.Context, e *ends) {
	t.Helper()
	for k := range n {
		c, err := openEnd(&s.Ends[k], driver.Hints{Options: options})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ctxs = append(ctxs, c)
	}
	e = &ends{tb: t, ctx: [2]driver.Context{ctxs[0], ctxs[1]}}
	e.connect()
	return ctxs, e
}

// An attacker on the wire shows a packet with the id of a connection to another endpoint of the session, and that one's
// answer to the end that sends to this id, while the peer is stopped: the connection lives, whether it is encrypted or
// not.
func TestAnswersOfOthersEndNoConnection(t *testing.T) {
	for _, encrypt := range []string{"on", "off"} {
		t.Run("encrypt "+encrypt, func(t *testing.T) {
			s := newSwitch(t, 4)
			ctxs, e := onSwitch(t, s, 3, map[string]string{"encrypt": encrypt})
			e.swaps(1)
			attack := attacker(t, &s.Ends[3], afxdp.PeersName(e.i[0]))
			answers := 0
			afxdp.Stopped(ctxs[1], func() {
				for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until); {
					answers += attack(&s.Ends[2], &s.Ends[0])
				}
			})
			if answers == 0 {
				t.Error("the attacker got no answer")
			}
			e.swaps(1)
			for k, i := range e.i {
				if err := i.(driver.Ender).Err(); err != nil {
					t.Errorf("end %d: %v after %d answers", k, err, answers)
				}
			}
		})
	}
}

// attacker returns what shows a packet of a connection to one host, and its answers to another.
func attacker(t *testing.T, at *veth.End, id uint64) func(ask, tell *veth.End) (answers int) {
	var c *net.UDPConn
	if err := at.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	const prefix = 4
	packet := make([]byte, prefix+64)
	copy(packet, []byte{0xb7, afxdp.URLVersion, 0, 0, 6, 0, 64})
	binary.LittleEndian.PutUint64(packet[prefix+8:], id)
	first := binary.LittleEndian.Uint32(packet[prefix:])
	sum := crc32.Update(first, crc32.MakeTable(crc32.Castagnoli), packet[prefix+8:])
	binary.LittleEndian.PutUint32(packet[prefix+4:], sum)
	port := func(e *veth.End) netip.AddrPort { return netip.AddrPortFrom(e.IPv4.Addr(), afxdp.DefaultPort) }
	return func(ask, tell *veth.End) (answers int) {
		if _, err := c.WriteToUDPAddrPort(packet, port(ask)); err != nil {
			t.Error(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		var b [2048]byte
		if n, err := c.Read(b[:]); err == nil {
			answers++
			b[2], b[3] = 0, 0
			if _, err := c.WriteToUDPAddrPort(b[:n], port(tell)); err != nil {
				t.Error(err)
			}
		}
		return answers
	}
}

// A process that dies and is started again at its address: the connection of the one before ends when the new one
// connects, and not when its peer has been silent for the dead time.
func TestRestartedProcessEndsTheOldConnection(t *testing.T) {
	s := newSwitch(t, 2)
	ctxs, e := onSwitch(t, s, 2, map[string]string{"dead-time": "1m"})
	e.swaps(1)
	old := e.i[0]
	afxdp.Kill(ctxs[1])
	if err := ctxs[1].Close(); err != nil {
		t.Fatal(err)
	}
	c, err := openEnd(&s.Ends[1], driver.Hints{Options: map[string]string{"dead-time": "1m"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	e.ctx[1] = c
	from := time.Now()
	e.connect()
	p := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err = old.RecvPost(&p); err == nil {
		ctx, cancel := context.WithTimeout(t.Context(), maxWait)
		defer cancel()
		err = old.(driver.RecvWaiter).RecvWait(ctx, &p)
	}
	if !errors.Is(err, driver.ErrBroken) {
		t.Errorf("the old connection: %v, want %v", err, driver.ErrBroken)
	}
	t.Log("noticed after ", time.Since(from))
	e.swaps(1)
}
