//go:build linux

package run

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// maxLine is where a line without an end is cut, so that memory stays bounded.
const maxLine = 64 << 10

// outputs puts what ranks print into one stream, by whole lines.
type outputs struct {
	mu sync.Mutex
	wg sync.WaitGroup
}

// tag returns the file that a rank writes to; its lines come out of to with the rank in front. The caller closes the file.
func (o *outputs) tag(to io.Writer, rank int) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o.wg.Go(func() {
		defer r.Close()
		o.copy(to, r, fmt.Appendf(nil, "[%d] ", rank))
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
			to.Write(line) // nobody to tell
			o.mu.Unlock()
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
