//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/verbs"
)

// roomy is a limit that leaves room for the messages of most programs.
const roomy = 1 << 30

// locking is how much memory this process may lock, for devices or otherwise.
type locking struct {
	limit uint64 // RLIMIT_MEMLOCK, in bytes
	free  bool   // CAP_IPC_LOCK: the limit does not hold
	need  uint64 // bytes that an RDMA connection locks
}

func readLocking() (l locking, err error) {
	l.need = uint64(verbs.LockedMemory())
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return l, err
	}
	l.limit = r.Cur
	l.free, err = mayLock()
	return l, err
}

// initialUserNamespace is the number that the kernel gives to the first one.
const initialUserNamespace = "user:[4026531837]"

// mayLock reports whether the process has CAP_IPC_LOCK in the initial user namespace. The capability in another one, as
// in rootless containers, does not count.
func mayLock() (bool, error) {
	may, err := capable(unix.CAP_IPC_LOCK)
	if err != nil {
		return false, err
	}
	ns, err := os.Readlink("/proc/self/ns/user")
	return may && (err != nil || ns == initialUserNamespace), nil
}

// capable reports whether the process has all these capabilities.
func capable(all ...uint) (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, errors.New("capabilities cannot be read")
	}
	for _, c := range all {
		if data[c/32].Effective&(1<<(c%32)) == 0 {
			return false, nil
		}
	}
	return true, nil
}

// enough reports whether one connection can be made.
func (l locking) enough() bool { return l.free || l.limit >= l.need }

func (l locking) remedy() string {
	return fmt.Sprintf("raise it, to %d KiB for each connection at least, and by what messages take: %s", l.need>>10, raiseIt)
}

const raiseIt = "ulimit -l unlimited as root, LimitMEMLOCK=infinity in the unit, docker run --ulimit memlock=-1, " +
	"or a line \"* - memlock unlimited\" in /etc/security/limits.conf"

// rdmaMemory reports whether memory can be pinned for devices. The kernel counts
// it against RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK.
func rdmaMemory() Finding {
	list, _ := filepath.Glob("/" + rdmaClass + "/*")
	l, err := readLocking()
	return l.finding(len(list) > 0, err)
}

func (l locking) finding(devices bool, err error) Finding {
	f := Finding{Name: "pinned memory for RDMA", Level: OK}
	switch {
	case !devices:
		f.Level, f.Found = Absent, "nothing needs it"
	case err != nil:
		return failed(f, Slow, err, "")
	case l.free:
		f.Found = "unlimited (CAP_IPC_LOCK)"
	case l.limit >= roomy:
		f.Found = limit(l.limit) + " bytes (RLIMIT_MEMLOCK)"
	case l.enough():
		f.Level, f.Remedy = Slow, l.remedy()
		f.Found = fmt.Sprintf("%d KiB (RLIMIT_MEMLOCK): a connection locks %d KiB, so the limit is reached at %d peers, or sooner with the memory of messages",
			l.limit>>10, l.need>>10, l.limit/l.need)
	default:
		f.Level, f.Remedy = Blocked, l.remedy()
		f.Found = fmt.Sprintf("%d KiB (RLIMIT_MEMLOCK), and a connection locks %d KiB", l.limit>>10, l.need>>10)
	}
	return f
}

// judge looks at a driver that locks memory and was found usable: opening it
// locks nothing, so that only connecting, or the first messages, would fail.
func (l locking) judge(f Finding) Finding {
	if f.Level == OK && !l.enough() {
		f.Level, f.Remedy = Blocked, l.remedy()
		f.Found += fmt.Sprintf(", but not used: a connection locks %d KiB, the limit is %d KiB (RLIMIT_MEMLOCK)", l.need>>10, l.limit>>10)
	}
	return f
}
