package kit

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
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

// Identity hashes a name that is unique among objects of its kind, so that it fits into a url.
func Identity(format string, parts ...any) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, format, parts...))
	return binary.LittleEndian.Uint64(sum[:])
}
