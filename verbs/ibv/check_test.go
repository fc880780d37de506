//go:build linux && !(386 || arm || mips || mipsle)

package ibv

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

var testLimits = limits{sendSGE: 2, recvSGE: 2, inline: 16, message: 1000, reads: true}

func TestChecksRefuseAndAllow(t *testing.T) {
	noReads := testLimits
	noReads.reads = false
	sges := func(lengths ...uint32) func(w *SendWR) {
		return func(w *SendWR) {
			for _, n := range lengths {
				w.AddSGE(8, n, 0)
			}
		}
	}
	inline := func(lengths ...int) func(w *SendWR) {
		return func(w *SendWR) {
			for _, n := range lengths {
				w.Inline(make([]byte, n))
			}
		}
	}
	add := func(remote uint64) func(w *SendWR) { return func(w *SendWR) { w.FetchAdd(remote, 2, 3) } }
	swap := func(remote uint64) func(w *SendWR) { return func(w *SendWR) { w.CompareSwap(remote, 2, 3, 4) } }
	read := func(w *SendWR) { w.Read(1, 2) }
	for _, tc := range []struct {
		name   string
		fill   func(w *SendWR)
		op     func(w *SendWR) // a send unless given
		want   fault
		limits *limits
	}{
		{name: "nothing", fill: sges()},
		{name: "full", fill: sges(999, 1)},
		{name: "a byte too long", fill: sges(999, 2), want: faultMessage},
		{name: "lengths that overflow 32 bits", fill: sges(1<<31, 1<<31), want: faultMessage},
		{name: "three entries", fill: sges(1, 1, 1), want: faultSGE},
		{name: "five entries in a chain of four", fill: sges(1, 1, 1, 1, 1), want: faultChainSGE},
		{name: "inline", fill: inline(16)},
		{name: "inline too long for the queue pair", fill: inline(17), want: faultInline},
		{name: "inline too long for the chain", fill: inline(20, 13), want: faultChainInline},
		{name: "inline after entries", fill: sges(1, 1), op: func(w *SendWR) { w.Inline([]byte("x")) }, want: faultChainInline},
		{name: "inline read", fill: inline(1), op: read, want: faultInlineOp},
		{name: "read", fill: sges(8), op: read},
		{name: "read without the right", fill: sges(8), op: read, want: faultReads, limits: &noReads},
		{name: "atomic", fill: sges(8), op: add(16)},
		{name: "atomic without the right", fill: sges(8), op: add(16), want: faultReads, limits: &noReads},
		{name: "atomic of 4 bytes", fill: sges(4), op: add(16), want: faultAtomicSize},
		{name: "atomic of two halves", fill: sges(4, 4), op: add(16), want: faultAtomicSize},
		{name: "atomic of nothing", fill: sges(), op: swap(16), want: faultAtomicSize},
		{name: "atomic, remote address misaligned", fill: sges(8), op: swap(17), want: faultAtomicAlign},
		{name: "atomic, local address misaligned", op: swap(16), want: faultAtomicAlign,
			fill: func(w *SendWR) { w.AddSGE(12, 8, 0) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := NewSendChain(3, 4, 32)
			if err != nil {
				t.Fatal(err)
			}
			c.Next().Send()
			w := c.Next()
			tc.fill(w)
			if tc.op != nil {
				tc.op(w)
			}
			l := tc.limits
			if l == nil {
				l = &testLimits
			}
			i, got := c.check(l)
			if got != tc.want || got != faultNone && i != 1 {
				t.Errorf("request %d: %v; want request 1: %v", i, got, tc.want)
			}
		})
	}
}

