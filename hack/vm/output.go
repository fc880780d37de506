//go:build linux

package main

import (
	"bytes"
	"io"
	"sync"
)

// A prefixWriter writes whole lines with a prefix.
type prefixWriter struct {
	to      io.Writer
	prefix  string
	mu      *sync.Mutex // of all writers to the same place
	partial []byte
}

func (w *prefixWriter) Write(p []byte) (int, error) {
	w.partial = append(w.partial, p...)
	end := bytes.LastIndexByte(w.partial, '\n') + 1
	if end == 0 {
		return len(p), nil
	}
	err := w.put(w.partial[:end])
	w.partial = append(w.partial[:0], w.partial[end:]...)
	return len(p), err
}

// flush writes a last line that has no end.
func (w *prefixWriter) flush() {
	if len(w.partial) > 0 {
		w.put(append(w.partial, '\n'))
		w.partial = nil
	}
}

func (w *prefixWriter) put(lines []byte) error {
	var out []byte
	for line := range bytes.Lines(lines) {
		out = append(append(out, w.prefix...), line...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.to.Write(out)
	return err
}
