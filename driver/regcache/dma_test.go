//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dma is a registrar whose registrations are those of a real device: io_uring
// pins the pages that the memory has when it is registered, and read-fixed
// requests write into those pages, whatever is mapped at their addresses now.
// So a stale registration shows as data that does not arrive.
type dma struct {
	mu     sync.Mutex
	fd     int
	source *os.File // what is written comes from here
	free   []int    // slots of registered buffers
	sq, cq []byte
	sqes   []byte
	offset ringOffsets
	calls  atomic.Int64
}

const dmaSlots = 256

type ringOffsets struct {
	sqHead, sqTail, sqMask, sqArray uint32
	cqHead, cqTail, cqMask, cqes    uint32
}

// ioUringParams is struct io_uring_params.
type ioUringParams struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
	_                                                    [3]uint32
	sq                                                   struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

// ioUringSQE is struct io_uring_sqe.
type ioUringSQE struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off, addr     uint64
	len, rwFlags  uint32
	userData      uint64
	bufIndex      uint16
	_             [22]byte
}

const (
	opReadFixed          = 4
	registerBuffers2     = 15
	registerBuffersUpd   = 16
	registerSparse       = 1
	enterGetEvents       = 1
	offSQ, offCQ, offSQE = 0, 0x8000000, 0x10000000
)

func newDMA(tb testing.TB) *dma {
	tb.Helper()
	var p ioUringParams
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		tb.Skipf("needs io_uring, as the device that writes into pinned pages: %v", errno)
	}
	d := &dma{fd: int(fd)}
	tb.Cleanup(func() { unix.Close(d.fd) })
	d.sq = d.mmap(tb, offSQ, int(p.sq.array+p.sqEntries*4))
	d.cq = d.mmap(tb, offCQ, int(p.cq.cqes+p.cqEntries*16))
	d.sqes = d.mmap(tb, offSQE, int(p.sqEntries)*64)
	d.offset = ringOffsets{p.sq.head, p.sq.tail, p.sq.mask, p.sq.array, p.cq.head, p.cq.tail, p.cq.mask, p.cq.cqes}
	arg := struct {
		nr, flags  uint32
		_          uint64
		data, tags uint64
	}{nr: dmaSlots, flags: registerSparse}
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, fd, registerBuffers2,
		uintptr(unsafe.Pointer(&arg)), unsafe.Sizeof(arg), 0, 0); errno != 0 {
		tb.Skipf("needs io_uring with sparse buffer tables (Linux 5.19): %v", errno)
	}
	for i := range dmaSlots {
		d.free = append(d.free, i)
	}
	memfd, err := unix.MemfdCreate("dma", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	d.source = os.NewFile(uintptr(memfd), "dma")
	tb.Cleanup(func() { d.source.Close() })
	return d
}

func (d *dma) mmap(tb testing.TB, offset int64, size int) []byte {
	tb.Helper()
	b, err := unix.Mmap(d.fd, offset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func (d *dma) update(slot int, base unsafe.Pointer, n int) error {
	vec := unix.Iovec{Base: (*byte)(base)}
	vec.SetLen(n)
	arg := struct {
		offset, _  uint32
		data, tags uint64
		nr, _      uint32
	}{offset: uint32(slot), data: uint64(uintptr(unsafe.Pointer(&vec))), nr: 1}
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(d.fd), registerBuffersUpd,
		uintptr(unsafe.Pointer(&arg)), unsafe.Sizeof(arg), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("io_uring_register", errno)
	}
	return nil
}

func (d *dma) Register(b []byte, _ Access) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls.Add(1)
	if len(d.free) == 0 {
		return 0, unix.ENOMEM
	}
	slot := d.free[len(d.free)-1]
	if err := d.update(slot, unsafe.Pointer(unsafe.SliceData(b)), len(b)); err != nil {
		return 0, err
	}
	d.free = d.free[:len(d.free)-1]
	return slot, nil
}

func (d *dma) Deregister(slot int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.update(slot, nil, 0); err != nil {
		return err
	}
	d.free = append(d.free, slot)
	return nil
}

// write has the device write data to an address inside a registration.
func (d *dma) write(slot int, addr uintptr, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.source.WriteAt(data, 0); err != nil {
		return err
	}
	word := func(ring []byte, at uint32) *uint32 { return (*uint32)(unsafe.Pointer(&ring[at])) }
	tail := word(d.sq, d.offset.sqTail)
	i := *tail & *word(d.sq, d.offset.sqMask)
	*(*ioUringSQE)(unsafe.Pointer(&d.sqes[i*64])) = ioUringSQE{
		opcode: opReadFixed, fd: int32(d.source.Fd()), addr: uint64(addr), len: uint32(len(data)), bufIndex: uint16(slot),
	}
	*word(d.sq, d.offset.sqArray+4*i) = i
	atomic.StoreUint32(tail, *tail+1)
	head := word(d.cq, d.offset.cqHead)
	for submit := uintptr(1); atomic.LoadUint32(word(d.cq, d.offset.cqTail)) == *head; {
		// A signal ends the wait, but what was submitted is.
		n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(d.fd), submit, 1, enterGetEvents, 0, 0)
		if errno != 0 && errno != unix.EINTR {
			return os.NewSyscallError("io_uring_enter", errno)
		}
		if errno == 0 {
			submit -= n
		}
	}
	res := int32(*word(d.cq, d.offset.cqes+16*(*head&*word(d.cq, d.offset.cqMask))+8))
	atomic.StoreUint32(head, *head+1)
	if int(res) != len(data) {
		return fmt.Errorf("device wrote %d of %d bytes", res, len(data))
	}
	return nil
}

// receive has the device write a pattern into b, by a registration from the
// cache, and reports whether it arrived.
func (d *dma) receive(c *Cache[int], b []byte, seed byte) error {
	r, err := c.Acquire(b, 1)
	if err != nil {
		return err
	}
	defer r.Release()
	return d.check(r, b, seed)
}

// pattern is what the device writes: never 0, as fresh memory is.
func pattern(seed byte, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = seed + byte(i%251) | 1
	}
	return data
}

func (d *dma) check(r *Region[int], b []byte, seed byte) error {
	data := pattern(seed, len(b))
	lo, _ := span(b)
	if err := d.write(r.Handle(), lo, data); err != nil {
		return err
	}
	for i := range b {
		if b[i] != data[i] {
			return fmt.Errorf("stale: byte %d of %d at %#x is %d, the device wrote %d", i, len(b), lo, b[i], data[i])
		}
	}
	return nil
}
