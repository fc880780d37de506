// Package stat makes a process visible to "bywash stat" and "bywash capture". Sessions do it by themselves; a program
// that uses package driver alone calls [Serve].
package stat

import (
	"io"

	"github.com/bywash/bywash/internal/stat"
)

// Serve answers for this process until the returned value is closed: with the counters of its open contexts, which
// "bywash stat" prints, and to "bywash capture" with the frames that its NICs send and receive past the kernel. It
// listens on abstract Unix sockets of this process's network namespace, which take two descriptors and leave no file
// behind. Processes of other users, except root, get no answer. All callers in a process share one server, which ends
// with the last Close; that waits for the answers under way, and at most 2 s for captures.
func Serve() (io.Closer, error) { return stat.Serve() }