func TestReceiveChecks(t *testing.T) {
	c, err := NewRecvChain(2, 3)
	if err != nil {
		t.Fatal(err)
	}
	w := c.Next()
	w.AddSGE(1, 1, 1)
	w.AddSGE(1, 1, 1)
	if _, f := c.check(2); f != faultNone {
		t.Errorf("two entries: %v", f)
	}
	w.AddSGE(1, 1, 1)
	if _, f := c.check(2); f != faultSGE {
		t.Errorf("three entries: %v", f)
	}
	w.AddSGE(1, 1, 1)
	if _, f := c.check(9); f != faultChainSGE {
		t.Errorf("four entries in a chain of three: %v", f)
	}
}

func TestChainIsALinkedListThatStartsOver(t *testing.T) {
	c, err := NewSendChain(4, 2, 8)
	if err != nil {
		t.Fatal(err)
	}
	list := func() (ids []uint64) {
		last := c.seal()
		for w := &c.wrs[c.head]; ; w = (*SendWR)(pointer(w.next)) {
			ids = append(ids, w.ID)
			if w.next == 0 {
				break
			}
		}
		c.unseal(last, 0)
		return ids
	}
	add := func(id uint64) {
		w := c.Next()
		w.ID = id
	}
	add(1)
	add(2)
	add(3)
	if got := list(); len(got) != 3 || got[0] != 1 || got[2] != 3 {
		t.Errorf("list %v, want 1 2 3", got)
	}
	c.unseal(c.seal(), 2) // two were posted
	add(4)
	if got := list(); len(got) != 2 || got[0] != 3 || got[1] != 4 || c.Len() != 2 {
		t.Errorf("list %v, %d waiting; want 3 4, 2", got, c.Len())
	}
	if c.Next() != nil {
		t.Error("a full chain gave a request")
	}
	c.unseal(c.seal(), 2)
	if c.Len() != 0 || c.tail != 0 {
		t.Errorf("%d waiting from %d after all was posted; want 0, 0", c.Len(), c.head)
	}
	c.wrs[0].AddSGE(1, 2, 3)
	if w := c.Next(); w.numSGE != 0 || w.Flags != 0 || w.ID != 0 {
		t.Errorf("a reused request is not empty: %+v", *w)
	}
}

func TestChainsOfOddSizesAreRefused(t *testing.T) {
	for _, s := range [][3]int{
		{0, 1, 1}, {-1, 1, 1}, {1, -1, 0}, {1, 0, -1}, {1 << 20, 1, 1}, {1, 1 << 20, 1}, {1, 1, 1 << 20},
	} {
		if _, err := NewSendChain(s[0], s[1], s[2]); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("NewSendChain%v: %v, want EINVAL", s, err)
		}
	}
	if _, err := NewRecvChain(0, 1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("NewRecvChain(0, 1): %v, want EINVAL", err)
	}
	if c, err := NewSendChain(1, 0, 0); err != nil || c.Next() == nil {
		t.Errorf("the smallest chain: %v", err)
	}
}

func TestChainMemoryGoesWithTheChain(t *testing.T) {
	size := func() (mib int) {
		b, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Skip(err)
		}
		pages, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.Atoi(pages)
		if err != nil {
			t.Fatal(err)
		}
		return n * os.Getpagesize() >> 20
	}
	var before, after int
	for range 3 { // threads that begin meanwhile map their stacks and heaps, but not each time
		before = size()
		for range 400 { // of 1 MiB each
			if _, err := NewSendChain(1<<12, 4, 64); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			runtime.GC()
			if after = size(); after < before+200 {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	t.Errorf("%d MiB mapped, %d before", after, before)
}

func TestParentsWaitForTheirChildren(t *testing.T) {
	one := func() (handle, int) { return handle(&tree), 0 }
	root, child := &object{kind: "root", device: "dev"}, &object{kind: "child", label: func() string { return "c1" }}
	if err := root.make("open", one); err != nil {
		t.Fatal(err)
	}
	if err := child.make("make", one, root); err != nil {
		t.Fatal(err)
	}
	destroyed := 0
	destroy := func() int { destroyed++; return 0 }
	err := root.close("close", destroy)
	want := "ibv: close dev: the root is in use by 1 child (c1); close these first: device or resource busy"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := child.close("free", func() int { return -int(syscall.EBUSY) }); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a child that the kernel keeps: %v", err)
	}
	if err := child.use("use"); err != nil {
		t.Errorf("it is not usable any more: %v", err)
	} else {
		child.mu.RUnlock()
	}
	if err := child.close("free", func() int { return -int(syscall.EIO) }); err != nil {
		t.Errorf("a child whose device is gone: %v", err)
	}
	for range 2 {
		if err := root.close("close", destroy); err != nil {
			t.Error(err)
		}
	}
	if destroyed != 1 {
		t.Errorf("destroyed %d times, want once", destroyed)
	}
	if err := (&object{}).make("make", one, root); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a child of a closed parent: %v", err)
	}
	if err := child.call("use", func() int { return 0 }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a call on a closed object: %v", err)
	}
	tree.Lock()
	defer tree.Unlock()
	if _, ok := tree.live[root]; ok || len(root.kids) != 0 {
		t.Error("closed objects are still in the graph")
	}
}

