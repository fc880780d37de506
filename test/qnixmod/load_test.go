//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/lab/qnixko"
)

const stormKey = "000102030405060708090a0b0c0d0e0f"

// A storm is goroutines that use everything the module shows, at any moment of its loads and unloads.
type storm struct {
	stop, calm atomic.Bool // calm: nobody begins what keeps the module from being unloaded
	wg         sync.WaitGroup
	// How often each of them got through: a storm that never met the module proves nothing.
	opened, registered, attributes, debug, parameters atomic.Int64
}

func startStorm(t *testing.T) *storm {
	t.Helper()
	s := &storm{}
	node := filepath.Join(t.TempDir(), "node")
	s.work(true, func() { s.open(device(0)) })
	s.work(true, func() { s.open(device(7)) })
	s.work(true, func() { s.openNode(node) })
	s.work(true, s.register)
	s.work(false, func() { s.read("/sys/class/qnix/qnix*/statistics/wire_*", &s.attributes) })
	s.work(true, func() { s.read("/sys/kernel/debug/qnix/qnix*/*", &s.debug) })
	s.work(false, s.parameter)
	t.Cleanup(s.end)
	return s
}

// work repeats do until the storm ends. holds: it keeps the module from being unloaded.
func (s *storm) work(holds bool, do func()) {
	s.wg.Go(func() {
		for !s.stop.Load() {
			if holds && s.calm.Load() {
				time.Sleep(time.Millisecond)
			} else {
				do()
			}
		}
	})
}

func (s *storm) end() {
	s.stop.Store(true)
	s.wg.Wait()
}

func (s *storm) open(path string) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var i info
	if ioctl(fd, iocInfo, unsafe.Pointer(&i)) == nil {
		s.opened.Add(1)
	}
	unix.Close(fd)
}

// openNode opens a file of the device's number that devtmpfs does not remove: the number may be of no device any more.
func (s *storm) openNode(path string) {
	text, err := readFile("/sys/class/qnix/qnix0/dev")
	if err == nil {
		var major, minor uint32
		if _, err := fmt.Sscanf(text, "%d:%d", &major, &minor); err == nil {
			os.Remove(path)
			unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor)))
		}
	}
	for range 20 {
		s.open(path)
	}
}

func (s *storm) register() {
	p, err := register(0, small("storm"))
	if err != nil {
		return
	}
	if p.transfer(cmdReceive, 0, sendContext{Process: name("nobody"), Flags: flagDoorbell | flagInline, Len: 64}) == nil {
		s.registered.Add(1)
	}
	p.close()
}

func (s *storm) read(pattern string, count *atomic.Int64) {
	files, _ := filepath.Glob(pattern)
	for _, file := range files {
		if _, err := os.ReadFile(file); err == nil {
			count.Add(1)
		}
	}
}

// parameter changes what can be changed at any time. The peers are nobody's addresses.
func (s *storm) parameter() {
	const dir = "/sys/module/qnix/parameters/"
	for file, value := range map[string]string{"peers": "127.0.0.1:9,127.0.0.2:9", "poll_us": "50"} {
		if os.WriteFile(dir+file, []byte(value), 0) == nil {
			s.parameters.Add(1)
		}
	}
	os.ReadFile(dir + "key")
}

// held keeps the wire's port from the module.
func held(t *testing.T) net.PacketConn {
	t.Helper()
	c, err := net.ListenPacket("udp", ":24911")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A load that fails after the devices were shown frees the module's code under whoever has opened one: the kernel's
// report of that fails the machine's run.
func TestFailedLoadLeavesNothing(t *testing.T) {
	needModule(t)
	for _, c := range []struct {
		name, params string
		hold         bool
		rounds       int
		want         error
	}{
		{"port held", "nics=8 key=" + stormKey, true, 4, unix.EADDRINUSE},
		{"key too short", "nics=8 peers=127.0.0.1 key=1234", false, 1, unix.EINVAL},
		{"no such peer", "nics=8 peers=127.0.0.1,nonsense", false, 1, unix.EINVAL},
		{"parameter of no number", "peers=127.0.0.1 key=" + stormKey + " nics=many", false, 1, unix.EINVAL},
		{"too many NICs", "peers=127.0.0.1 key=" + stormKey + " nics=65", false, 1, unix.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.hold {
				defer held(t).Close()
			}
			s := startStorm(t)
			for range c.rounds {
				if err := insmod(c.params); !errors.Is(err, c.want) {
					t.Errorf("insmod qnix.ko %s: got %v, want %v", c.params, err, c.want)
					unload(t)
				}
			}
			s.end()
			if n := s.opened.Load(); n != 0 {
				t.Errorf("%d opens of a device whose load failed succeeded", n)
			}
			checkNothingLeft(t)
		})
	}
}

func checkNothingLeft(t *testing.T) {
	t.Helper()
	for _, path := range []string{"/sys/module/qnix", "/sys/class/qnix", "/sys/kernel/debug/qnix", device(0)} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s after the module was unloaded: got %v, want %v", path, err, os.ErrNotExist)
		}
	}
}

