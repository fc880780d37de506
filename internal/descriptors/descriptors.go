// Package descriptors tells how many more files this process can open, and what to do if it can open none.
package descriptors

import (
	"errors"
	"strings"
	"syscall"
)

// Remedy returns what to do about an error that means that no further file can be opened, in parentheses after a space,
// unless the text of the error says it already. It is empty for any other error.
func Remedy(err error) string {
	remedy := ""
	switch {
	case errors.Is(err, syscall.EMFILE):
		remedy = "raise the limit of open files: ulimit -n"
	case errors.Is(err, syscall.ENFILE):
		remedy = "raise the system's limit of open files: fs.file-max"
	}
	if remedy == "" || strings.Contains(err.Error(), "ulimit -n") || strings.Contains(err.Error(), "fs.file-max") {
		return ""
	}
	return " (" + remedy + ")"
}
