//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestInfoTellsTheSizesOfTheABI(t *testing.T) {
	load(t, "nics=2 coordinates=41 packet_size=4096")
	fd, err := openDevice(1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var i info
	if err := ioctl(fd, iocInfo, unsafe.Pointer(&i)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what      string
		got, want uint32
	}{
		{"version", i.ABIVersion, 3},
		{"coordinates", uint32(i.NIC), 42},
		{"NICs", i.NICs, 2},
		{"packet size", i.PacketSize, 4096},
		{"command", i.SizeCommand, uint32(unsafe.Sizeof(command{}))},
		{"context", i.SizeContext, uint32(unsafe.Sizeof(sendContext{}))},
		{"descriptor", i.SizeDescriptor, uint32(unsafe.Sizeof(descriptor{}))},
		{"memory info", i.SizeMemoryInfo, uint32(unsafe.Sizeof(memoryInfo{}))},
		{"status", i.SizeStatus, uint32(unsafe.Sizeof(status{}))},
		{"doorbell", i.SizeDoorbell, 8},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %d, want %d", c.what, c.got, c.want)
		}
	}
}

func TestParametersOutOfRangeAreRefused(t *testing.T) {
	needModule(t)
	for _, params := range []string{
		"nics=0", "nics=65", "coordinates=0", "coordinates=65535 nics=2", "processes=0", "processes=70000", "packet_size=1000",
		"packet_size=70000", "port=0", "port=65536", "datagram=100", "key=1234", "key=" + "zz345678901234567890123456789012",
		"peers=nonsense", "peers=192.0.2.1:0x", "nics=-1",
	} {
		err := insmod(params)
		if err == nil {
			unload(t)
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ERANGE) {
			t.Errorf("insmod qnix.ko %s: got %v, want %v", params, err, unix.EINVAL)
		}
	}
}

// wrongRegistrations change one thing of a registration that would succeed.
var wrongRegistrations = map[string]struct {
	change func(*registerArg)
	want   error
}{
	"no name":               {func(r *registerArg) { r.Name = name("") }, unix.EINVAL},
	"a space in the name":   {func(r *registerArg) { r.Name = name("a b") }, unix.EINVAL},
	"a byte after the name": {func(r *registerArg) { r.Name[10] = 'x' }, unix.EINVAL},
	"no NUL after the name": {func(r *registerArg) { r.Name = [20]byte([]byte("12345678901234567890")) }, unix.EINVAL},
	"not ASCII":             {func(r *registerArg) { r.Name = name("\xe9") }, unix.EINVAL},
	"a group of nobody":     {func(r *registerArg) { r.Group = name("g") }, unix.EINVAL},
	"a size, no group":      {func(r *registerArg) { r.GroupSize = 1 }, unix.EINVAL},
	"commands no power":     {func(r *registerArg) { r.Commands = 12 }, unix.EINVAL},
	"no commands":           {func(r *registerArg) { r.Commands = 0 }, unix.EINVAL},
	"too many commands":     {func(r *registerArg) { r.Commands = 8192 }, unix.EINVAL},
	"too many sends":        {func(r *registerArg) { r.Sends = 4097 }, unix.EINVAL},
	"too many receives":     {func(r *registerArg) { r.Receives = 1 << 31 }, unix.EINVAL},
	"region no multiple":    {func(r *registerArg) { r.RegionSize = 100 }, unix.EINVAL},
	"region too large":      {func(r *registerArg) { r.RegionSize = 1 << 20 }, unix.EINVAL},
	"pool too large":        {func(r *registerArg) { r.PoolEntries = 65537 }, unix.EINVAL},
	"an answer filled in":   {func(r *registerArg) { r.PID = 1 }, unix.EINVAL},
	"padding":               {func(r *registerArg) { r.Pad1 = 1 }, unix.EINVAL},
	"a group never whole": {func(r *registerArg) {
		r.Group, r.GroupSize, r.TimeoutMs = name("g"), 2, 20
	}, unix.ETIMEDOUT},
}

func TestWrongRegistrationIsRefused(t *testing.T) {
	load(t, "nics=1 processes=2")
	for what, c := range wrongRegistrations {
		r := small("name")
		c.change(&r)
		p, err := register(0, r)
		if err == nil {
			p.close()
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
	p := mustRegister(t, 0, small("name"))
	again := small("other")
	if err := ioctl(p.fd, iocRegister, unsafe.Pointer(&again)); err != unix.EISCONN {
		t.Errorf("registering twice: got %v, want %v", err, unix.EISCONN)
	}
	if _, err := register(0, small("name")); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a name that is taken: got %v, want %v", err, unix.EADDRINUSE)
	}
	mustRegister(t, 0, small("second"))
	if _, err := register(0, small("third")); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a Process Table that is full: got %v, want %v", err, unix.EAGAIN)
	}
}