func TestSocketAddresses(t *testing.T) {
	for _, tc := range []struct {
		addr string
		want []byte
	}{
		{"192.0.2.1:4660", []byte{2, 0, 0x12, 0x34, 192, 0, 2, 1}},
		{"[::ffff:192.0.2.1]:1", []byte{2, 0, 0, 1, 192, 0, 2, 1}},
		{"[2001:db8::1]:258", []byte{10, 0, 1, 2, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8, 0, 0}},
	} {
		sa := sockaddr(netip.MustParseAddrPort(tc.addr))
		got := (*[28]byte)(unsafe.Pointer(&sa))[:]
		if runtime.GOARCH == "s390x" {
			t.Skip("the bytes of the family are swapped")
		}
		if string(got[:len(tc.want)]) != string(tc.want) {
			t.Errorf("%s: % x, want % x", tc.addr, got, tc.want)
		}
	}
	if sa := sockaddr(netip.AddrPort{}); sa != (syscall.RawSockaddrInet6{}) {
		t.Errorf("the zero address: %+v", sa)
	}
}

func TestWordsForEveryCode(t *testing.T) {
	for s := range StateErr + 1 {
		if strings.HasPrefix(s.String(), "state") {
			t.Errorf("state %d has no name", uint32(s))
		}
	}
	if got := QPState(99).String(); got != "state 99" {
		t.Errorf("an unknown state: %q", got)
	}
	if got := (&WC{ID: 5, Status: WCRemoteAccess, QPNum: 17}).Err().Error(); !strings.Contains(got, "remote access error") ||
		!strings.Contains(got, "0x11") {
		t.Errorf("completion error %q", got)
	}
	for m, n := range map[MTU]int{MTU256: 256, MTU1024: 1024, MTU4096: 4096, 0: 0, 6: 0} {
		if m.Bytes() != n {
			t.Errorf("MTU %d is %d bytes, want %d", uint32(m), m.Bytes(), n)
		}
	}
	if IncRKey(0x1234ff) != 0x123400 || IncRKey(0x123400) != 0x123401 {
		t.Errorf("IncRKey: %#x, %#x", IncRKey(0x1234ff), IncRKey(0x123400))
	}
	for s, want := range map[string]GID{
		"::ffff:192.0.2.1": {10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: 1},
		"fe80::1":          {0: 0xfe, 1: 0x80, 15: 1},
	} {
		if want.String() != s {
			t.Errorf("GID %s, want %s", want, s)
		}
	}
}

