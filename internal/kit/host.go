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

// LinkSpeed returns the speed of a network device in bytes/s: 10 Gbit/s where the kernel knows none, as for virtual ones.
func LinkSpeed(device string) float64 {
	mb := 10e3
	if b, err := os.ReadFile("/sys/class/net/" + device + "/speed"); err == nil {
		var known float64
		if n, _ := fmt.Sscan(string(b), &known); n == 1 && known > 0 {
			mb = known
		}
	}
	return mb * 1e6 / 8
}

// Identity hashes a name that is unique among objects of its kind, so that it fits into a url.
func Identity(format string, parts ...any) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, format, parts...))
	return binary.LittleEndian.Uint64(sum[:])
}
