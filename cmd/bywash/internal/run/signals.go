//go:build linux

package run

import (
	"os"
	"syscall"
	"time"
)

// sameCause is how soon after a signal another one has the same cause.
const sameCause = 500 * time.Millisecond

// Impatient reports whether a signal that arrives some time after the first one asks a process that is ending to end at
// once. One cause can send two: a shell sends SIGHUP when its terminal closes, and so does the kernel; timeout(1) sends
// its signal to its child and to the process group.
func Impatient(s os.Signal, since time.Duration) bool {
	return s != syscall.SIGHUP && since >= sameCause
}
