package perf

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
)

// maxStrangers is how many connections that have not proved the secret are kept. When another one comes, the oldest is closed:
// a genuine peer needs two round trips to prove itself.
const maxStrangers = 64

// door authenticates those who connect, many at a time, so that nobody waits for one who says nothing.
type door struct {
	secret   []byte
	say      io.Writer
	admitted chan guest

	mu        sync.Mutex
	strangers []net.Conn // the oldest first
}

// guest is a connection whose peer has the secret.
type guest struct {
	conn   net.Conn
	frames frames
}

func newDoor(secret []byte, say io.Writer) *door {
	return &door{secret: secret, say: say, admitted: make(chan guest)}
}

// keep accepts connections until the listener is closed, and returns the reason.
func (d *door) keep(ctx context.Context, l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		d.enter(conn)
		go d.check(ctx, conn)
	}
}

func (d *door) enter(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.strangers) == maxStrangers {
		d.strangers[0].Close()
		d.strangers = slices.Delete(d.strangers, 0, 1)
	}
	d.strangers = append(d.strangers, conn)
}

// leave reports whether the connection was still kept, and not closed to make room.
func (d *door) leave(conn net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := slices.Index(d.strangers, conn)
	if k >= 0 {
		d.strangers = slices.Delete(d.strangers, k, k+1)
	}
	return k >= 0
}

// check hands a peer that has the secret on, and closes any other.
func (d *door) check(ctx context.Context, conn net.Conn) {
	hangUp := context.AfterFunc(ctx, func() { conn.Close() })
	frames, err := authenticate(conn, d.secret, true)
	kept := d.leave(conn)
	if err == nil && kept {
		select {
		case d.admitted <- guest{conn, frames}:
			hangUp()
			return
		case <-ctx.Done():
		}
	}
	hangUp()
	conn.Close()
	if err != nil && kept && ctx.Err() == nil {
		d.note(conn, err)
	}
}

// note says why a connection has ended.
func (d *door) note(conn net.Conn, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.say, "bywash: %s: %v\n", conn.RemoteAddr(), err)
}
