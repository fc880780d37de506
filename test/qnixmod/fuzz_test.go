//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Processes do at random what the ABI lets them, and more: garbage in all shared memory while the NICs run, ioctls with
// any arguments, mappings anywhere, forks, descriptors closed in any order, and a death at any time. Two honest processes
// exchange messages meanwhile, which must arrive. On a kernel with fault injection allocations fail in what every other fuzzer asks for. The
// kernel must not complain: that fails the machine's run.
//
//	BYWASH_QNIX_FUZZ=30m  how long (10 s otherwise)
//	BYWASH_QNIX_SEED=N    which; processes run side by side, so it replays what each does, not when
func TestFuzzABI(t *testing.T) {
	duration, seed := fuzzSettings(t)
	load(t, "nics=3 local_memory=1048576 processes=64 key=000102030405060708090a0b0c0d0e0f")
	failAllocations(t)
	t.Logf("BYWASH_QNIX_SEED=%d BYWASH_QNIX_FUZZ=%v", seed, duration)
	end := time.Now().Add(duration)
	a, b := mustRegister(t, 0, small("honest-a")), mustRegister(t, 1, small("honest-b"))
	program := copied(t)
	var wg sync.WaitGroup
	for worker := range 3 {
		wg.Go(func() { fuzzWorker(t, program, end, seed+uint64(worker)<<32) })
	}
	rounds := 0
	for ; time.Now().Before(end) && !t.Failed(); rounds++ {
		checkShort(t, a, b, rounds)
		checkShort(t, b, a, rounds)
	}
	wg.Wait()
	t.Logf("%d honest messages", 2*rounds)
}

// failAllocations prepares the kernel, if it can, to have allocations fail for those who ask for it.
func failAllocations(t *testing.T) {
	t.Helper()
	for file, value := range map[string]string{
		"failslab/ignore-gfp-wait": "N", "failslab/verbose": "0",
		"fail_page_alloc/ignore-gfp-wait": "N", "fail_page_alloc/ignore-gfp-highmem": "N",
		"fail_page_alloc/min-order": "0", "fail_page_alloc/verbose": "0",
	} {
		path := filepath.Join("/sys/kernel/debug", file)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			t.Error(err)
		}
	}
}

func fuzzSettings(t *testing.T) (time.Duration, uint64) {
	t.Helper()
	duration, seed := 10*time.Second, rand.Uint64()>>1
	if testing.Short() {
		duration = 4 * time.Second
	}
	if s := os.Getenv("BYWASH_QNIX_FUZZ"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("BYWASH_QNIX_FUZZ: %v", err)
		}
		duration = d
	}
	if s := os.Getenv("BYWASH_QNIX_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("BYWASH_QNIX_SEED: %v", err)
		}
		seed = n
	}
	return duration, seed
}

