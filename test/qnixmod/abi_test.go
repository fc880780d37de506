//go:build linux && !(386 || arm || mips || mipsle)

// Package qnixmod tests the kernel module through nothing but its ABI: raw ioctls and mappings.
package qnixmod

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The mirror of kmod/uapi/qnix.h; TestInfo proves its sizes equal to the module's.
type (
	info struct {
		ABIVersion, Features                                                               uint32
		NIC, _                                                                             uint16
		NICs, PacketSize, LocalMemory, MaxProcesses, MaxPerUser, MaxContexts, MaxCommands  uint32
		MaxRegion, MaxPool, MaxMessage, MaxTranslations                                    uint32
		SizeCommand, SizeContext, SizeDescriptor, SizeMemoryInfo, SizeStatus, SizeDoorbell uint32
		_                                                                                  [12]uint32
	}
	registerArg struct {
		Name, Group                                                              [20]byte
		GroupSize, TimeoutMs, Commands, Sends, Receives, RegionSize, PoolEntries uint32
		PID, Generation, NIC, Pad0                                               uint16
		VNISize                                                                  uint32
		VNIOffset, HPSOffset                                                     uint64
		HPSSize, Pad1                                                            uint32
	}
	memoryInfo struct {
		ABIVersion, CommandQueue, SendContexts, ReceiveContexts, SendRegions, ReceiveRegions uint32
		BufferPool, VNISize, Status, SendDoorbells, ReceiveDoorbells, DoorbellRing           uint32
		HPSSize, Commands, Sends, Receives, RegionSize, PoolEntries, RingEntries, _          uint32
	}
	command struct {
		Command           uint32
		Context, Reserved uint16
		Size              uint32
		Name              [20]byte
		_                 [32]byte
	}
	sendContext struct { // and receive context
		Process          [20]byte
		Tag, Flags       uint16
		Len, Descriptors uint32
		PoolIndex        uint32
		_                [28]byte
	}
	descriptor struct {
		Handle, Len uint32
		Offset      uint64
	}
	status struct {
		CommandQueueHead, NeedWakeup, Misuse, Gone uint32
		_                                          [48]byte
		RingTail                                   uint32
		_                                          [60]byte
		Sleepers                                   uint32
		_                                          [60]byte
	}
	translateArg struct {
		Addr, Len                             uint64
		Access, PoolIndex, PoolStride, Handle uint32
	}
	untranslateArg struct{ Handle, Pad uint32 }
	groupArg       struct {
		Name                 [20]byte
		Size, TimeoutMs, Pad uint32
	}
	waitArg struct {
		RingTail, Pad uint32
		TimeoutNs     int64
	}
	eventfdArg struct {
		FD  int32
		Pad uint32
	}
	statistics struct {
		Commands, PacketsSent, PacketsReceived, BytesSent, BytesReceived, Doorbells uint64
		RequestsSent, RequestsRemembered, RequestsBuffered, Failures, Misuse        uint64
		SystemMessages, BadFrames, LateFrames, Processes, LocalMemory               uint64
		_                                                                           [8]uint64
	}
)

const (
	cmdSend          = 1
	cmdSendShort     = 2
	cmdBroadcast     = 3
	cmdReceive       = 10
	cmdBarrier       = 11
	cmdCancelSend    = 12
	cmdCancelReceive = 13

	flagDoorbell = 1
	flagInline   = 2
	flagPool     = 4

	stateFree      = 0
	stateDone      = 2
	stateTruncated = 3
	stateUnknown   = 4
	stateGone      = 5
	stateFault     = 8

	accessRead  = 1
	accessWrite = 2
	noPool      = 0xffffffff
)

func ioc(dir, nr uintptr, size uintptr) uintptr { return dir<<30 | size<<16 | 0xd9<<8 | nr }

var (
	iocInfo        = ioc(2, 0, unsafe.Sizeof(info{}))
	iocRegister    = ioc(3, 1, unsafe.Sizeof(registerArg{}))
	iocDeregister  = ioc(0, 2, 0)
	iocTranslate   = ioc(3, 3, unsafe.Sizeof(translateArg{}))
	iocUntranslate = ioc(1, 4, unsafe.Sizeof(untranslateArg{}))
	iocJoin        = ioc(1, 5, unsafe.Sizeof(groupArg{}))
	iocLeave       = ioc(1, 6, unsafe.Sizeof(groupArg{}))
	iocDoorbell    = ioc(0, 7, 0)
	iocWait        = ioc(1, 8, unsafe.Sizeof(waitArg{}))
	iocStatistics  = ioc(2, 9, unsafe.Sizeof(statistics{}))
	iocEventfd     = ioc(1, 10, unsafe.Sizeof(eventfdArg{}))
)

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}

func name(s string) (n [20]byte) {
	copy(n[:19], s)
	return n
}

func device(nic int) string { return fmt.Sprintf("/dev/qnix%d", nic) }

// A process is a registration.
type process struct {
	fd       int
	reg      registerArg
	vni, hps []byte
	info     memoryInfo
	next     uint32 // command to post
}

func small(n string) registerArg {
	return registerArg{Name: name(n), Commands: 16, Sends: 8, Receives: 8, RegionSize: 256, PoolEntries: 16}
}

