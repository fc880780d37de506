//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// A message is a line that the guest's init sends on the control port.
type message struct {
	kind   string // "ready", "exit" or "error"
	status int    // of exit: the command's
	taint  uint64 // of exit: the kernel's taint flags
	text   string // of error
}

// Taint flags of a kernel that found something wrong, whether or not its report reached the console.
const taintFaults = 1<<5 | // bad page
	1<<7 | // died: oops or BUG
	1<<9 | // warning
	1<<14 // soft lockup

func parseMessage(line string) (message, error) {
	kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch kind {
	case "ready":
		if rest == "" {
			return message{kind: kind}, nil
		}
	case "error":
		return message{kind: kind, text: rest}, nil
	case "exit":
		first, second, _ := strings.Cut(rest, " ")
		status, err1 := strconv.ParseUint(first, 10, 8)
		taint, err2 := strconv.ParseUint(second, 10, 64)
		if err1 == nil && err2 == nil {
			return message{kind: kind, status: int(status), taint: taint}, nil
		}
	}
	return message{}, fmt.Errorf("the guest said %q, which means nothing", line)
}

// quote makes one word for a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// quoteAll makes words for a shell.
func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = quote(word)
	}
	return strings.Join(quoted, " ")
}