// copied is this program in the memory of the machine: a process that is killed while it is read from the host leaves
// the 9p file system with a number that both sides think is the other's, and no program starts any more (EINVAL).
func copied(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "fuzzer")
	if err := os.WriteFile(file, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// fuzzWorker has one process at a time, which it kills at any time, or lets end.
func fuzzWorker(t *testing.T, program string, end time.Time, seed uint64) {
	for r := rand.New(rand.NewPCG(seed, 1)); time.Now().Before(end); seed++ {
		cmd := child(t, "fuzz", strconv.FormatUint(seed, 10))
		cmd.Path = program
		var said bytes.Buffer // Go's runtime says much of a death that is none of the module's
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Errorf("start a fuzzer: %v", err)
			return
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		life := time.Duration(r.Int64N(int64(4 * time.Second)))
		select {
		case err := <-done:
			checkFuzzer(t, seed, err, &said)
		case <-time.After(life):
			cmd.Process.Kill()
			<-done
		}
	}
}

// checkFuzzer: it may die of what it does to itself.
func checkFuzzer(t *testing.T, seed uint64, err error, said *bytes.Buffer) {
	t.Helper()
	if exit, ok := err.(*exec.ExitError); err != nil && (!ok || exit.Exited() && exit.ExitCode() == 1) {
		t.Errorf("fuzzer %d: %v: %s", seed, err, said)
	}
}

func init() {
	roles["fuzz"] = func(args []string) error {
		seed, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil {
			return err
		}
		f := &fuzzer{Rand: rand.New(rand.NewPCG(seed, 2))}
		return f.run(200 + f.IntN(2000))
	}
}

type fuzzer struct {
	*rand.Rand
	fds     []int
	mapped  [][]byte // interfaces and host pages
	memory  []byte   // to translate
	handles []uint32
	names   []string
	failNth int // which allocation fails, where the kernel has that
}

func (f *fuzzer) run(steps int) error {
	var err error
	if f.memory, err = anonymous(1 << 20); err != nil {
		return err
	}
	runtime.LockOSThread()
	f.failNth = -1
	if f.IntN(2) == 0 {
		f.failNth, _ = unix.Open("/proc/thread-self/fail-nth", unix.O_RDWR|unix.O_CLOEXEC, 0)
	}
	f.names = []string{"honest-a", "honest-b", "f0", "f1", "f2", "f3", "nobody"}
	f.open()
	for range steps {
		f.step()
	}
	return nil
}

func (f *fuzzer) step() {
	switch n := f.IntN(100); {
	case n < 3:
		f.open()
	case n < 5:
		f.closeOne()
	case n < 12:
		f.starved(f.mapOne)
	case n < 14:
		f.unmapOne()
	case n < 18:
		f.fork()
	case n < 50:
		f.garbage()
	case n < 75:
		f.starved(f.command)
	default:
		f.starved(f.ioctl)
	}
}

// starved has one of the first allocations in what does fail. Not in all that this process does: the machine's root file system takes
// that badly.
func (f *fuzzer) starved(do func()) {
	if f.failNth < 0 {
		do()
		return
	}
	nth := strconv.AppendInt(nil, int64(1+f.IntN(20)), 10)
	unix.Pwrite(f.failNth, nth, 0)
	do()
	unix.Pwrite(f.failNth, []byte("0"), 0)
}

func (f *fuzzer) fd() int {
	if len(f.fds) == 0 {
		return -1
	}
	return f.fds[f.IntN(len(f.fds))]
}

func (f *fuzzer) name() [20]byte { return name(f.names[f.IntN(len(f.names))]) }

// open opens a device or copies a descriptor, and registers and maps most of the time.
func (f *fuzzer) open() {
	if len(f.fds) > 8 {
		return
	}
	if fd := f.fd(); fd >= 0 && f.IntN(4) == 0 {
		if fd, err := unix.Dup(fd); err == nil {
			f.fds = append(f.fds, fd)
		}
		return
	}
	fd, err := openDevice(f.IntN(3))
	if err != nil {
		return
	}
	f.fds = append(f.fds, fd)
	f.register(fd)
}

func (f *fuzzer) register(fd int) {
	r := registerArg{Name: name(fmt.Sprintf("f%d", f.IntN(4))), Commands: 1 << f.IntN(7), Sends: 1 + f.Uint32N(16),
		Receives: 1 + f.Uint32N(16), RegionSize: 64 * (1 + f.Uint32N(8)), PoolEntries: f.Uint32N(64), TimeoutMs: 1 + f.Uint32N(30)}
	if f.IntN(3) == 0 {
		r.Group, r.GroupSize = name("g"), 1+f.Uint32N(3)
	}
	if ioctl(fd, iocRegister, unsafe.Pointer(&r)) != nil {
		return
	}
	p := process{fd: fd, reg: r}
	if p.mapAll() == nil {
		f.mapped = append(f.mapped, p.vni, p.hps)
	}
}

func (f *fuzzer) closeOne() {
	if len(f.fds) == 0 {
		return
	}
	i := f.IntN(len(f.fds))
	unix.Close(f.fds[i])
	f.fds = append(f.fds[:i], f.fds[i+1:]...)
}

func (f *fuzzer) mapOne() {
	offset := [...]uint64{0, 1 << 32, 4096, f.Uint64() &^ 4095 >> 1}[f.IntN(4)]
	size := (1 + f.IntN(32)) * 4096
	b, err := unix.Mmap(f.fd(), int64(offset), size, f.IntN(8), [...]int{unix.MAP_SHARED, unix.MAP_PRIVATE}[f.IntN(2)])
	if err == nil {
		unix.Munmap(b)
	}
}

func (f *fuzzer) unmapOne() {
	if len(f.mapped) == 0 {
		return
	}
	i := f.IntN(len(f.mapped))
	switch b := f.mapped[i]; f.IntN(4) {
	case 0:
		unix.Madvise(b, [...]int{unix.MADV_DONTNEED, unix.MADV_DOFORK, unix.MADV_WILLNEED, unix.MADV_COLD}[f.IntN(4)])
	case 1:
		unix.Mlock(b)
	default:
		unix.Munmap(b)
		f.mapped = append(f.mapped[:i], f.mapped[i+1:]...)
	}
}

// fork leaves a child that holds all descriptors a while.
func (f *fuzzer) fork() {
	fd := f.fd()
	if fd < 0 {
		return
	}
	vni := uintptr(unsafe.Pointer(&f.memory[0]))
	if pid, errno := rawChild(fd, vni); errno == 0 && f.IntN(2) == 0 {
		unix.Wait4(int(pid), nil, 0, nil)
	}
}

// garbage writes words into shared memory: any, or such as are nearly right.
func (f *fuzzer) garbage() {
	if len(f.mapped) == 0 {
		return
	}
	b := f.mapped[f.IntN(len(f.mapped))]
	for range 1 + f.IntN(64) {
		at := f.IntN(len(b)/4) * 4
		*(*uint32)(unsafe.Pointer(&b[at])) = f.word()
	}
	if f.IntN(4) == 0 { // a name where one may be
		n := f.name()
		copy(b[f.IntN(len(b)/64)*64+f.IntN(2)*12:], n[:])
	}
}

func (f *fuzzer) word() uint32 {
	switch f.IntN(4) {
	case 0:
		return f.Uint32N(16)
	case 1:
		return 1 << f.IntN(32)
	case 2:
		return -f.Uint32N(4097)
	default:
		return f.Uint32()
	}
}

// command writes commands and contexts that are nearly right at the beginning of an interface.
func (f *fuzzer) command() {
	if len(f.mapped) == 0 {
		return
	}
	b := f.mapped[f.IntN(len(f.mapped))]
	for range 1 + f.IntN(8) {
		at := f.IntN(min(len(b)/64, 96)) * 64
		if f.IntN(2) == 0 {
			c := (*command)(unsafe.Pointer(&b[at]))
			c.Context, c.Reserved, c.Size, c.Name = uint16(f.Uint32N(17)), 0, f.Uint32N(5), f.name()
			c.Command = f.Uint32N(15)
			continue
		}
		*(*sendContext)(unsafe.Pointer(&b[at])) = sendContext{Process: f.name(), Tag: uint16(f.Uint32N(4)), Flags: uint16(f.Uint32N(8)),
			Len: f.word() >> f.IntN(32), Descriptors: f.Uint32N(5), PoolIndex: f.Uint32N(65)}
	}
	d := (*descriptor)(unsafe.Pointer(&b[f.IntN(len(b)/16)*16]))
	*d = descriptor{Handle: f.handle(), Len: f.word(), Offset: uint64(f.word())}
	ioctl(f.fd(), iocDoorbell, nil)
}

func (f *fuzzer) handle() uint32 {
	if len(f.handles) == 0 || f.IntN(4) == 0 {
		return f.word()
	}
	return f.handles[f.IntN(len(f.handles))]
}

func (f *fuzzer) ioctl() {
	fd := f.fd()
	switch f.IntN(10) {
	case 0:
		f.register(fd)
	case 1:
		if f.IntN(4) == 0 {
			ioctl(fd, iocDeregister, nil)
		}
	case 2, 3:
		f.translate(fd)
	case 4:
		ioctl(fd, iocUntranslate, unsafe.Pointer(&untranslateArg{Handle: f.handle()}))
	case 5:
		ioctl(fd, iocWait, unsafe.Pointer(&waitArg{RingTail: f.Uint32N(8), TimeoutNs: f.Int64N(2e6)}))
	case 6:
		request := [...]uintptr{iocJoin, iocLeave}[f.IntN(2)]
		ioctl(fd, request, unsafe.Pointer(&groupArg{Name: name("g"), Size: f.Uint32N(4), TimeoutMs: 1 + f.Uint32N(20)}))
	case 7:
		f.poll(fd)
	default:
		f.anyIoctl(fd)
	}
}

func (f *fuzzer) translate(fd int) {
	at := f.IntN(len(f.memory))
	arg := translateArg{Addr: uint64(uintptr(unsafe.Pointer(&f.memory[at]))), Len: uint64(f.IntN(len(f.memory)-at) + 1),
		Access: 1 + f.Uint32N(3), PoolIndex: noPool}
	if f.IntN(4) == 0 {
		arg.PoolIndex, arg.PoolStride = f.Uint32N(64), f.word()
	}
	if f.IntN(8) == 0 {
		arg.Addr, arg.Len = f.Uint64(), uint64(f.word())
	}
	if ioctl(fd, iocTranslate, unsafe.Pointer(&arg)) == nil && len(f.handles) < 256 {
		f.handles = append(f.handles, arg.Handle)
	}
	if f.IntN(8) == 0 { // unmap pinned memory while the NIC uses it
		unix.Madvise(f.memory[:1<<19], unix.MADV_DONTNEED)
	}
}

func (f *fuzzer) poll(fd int) {
	event, err := unix.Eventfd(0, unix.EFD_NONBLOCK)
	if err != nil {
		return
	}
	ioctl(fd, iocEventfd, unsafe.Pointer(&eventfdArg{FD: int32(event)}))
	unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(event), Events: unix.POLLIN}}, f.IntN(2))
	unix.Close(event)
}

// anyIoctl gives any bytes to any request of the module: to those that sleep, at most 20 ms.
func (f *fuzzer) anyIoctl(fd int) {
	var arg [256]byte
	for i := range arg {
		arg[i] = byte(f.word())
	}
	request := [...]uintptr{iocInfo, iocRegister, iocTranslate, iocUntranslate, iocLeave, iocStatistics, iocEventfd}[f.IntN(7)]
	if f.IntN(4) == 0 {
		request = request&^0xff | uintptr(f.IntN(256))
	}
	if request&0xff == 8 || request&0xff == 5 || request&0xff == 1 {
		return
	}
	ioctl(fd, request, unsafe.Pointer(&arg[f.IntN(9)]))
}
