//go:build linux

package main

import (
	"fmt"
	"io"
	"io/fs"
)

// A cpioWriter writes the archive format that the kernel unpacks as its first root file system ("newc").
type cpioWriter struct {
	w     io.Writer
	inode int
	err   error
}

const (
	modeDir     = 0o040000
	modeFile    = 0o100000
	modeSymlink = 0o120000
)

func (c *cpioWriter) dir(name string)             { c.entry(name, modeDir|0o755, nil) }
func (c *cpioWriter) symlink(name, target string) { c.entry(name, modeSymlink|0o777, []byte(target)) }

func (c *cpioWriter) file(name string, perm fs.FileMode, data []byte) {
	c.entry(name, modeFile|int(perm.Perm()), data)
}

// close writes the trailer and returns the first error of all.
func (c *cpioWriter) close() error {
	c.entry("TRAILER!!!", 0, nil)
	return c.err
}

func (c *cpioWriter) entry(name string, mode int, data []byte) {
	if c.err != nil {
		return
	}
	c.inode++
	const links, mtime, unused = 1, 0, 0
	header := "070701"
	for _, field := range []int{
		c.inode, mode, 0, 0, links, mtime, len(data), unused, unused, unused, unused, len(name) + 1, unused,
	} {
		header += fmt.Sprintf("%08X", field)
	}
	c.write(header, name, "\x00", padding(len(header)+len(name)+1))
	c.write(string(data), padding(len(data)))
}

func (c *cpioWriter) write(parts ...string) {
	for _, part := range parts {
		if c.err == nil {
			_, c.err = io.WriteString(c.w, part)
		}
	}
}

// padding fills up to the next multiple of four.
func padding(size int) string { return "\x00\x00\x00"[:(4-size%4)%4] }
