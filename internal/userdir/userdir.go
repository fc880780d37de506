// Package userdir names the directory of a user's sockets.
package userdir

import (
	"os"
	"path/filepath"
	"strconv"
)

// Path returns bywash in XDG_RUNTIME_DIR if that is a directory, which it is not in a job that has the variable from
// another machine; else Temporary.
func Path() string {
	if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
		if st, err := os.Stat(run); err == nil && st.IsDir() {
			return filepath.Join(run, "bywash")
		}
	}
	return Temporary()
}

// Temporary returns bywash-UID in the directory for temporary files, where other users can make it first.
func Temporary() string {
	return filepath.Join(os.TempDir(), "bywash-"+strconv.Itoa(os.Geteuid()))
}
