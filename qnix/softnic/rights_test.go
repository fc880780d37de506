//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/internal/rights/rightstest"
	"github.com/bywash/bywash/qnix/internal/abi"
	"github.com/bywash/bywash/qnix/nic"
)

// Descriptors that a client passes instead of memory block neither the NIC nor Close.
func TestClientsDescriptorsNeverBlock(t *testing.T) {
	translate := abi.Bytes(&abi.Translate{Len: 4096, Access: 1, PoolIndex: abi.NoPool})
	for _, tt := range []struct {
		name       string
		registered bool
		request    uint32
		body       []byte
		many       int
	}{
		{"before it registers", false, abi.ReqTranslate, translate, 1},
		{"in place of a memfd", true, abi.ReqTranslate, translate, 1},
		{"with another request", true, abi.ReqDoorbell, nil, 1},
		{"more than one", true, abi.ReqTranslate, translate, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rightstest.EachKernel(t, func(t *testing.T) {
				s := serve(t, Config{})
				path := s.Sockets()[0]
				for range 8 {
					x := dial(t, path)
					if tt.registered {
						errno, fds := registerByHand(t, x, "bad")
						if errno != 0 {
							t.Fatal(unix.Errno(errno))
						}
						abi.CloseAll(fds)
					}
					var fds []int
					for range tt.many {
						fds = append(fds, rightstest.Nested(t))
					}
					h := abi.Header{Request: tt.request, ID: 7}
					b := append(abi.Bytes(&h)[:abi.HeaderSize:abi.HeaderSize], tt.body...)
					err := abi.Send(x.conn, b, fds...)
					rights.Discard(rights.Nobody, fds...)
					if refused := errors.Is(err, unix.EPERM); refused != (rights.Supported() && !tt.registered) {
						t.Errorf("send: %v", err)
					}
					x.conn.Close()
					good := open(t, path)
					until(t, "the name is free", func() bool {
						p, err := good.Register(ctx, nic.Config{Name: "bad"})
						return err == nil && p != nil
					})
					good.Close()
				}
				closed := make(chan error, 1)
				go func() { closed <- s.Close() }()
				select {
				case err := <-closed:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("Close waits for descriptors that a client has passed")
				}
			})
		})
	}
}

// Connections of a user are bounded; one more learns why, and others of the user go on.
func TestConnectionsOfAUserAreBounded(t *testing.T) {
	s := serve(t, Config{MaxProcesses: 16, MaxPerUser: 8})
	path := s.Sockets()[0]
	_, _ = pair(t, s)
	before := openFDs(t)
	var conns []*net.UnixConn
	for len(conns) < 8+idleHandles {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil { // the queue is full
			time.Sleep(time.Millisecond)
			continue
		}
		conns = append(conns, c)
	}
	until(t, "the limit is reached", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.byUser[os.Geteuid()] == 8+idleHandles
	})
	if n, err := nic.Open(path); !errors.Is(err, unix.EUSERS) || !strings.Contains(err.Error(), "too many connections") {
		t.Errorf("one more: %v %v, want EUSERS", n, err)
	}
	for _, c := range conns {
		c.Close()
	}
	until(t, "it is served again", func() bool {
		n, err := nic.Open(path)
		if err == nil {
			n.Close()
		}
		return err == nil
	})
	until(t, "descriptors are closed", func() bool { return openFDs(t) <= before })
}

// Files whose close blocks for ever are held up to a limit; then that user's connections are refused. Registered
// processes go on, and so does Close.
func TestUserWhoseDescriptorsBlockIsRefused(t *testing.T) {
	f := rightstest.MountFuse(t)
	s := serve(t, Config{})
	path := s.Sockets()[0]
	a, b := pair(t, s)
	user := uint32(os.Geteuid())
	x := dial(t, path)
	errno, fds := registerByHand(t, x, "bad")
	if errno != 0 {
		t.Fatal(unix.Errno(errno))
	}
	abi.CloseAll(fds)
	for rights.Held(user) < rights.MaxHeld {
		fd := f.Open()
		got, _, _ := x.ask(abi.ReqTranslate, abi.Bytes(&abi.Translate{Len: 4096, Access: 1, PoolIndex: abi.NoPool}), fd)
		rights.Discard(rights.Nobody, fd)
		if got == -1 { // the limit was reached, and the connection ended
			until(t, "the limit is reached", func() bool { return rights.Held(user) == rights.MaxHeld })
		} else if got != int(unix.EINVAL) {
			t.Fatalf("a file of FUSE: errno %d, want EINVAL", got)
		}
	}
	if n, err := nic.Open(path); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "block in close") {
		t.Errorf("one more connection: %v %v, want EBUSY", n, err)
	}
	kick(t, b, b.ReceiveShort(0, name("a"), 1, 8))
	kick(t, a, a.SendShort(0, name("b"), 1, 8))
	if st, _ := received(t, b, 0); st != nic.Done {
		t.Errorf("a message of others: %v", st)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Close waits for descriptors that a client has passed")
	}
	f.Release()
	until(t, "all are closed", func() bool { return rights.Held(user) == 0 && rights.Held(rights.Nobody) == 0 })
}
