package kit

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Host returns a number of the running kernel, which processes on one kernel share: a hash of its boot id, or of the
// host's name where the boot id cannot be read.
func Host() uint64 {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		name, _ := os.Hostname()
		b = []byte(name)
	}
	return Identity("%s", b)
}

// Namespace returns the number of the calling thread's namespace of a kind, as /proc/PID/ns names it ("mnt", "net",
// "user"). Two namespaces of one kernel that exist at a time have different numbers. It is 0 if it cannot be known.
func Namespace(kind string) uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/"+kind, &st) != nil {
		return 0
	}
	return st.Ino
}

// Identity hashes a name that is unique among objects of its kind, so that it fits into a url.
func Identity(format string, parts ...any) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, format, parts...))
	return binary.LittleEndian.Uint64(sum[:])
}