// Loads that succeed and loads that fail follow each other while everything of the module is in use.
func TestLoadStorm(t *testing.T) {
	needModule(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	s := startStorm(t)
	loads := 0
	met := func() bool { return s.opened.Load() > 0 && s.attributes.Load() > 0 && s.parameters.Load() > 0 }
	// A busy machine may take longer until each part of the storm has met the module.
	for begin := time.Now(); !t.Failed() && (time.Since(begin) < stormTime() || !met() && time.Since(begin) < time.Minute); {
		loads += stormRound(t, r, s)
	}
	s.end()
	t.Logf("%d loads; opened %d, registered %d, read %d attributes and %d debug files, set %d parameters", loads,
		s.opened.Load(), s.registered.Load(), s.attributes.Load(), s.debug.Load(), s.parameters.Load())
	if !met() {
		t.Error("the storm never met the module")
	}
	checkNothingLeft(t)
}

// stormRound loads the module once, lets the storm have it for a while, and unloads it. It returns how many loads succeeded.
func stormRound(t *testing.T, r *rand.Rand, s *storm) int {
	var hold net.PacketConn
	params := fmt.Sprintf("nics=%d peers=127.0.0.1:9", 1+r.IntN(8))
	if r.IntN(2) == 0 {
		params += " key=" + stormKey
		if r.IntN(2) == 0 {
			hold = held(t)
			defer hold.Close()
		}
	}
	err := insmod(params)
	if hold != nil {
		if !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("insmod qnix.ko %s: got %v, want %v", params, err, unix.EADDRINUSE)
		}
		return 0
	}
	if err != nil {
		t.Error(err)
		return 0
	}
	stormUnload(t, s, s.opened.Load()+int64(r.IntN(50)))
	return 1
}

// stormUnload unloads the module once it was opened so often, or after a second: first against those who open it, then while they
// pause.
func stormUnload(t *testing.T, s *storm, opened int64) {
	defer s.calm.Store(false)
	for limit := time.Now().Add(time.Second); s.opened.Load() < opened && time.Now().Before(limit); {
		time.Sleep(time.Millisecond)
	}
	for tries := 0; ; tries++ {
		err := qnixko.TryUnload()
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EAGAIN) || tries > 60_000 {
			t.Errorf("%v: %s", err, processes())
			return
		}
		if tries > 20 {
			s.calm.Store(true)
			time.Sleep(time.Millisecond)
		}
	}
}

func stormTime() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("BYWASH_QNIX_FUZZ")); err == nil {
		return d
	}
	return 3 * time.Second
}

// Any one allocation of a load fails, while somebody opens the device.
func TestLoadWithoutMemory(t *testing.T) {
	needModule(t)
	const nth = "/proc/thread-self/fail-nth"
	if _, err := os.Stat(nth); err != nil {
		t.Skipf("needs a kernel with CONFIG_FAULT_INJECTION: \"make test-vm-debug\" has one: %v", err)
	}
	failAllocations(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	runtime.LockOSThread() // fail-nth is the thread's
	defer runtime.UnlockOSThread()
	s := &storm{}
	s.work(true, func() { s.open(device(0)) })
	t.Cleanup(s.end)
	// A load that is refused by the first line of the module's own code takes those that are the kernel's.
	left, err := insmodFailing(nth, "nics=65", 1<<20)
	if !errors.Is(err, unix.EINVAL) || left == 0 {
		t.Fatalf("insmod qnix.ko nics=65: got %v with %d allocations left to count, want %v", err, left, unix.EINVAL)
	}
	first := 1<<20 - left + 5
	failed, loaded, beyond := 0, 0, first+2000
	for end := time.Now().Add(2 * stormTime()); (failed == 0 || time.Now().Before(end)) && !t.Failed(); {
		n := first + r.IntN(beyond-first)
		left, err := insmodFailing(nth, "nics=2 key="+stormKey+" peers=127.0.0.1:9", n)
		if err == nil {
			loaded++
			stormUnload(t, s, 0)
		} else {
			failed++
		}
		if left > 0 { // it has no more than n - left allocations
			beyond = n - left + 1
		}
	}
	s.end()
	t.Logf("one of allocations %d to %d of a load failed: %d loads failed, %d did without", first, beyond, failed, loaded)
	checkNothingLeft(t)
}

// A NIC that can neither send nor keep a message for another one of this host, for want of memory, has a wrong view of
// it: both forget each other, and meet again.
func TestNICsOfAHostThatLostEachOtherMeetAgain(t *testing.T) {
	load(t, "nics=2")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := fmt.Sprintf("/proc/self/task/%d/make-it-fail", unix.Gettid())
	f, err := os.OpenFile(thread, os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs a kernel with CONFIG_FAULT_INJECTION: \"make test-vm-debug\" has one: %v", err)
	}
	defer f.Close()
	failAllocations(t)
	set := func(file, value string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			t.Error(err)
		}
	}
	// Last the probability: without the filter every process of the machine lacks memory.
	for _, v := range [][2]string{{"task-filter", "Y"}, {"times", "-1"}, {"probability", "100"}} {
		set("/sys/kernel/debug/failslab/"+v[0], v[1])
	}
	t.Cleanup(func() { set("/sys/kernel/debug/failslab/probability", "0") })
	for round := range 5 {
		a, b := mustRegister(t, 0, small(fmt.Sprint("a", round))), mustRegister(t, 1, small(fmt.Sprint("b", round)))
		checkShort(t, a, b, round)
		checkShort(t, b, a, round)
		if _, err := unix.Pwrite(int(f.Fd()), []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		err := ioctl(a.fd, iocDeregister, nil) // the other NIC must learn of it
		if _, err := unix.Pwrite(int(f.Fd()), []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// insmodFailing has the load's n-th allocation fail; left are those that were still to be counted at its end.
func insmodFailing(nth, params string, n int) (left int, err error) {
	f, err := os.Open(os.Getenv(moduleFile))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := os.WriteFile(nth, []byte(strconv.Itoa(n)), 0); err != nil {
		return 0, err
	}
	err = unix.FinitModule(int(f.Fd()), params, 0)
	text, _ := os.ReadFile(nth)
	os.WriteFile(nth, []byte("0"), 0)
	left, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	return left, err
}