func TestIoctlsOfWhoIsNotRegisteredAreRefused(t *testing.T) {
	load(t, "nics=1")
	fd, err := openDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for what, request := range map[string]uintptr{
		"deregister": iocDeregister, "translate": iocTranslate, "untranslate": iocUntranslate, "join": iocJoin, "leave": iocLeave,
		"doorbell": iocDoorbell, "wait": iocWait, "statistics": iocStatistics, "eventfd": iocEventfd,
	} {
		if err := ioctl(fd, request, nil); err != unix.ENOTCONN {
			t.Errorf("%s: got %v, want %v", what, err, unix.ENOTCONN)
		}
	}
	for _, request := range []uintptr{ioc(0, 11, 0), ioc(0, 255, 0), ioc(3, 0, 128), ioc(2, 0, 4), 0, 0x5401} {
		if err := ioctl(fd, request, nil); err != unix.ENOTTY {
			t.Errorf("unknown ioctl %#x: got %v, want %v", request, err, unix.ENOTTY)
		}
	}
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err != unix.ENOTCONN {
		t.Errorf("mmap: got %v, want %v", err, unix.ENOTCONN)
	}
	for what, request := range map[string]uintptr{"info": iocInfo, "register": iocRegister} {
		if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, 8); err != unix.EFAULT {
			t.Errorf("%s at a bad address: got %v, want %v", what, err, unix.EFAULT)
		}
	}
}