func openDevice(nic int) (int, error) {
	fd, err := unix.Open(device(nic), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", device(nic), err)
	}
	return fd, nil
}

// register opens NIC number nic of this host, registers and maps.
func register(nic int, r registerArg) (*process, error) {
	fd, err := openDevice(nic)
	if err != nil {
		return nil, err
	}
	p := &process{fd: fd, reg: r}
	if err := ioctl(fd, iocRegister, unsafe.Pointer(&p.reg)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("register: %w", err)
	}
	if err := p.mapAll(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return p, nil
}

func (p *process) mapAll() (err error) {
	const prot = unix.PROT_READ | unix.PROT_WRITE
	if p.vni, err = unix.Mmap(p.fd, int64(p.reg.VNIOffset), int(p.reg.VNISize), prot, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("mmap the VNI: %w", err)
	}
	if p.hps, err = unix.Mmap(p.fd, int64(p.reg.HPSOffset), int(p.reg.HPSSize), prot, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("mmap the host page: %w", err)
	}
	p.info = *(*memoryInfo)(unsafe.Pointer(&p.hps[0]))
	return nil
}

func (p *process) close() {
	unix.Close(p.fd)
	unix.Munmap(p.vni)
	unix.Munmap(p.hps)
}

func (p *process) status() *status { return (*status)(unsafe.Pointer(&p.hps[p.info.Status])) }

func (p *process) ringTail() uint32 { return atomic.LoadUint32(&p.status().RingTail) }

func (p *process) context(receive bool, i int) *sendContext {
	at := p.info.SendContexts
	if receive {
		at = p.info.ReceiveContexts
	}
	return (*sendContext)(unsafe.Pointer(&p.vni[at+uint32(i)*64]))
}

func (p *process) region(receive bool, i int) []byte {
	at := p.info.SendRegions
	if receive {
		at = p.info.ReceiveRegions
	}
	at += uint32(i) * p.info.RegionSize
	return p.vni[at : at+p.info.RegionSize]
}

func (p *process) doorbell(receive bool, i int) *uint64 {
	at := p.info.SendDoorbells
	if receive {
		at = p.info.ReceiveDoorbells
	}
	return (*uint64)(unsafe.Pointer(&p.hps[at+uint32(i)*8]))
}

// clear takes back what a doorbell has told, before its context is posted again.
func (p *process) clear(receive bool, i int) { atomic.StoreUint64(p.doorbell(receive, i), 0) }

// rung returns the state and length that a doorbell tells.
func (p *process) rung(receive bool, i int) (state, length uint32) {
	v := atomic.LoadUint64(p.doorbell(receive, i))
	return uint32(v >> 32), uint32(v)
}

// post writes a command and rings if the NIC asks for it. It waits for a free entry.
func (p *process) post(c command) error {
	entry := (*command)(unsafe.Pointer(&p.vni[p.info.CommandQueue+p.next%p.info.Commands*64]))
	for deadline := time.Now().Add(time.Minute); atomic.LoadUint32(&entry.Command) != 0; {
		if err := ioctl(p.fd, iocDoorbell, nil); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the NIC does not read command %d", p.next)
		}
	}
	p.next++
	entry.Context, entry.Reserved, entry.Size, entry.Name = c.Context, c.Reserved, c.Size, c.Name
	atomic.StoreUint32(&entry.Command, c.Command)
	if atomic.LoadUint32(&p.status().NeedWakeup) == 0 {
		return nil
	}
	return ioctl(p.fd, iocDoorbell, nil)
}

// transfer fills context i and posts the command.
func (p *process) transfer(cmd uint32, i int, c sendContext) error {
	receive := cmd == cmdReceive
	*p.context(receive, i) = c
	p.clear(receive, i)
	return p.post(command{Command: cmd, Context: uint16(i)})
}

// await waits for a doorbell, by the ioctl.
func (p *process) await(receive bool, i int) (state, length uint32, err error) {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		seen := p.ringTail()
		if state, length = p.rung(receive, i); state != stateFree {
			return state, length, nil
		}
		if err := p.wait(waitArg{RingTail: seen, TimeoutNs: int64(time.Second)}); err != nil && err != unix.ETIMEDOUT {
			return 0, 0, fmt.Errorf("wait: %w", err)
		}
		if time.Now().After(deadline) {
			return 0, 0, fmt.Errorf("doorbell %d (receive: %v) does not ring", i, receive)
		}
	}
}

func (p *process) translate(b []byte, access uint32) (uint32, error) {
	t := translateArg{Addr: uint64(uintptr(unsafe.Pointer(&b[0]))), Len: uint64(len(b)), Access: access, PoolIndex: noPool}
	err := ioctl(p.fd, iocTranslate, unsafe.Pointer(&t))
	return t.Handle, err
}

func (p *process) untranslate(handle uint32) error {
	return ioctl(p.fd, iocUntranslate, unsafe.Pointer(&untranslateArg{Handle: handle}))
}

// anonymous returns memory outside the Go heap.
func anonymous(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

// describe puts descriptors into the Context Region.
func (p *process) describe(receive bool, i int, ds ...descriptor) {
	copy(unsafe.Slice((*descriptor)(unsafe.Pointer(&p.region(receive, i)[0])), len(ds)), ds)
}

func readFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	return string(b), err
}
