package main

import (
	"fmt"
	"strings"
)

// A clip holds the output of one test: all of it, unless it is huge; then its first and its last part, which tell
// how it began and how it ended.
type clip struct {
	head, tail []byte
	dropped    int
}

const (
	clipHead = 1 << 20
	clipTail = 4 << 20
)

func (c *clip) WriteString(s string) {
	if len(c.tail) == 0 && c.dropped == 0 && len(c.head)+len(s) <= clipHead {
		c.head = append(c.head, s...)
		return
	}
	c.tail = append(c.tail, s...)
	// Cut only when twice the size is reached, so that the copying stays cheap.
	if len(c.tail) > 2*clipTail {
		cut := len(c.tail) - clipTail
		for cut < len(c.tail) && c.tail[cut-1] != '\n' {
			cut++
		}
		c.dropped += cut
		c.tail = append(c.tail[:0], c.tail[cut:]...)
	}
}

func (c *clip) String() string {
	if c.dropped == 0 {
		return string(c.head) + string(c.tail)
	}
	return fmt.Sprintf("%s... %d bytes of output left out ...\n%s", c.head, c.dropped, c.tail)
}

func (c *clip) containsAny(words ...string) bool {
	for _, w := range words {
		if strings.Contains(string(c.head), w) || strings.Contains(string(c.tail), w) {
			return true
		}
	}
	return false
}
