//go:build linux

package run

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxLine is where a line without an end is cut, so that memory stays bounded.
const maxLine = 64 << 10

// outputs puts what ranks print into one stream, by whole lines.
type outputs struct {
	mu    sync.Mutex
	wg    sync.WaitGroup
	pipes []*pipe
	lost  error // the first failed write; guarded by mu
}

// restTime is how long processes that ranks left running, and that nobody can kill, are listened to.
const restTime = time.Second

// pipe is what a rank prints. When its deadline has passed it ends behind what it holds then.
type pipe struct {
	*os.File
	late bool
	rest int // bytes until the end, if late
}

func (p *pipe) Read(b []byte) (int, error) {
	if !p.late {
		n, err := p.File.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := p.limit(); err != nil {
			return 0, err
		}
	}
	if p.rest == 0 {
		return 0, io.EOF
	}
	n, err := p.File.Read(b[:min(len(b), p.rest)])
	p.rest -= n
	return n, err
}

// limit finds out what the pipe holds, which is read without a deadline: it is there.
func (p *pipe) limit() error {
	c, err := p.SyscallConn()
	if err != nil {
		return err
	}
	failed := c.Control(func(fd uintptr) { p.rest, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	p.late = true
	return errors.Join(failed, err, p.SetReadDeadline(time.Time{}))
}

// end waits until all that ranks printed has come out. It returns the first error that prevented some of it.
func (o *outputs) end() error {
	for _, r := range o.pipes {
		_ = r.SetReadDeadline(time.Now().Add(restTime))
	}
	o.wg.Wait()
	return o.lost
}

// tag returns the file that a rank writes to; its lines come out of to with the rank in front. The caller closes the file.
func (o *outputs) tag(to io.Writer, rank int) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p := &pipe{File: r}
	o.pipes = append(o.pipes, p)
	o.wg.Go(func() {
		defer r.Close()
		o.copy(to, p, fmt.Appendf(nil, "[%d] ", rank))
	})
	return w, nil
}

func (o *outputs) copy(to io.Writer, from io.Reader, prefix []byte) {
	in := bufio.NewReaderSize(from, maxLine)
	line := make([]byte, 0, 512)
	for {
		b, err := in.ReadSlice('\n')
		if len(b) > 0 {
			line = append(append(line[:0], prefix...), b...)
			if line[len(line)-1] != '\n' {
				line = append(line, '\n')
			}
			o.mu.Lock()
			_, failed := to.Write(line)
			o.lost = cmp.Or(o.lost, failed)
			o.mu.Unlock()
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
