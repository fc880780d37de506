package regcache

import "golang.org/x/sys/unix"

// totalMemory returns the memory of this machine in bytes, or 0 if it is not known.
func totalMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}