func TestUnavailableNamesTheRemedy(t *testing.T) {
	err := Available()
	if err == nil {
		t.Log("verbs are available here")
		return
	}
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v is not ErrUnavailable", err)
	}
	if !strings.Contains(err.Error(), "install") && !strings.Contains(err.Error(), "cgo") {
		t.Errorf("no remedy: %v", err)
	}
	if _, err := Devices(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Devices: %v", err)
	}
	if _, err := Open("rxe0"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Open: %v", err)
	}
	if _, err := NewCMChannel(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("NewCMChannel: %v", err)
	}
}

// Without cgo and without headers everything compiles, links and returns the reason for which it is unavailable.
func TestOtherBuildsNameWhatIsMissing(t *testing.T) {
	if testing.Short() || os.Getenv("VM_ADDR") != "" {
		t.Skip("builds two programs: not with -short, nor in a virtual machine")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	for _, tc := range []struct{ env, want string }{
		{"CGO_ENABLED=0", "without cgo"},
		{"CGO_CFLAGS=-DBW_NO_HEADERS", "without rdma-core's headers"},
	} {
		cmd := exec.Command("go", "test", "-count=1", "-v", "-run", "^TestUnavailableNamesTheRemedy|^TestReportUnavailable$", ".")
		cmd.Env = append(os.Environ(), tc.env, "IBV_WANT_UNAVAILABLE="+tc.want)
		if out, err := cmd.CombinedOutput(); err != nil {
			if strings.Contains(string(out), "C compiler") {
				t.Skip("needs a C compiler")
			}
			t.Errorf("%s: %v\n%s", tc.env, err, out)
		}
	}
}

// Without the library a program starts and reports what is missing.
func TestMissingLibraryIsNamed(t *testing.T) {
	if Available() != nil {
		t.Skip(Available())
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: hides the library in a mount namespace")
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	lib := regexp.MustCompile(`/\S*libibverbs\.so\S*`).Find(maps)
	if lib == nil {
		t.Fatal("the library is open, but not mapped")
	}
	const hide = `mount --bind /dev/null "$0" && exec "$1" -test.v -test.run '^TestReportUnavailable$|^TestUnavailableNamesTheRemedy'`
	cmd := exec.Command("unshare", "-m", "sh", "-c", hide, string(lib), "/proc/self/exe")
	if self, err := os.Executable(); err == nil {
		cmd.Args[len(cmd.Args)-1] = self
	}
	cmd.Env = append(os.Environ(), "IBV_WANT_UNAVAILABLE=libibverbs")
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "unshare") || strings.Contains(string(out), "permission denied") {
		t.Skipf("needs mount namespaces: %s", out)
	}
	if err != nil || !strings.Contains(string(out), "PASS: TestReportUnavailable") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestReportUnavailable is run by TestOtherBuildsNameWhatIsMissing.
func TestReportUnavailable(t *testing.T) {
	want := os.Getenv("IBV_WANT_UNAVAILABLE")
	if want == "" {
		t.Skip("only for other builds: IBV_WANT_UNAVAILABLE")
	}
	if err := Available(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// BenchmarkCrossing is the fixed cost of a call on the data path: Go, cgo, lock and return.
func BenchmarkCrossing(b *testing.B) {
	if Available() != nil {
		b.Skip(Available())
	}
	mem, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		b.Fatal(err)
	}
	defer syscall.Munmap(mem)
	var wcs [16]WC
	b.ReportAllocs()
	for b.Loop() {
		if r := rawPoll(handle(&mem[0]), &wcs[0], len(wcs)); r != -int(syscall.EBADF) { // a closed queue
			b.Fatal(r)
		}
	}
}

// BenchmarkFillAndCheck is what a work request costs before the crossing.
func BenchmarkFillAndCheck(b *testing.B) {
	c, err := NewSendChain(16, 2, 64)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		w := c.Next()
		w.ID, w.Flags = 1, SendSignaled
		w.Write(4096, 5)
		w.AddSGE(8192, 8, 6)
		if _, f := c.check(&testLimits); f != faultNone {
			b.Fatal(f)
		}
		c.unseal(c.seal(), 1)
	}
}