func TestWrongTranslationIsRefused(t *testing.T) {
	load(t, "nics=1 max_translations=2")
	p := mustRegister(t, 0, small("p"))
	memory := mustMap(t, 8*4096)
	addr := uint64(uintptr(unsafe.Pointer(&memory[0])))
	if err := unix.Mprotect(memory[4096:8192], unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if err := unix.Munmap(memory[7*4096:]); err == nil {
		t.Fatal("x/sys unmaps a part: then the case below needs no gap")
	}
	gap := mustMap(t, 4096)
	gapAddr := uint64(uintptr(unsafe.Pointer(&gap[0])))
	if err := unix.Munmap(gap); err != nil {
		t.Fatal(err)
	}
	vni := uint64(uintptr(unsafe.Pointer(&p.vni[0])))
	for what, c := range map[string]struct {
		arg  translateArg
		want error
	}{
		"nothing":            {translateArg{Addr: addr, Access: 1, PoolIndex: noPool}, unix.EINVAL},
		"no access":          {translateArg{Addr: addr, Len: 1, PoolIndex: noPool}, unix.EINVAL},
		"unknown access":     {translateArg{Addr: addr, Len: 1, Access: 4, PoolIndex: noPool}, unix.EINVAL},
		"a handle":           {translateArg{Addr: addr, Len: 1, Access: 1, PoolIndex: noPool, Handle: 1}, unix.EINVAL},
		"over the end":       {translateArg{Addr: addr, Len: ^uint64(0), Access: 1, PoolIndex: noPool}, unix.EFAULT},
		"the kernel's":       {translateArg{Addr: 1 << 63, Len: 4096, Access: 1, PoolIndex: noPool}, unix.EFAULT},
		"not mapped":         {translateArg{Addr: gapAddr, Len: 1, Access: 1, PoolIndex: noPool}, unix.EFAULT},
		"read-only, written": {translateArg{Addr: addr, Len: 8192, Access: 2, PoolIndex: noPool}, unix.EFAULT},
		"the VNI":            {translateArg{Addr: vni, Len: 4096, Access: 3, PoolIndex: noPool}, unix.EFAULT},
		"a stride, no pool":  {translateArg{Addr: addr, Len: 1, Access: 1, PoolIndex: noPool, PoolStride: 1}, unix.EINVAL},
		"a pool, no stride":  {translateArg{Addr: addr, Len: 1, Access: 1}, unix.EINVAL},
		"a stride too long":  {translateArg{Addr: addr, Len: 1, Access: 1, PoolStride: 2}, unix.EINVAL},
		"beyond the pool":    {translateArg{Addr: addr, Len: 4096, Access: 1, PoolStride: 64}, unix.EINVAL},
		"far beyond":         {translateArg{Addr: addr, Len: 64, Access: 1, PoolStride: 64, PoolIndex: noPool - 1}, unix.EINVAL},
	} {
		if err := ioctl(p.fd, iocTranslate, unsafe.Pointer(&c.arg)); err != c.want {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
	checkTranslationLimit(t, p, memory)
}

func checkTranslationLimit(t *testing.T, p *process, memory []byte) {
	t.Helper()
	var handles [2]uint32
	for i := range handles {
		h, err := p.translate(memory[:4096], accessRead|accessWrite)
		if err != nil {
			t.Fatal(err)
		}
		handles[i] = h
	}
	if _, err := p.translate(memory[:4096], accessRead); err != unix.ENOSPC {
		t.Errorf("more than max_translations: got %v, want %v", err, unix.ENOSPC)
	}
	for i, want := range []error{nil, unix.ENOENT} {
		if err := p.untranslate(handles[0]); err != want {
			t.Errorf("untranslate %d: got %v, want %v", i, err, want)
		}
	}
	if _, err := p.translate(memory[:4096], accessRead); err != nil {
		t.Errorf("after one was given back: %v", err)
	}
	for _, handle := range []uint32{0, handles[1] + 100, ^uint32(0)} {
		if err := p.untranslate(handle); err != unix.ENOENT {
			t.Errorf("untranslate %d: got %v, want %v", handle, err, unix.ENOENT)
		}
	}
}

func TestWrongMappingIsRefused(t *testing.T) {
	load(t, "nics=1")
	p := mustRegister(t, 0, small("p"))
	const rw = unix.PROT_READ | unix.PROT_WRITE
	vni, hps := int64(p.reg.VNIOffset), int64(p.reg.HPSOffset)
	for what, c := range map[string]struct {
		offset      int64
		size        int
		prot, flags int
		want        error
	}{
		"private":          {vni, 4096, rw, unix.MAP_PRIVATE, unix.EINVAL},
		"executable":       {vni, 4096, rw | unix.PROT_EXEC, unix.MAP_SHARED, unix.EACCES},
		"too long":         {vni, int(p.reg.VNISize) + 4096, rw, unix.MAP_SHARED, unix.EINVAL},
		"host page longer": {hps, int(p.reg.HPSSize) + 4096, rw, unix.MAP_SHARED, unix.EINVAL},
		"in the middle":    {vni + 4096, 4096, rw, unix.MAP_SHARED, unix.EINVAL},
		"elsewhere":        {hps + 1<<32, 4096, rw, unix.MAP_SHARED, unix.EINVAL},
	} {
		if b, err := unix.Mmap(p.fd, c.offset, c.size, c.prot, c.flags); err != c.want {
			t.Errorf("%s: got %v (%d bytes), want %v", what, err, len(b), c.want)
		}
	}
	if err := unix.Madvise(p.vni, unix.MADV_DOFORK); err != unix.EINVAL {
		t.Errorf("madvise(MADV_DOFORK): got %v, want %v", err, unix.EINVAL)
	}
	if err := unix.Mprotect(p.vni, rw|unix.PROT_EXEC); err != unix.EACCES {
		t.Errorf("mprotect(PROT_EXEC): got %v, want %v", err, unix.EACCES)
	}
	if b, err := unix.Mremap(p.hps, 2*len(p.hps), unix.MREMAP_MAYMOVE); err != unix.EFAULT {
		t.Errorf("mremap to a larger size: got %v (%d bytes), want %v", err, len(b), unix.EFAULT)
	}
}

func TestWrongWaitIsRefused(t *testing.T) {
	load(t, "nics=1")
	p := mustRegister(t, 0, small("p"))
	for what, c := range map[string]struct {
		arg  waitArg
		want error
	}{
		"padding":    {waitArg{Pad: 1}, unix.EINVAL},
		"no time":    {waitArg{}, unix.ETIMEDOUT},
		"some time":  {waitArg{TimeoutNs: 1e6}, unix.ETIMEDOUT},
		"another":    {waitArg{RingTail: 5, TimeoutNs: -1}, nil},
		"no timeout": {waitArg{RingTail: 5}, nil},
	} {
		if err := p.wait(c.arg); !same(err, c.want) {
			t.Errorf("wait, %s: got %v, want %v", what, err, c.want)
		}
	}
	for what, c := range map[string]struct {
		request uintptr
		arg     groupArg
		want    error
	}{
		"join without a name": {iocJoin, groupArg{Size: 1}, unix.EINVAL},
		"join of nobody":      {iocJoin, groupArg{Name: name("g")}, unix.EINVAL},
		"join, never whole":   {iocJoin, groupArg{Name: name("g"), Size: 2, TimeoutMs: 20}, unix.ETIMEDOUT},
		"join":                {iocJoin, groupArg{Name: name("h"), Size: 1}, nil},
		"leave, with a size":  {iocLeave, groupArg{Name: name("h"), Size: 1}, unix.EINVAL},
		"leave of no group":   {iocLeave, groupArg{Name: name("none")}, unix.ENOENT},
		"leave, without name": {iocLeave, groupArg{}, unix.EINVAL},
	} {
		if err := ioctl(p.fd, c.request, unsafe.Pointer(&c.arg)); !same(err, c.want) {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
	for fd, want := range map[int32]error{-2: unix.EINVAL, 1 << 20: unix.EBADF, int32(p.fd): unix.EINVAL, -1: nil} {
		if err := ioctl(p.fd, iocEventfd, unsafe.Pointer(&eventfdArg{FD: fd})); !same(err, want) {
			t.Errorf("eventfd %d: got %v, want %v", fd, err, want)
		}
	}
}

func same(got, want error) bool {
	if want == nil {
		return got == nil
	}
	return errors.Is(got, want)
}

func TestKeyIsForRootAlone(t *testing.T) {
	const key = "00112233445566778899aabbccddeeff"
	load(t, "nics=1 key="+key)
	const file = "/sys/module/qnix/parameters/key"
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	if mode := fmt.Sprintf("%o", st.Mode&0o777); mode != "600" || st.Uid != 0 {
		t.Errorf("%s has mode %s and user %d, want 600 and 0", file, mode, st.Uid)
	}
	if text, err := readFile(file); err != nil || text != key+"\n" {
		t.Errorf("%s holds %q (%v), want the key", file, text, err)
	}
}
