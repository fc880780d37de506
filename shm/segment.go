//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/memfd"
)

// A segment is the memory that the two ends of one connection share: a sealed
// memfd with a control page, for each direction a ring, and on the large track
// for each direction a table of transfers. docs/wire.md draws it.
//
// The ends are numbered: side 0 created the segment. Direction d is the one in
// which side d sends.
const (
	controlBytes  = 4096
	transferSlots = 32
	tableBytes    = 8192 // of one direction, page-aligned
)

// sideLines are written by one side about itself.
type sideLines struct {
	// seq is the futex that this side sleeps on in instance waits. The peer
	// increments it to wake it.
	seq uint32
	_   [60]byte

	// sleeping: this side sleeps, or is about to, for anything the peer does
	// besides a message in the ring. The peer clears it and wakes.
	sleeping uint32
	_        [60]byte

	// hazard names the region of the peer that this side is operating on,
	// index plus 1; 0: none. The peer does not release memory under it.
	hazard uint64
	_      [60]byte

	// closed: this side has closed the connection, and the peer may not enter its
	// regions any more (see hazardPointer). The peer reads it with every access, so it lies
	// beside a word that is not written meanwhile.
	closed uint32
	_      [56]byte
}

// control is the first page of a segment.
type control struct {
	side [2]sideLines
	cons [2]consumerLine // by direction
}

var _ [controlBytes - unsafe.Sizeof(control{})]byte

// segment is one mapping of a connection's memory.
type segment struct {
	fd    int // -1 once passed on
	base  unsafe.Pointer
	size  uintptr // of the mapping, in which data areas lie twice
	ctl   *control
	ring  [2]ringMemory
	table [2]*[transferSlots]transferSlot // nil on the small track
}

func dataBytes(large bool) int {
	if large {
		return largeData
	}
	return smallData
}

func segmentFileSize(large bool) int64 {
	n := int64(controlBytes + 2*(ringSlots*slotBytes+dataBytes(large)))
	if large {
		n += 2 * tableBytes
	}
	return n
}

// createSegment makes the memory of a connection.
func createSegment(large bool) (*segment, error) {
	fd, err := newMemfd("bywash-shm", segmentFileSize(large), sizeSeals|unix.F_SEAL_SEAL)
	if err != nil {
		return nil, err
	}
	return mapSegment(fd, large)
}

// newMemfd makes a memfd of fixed size. It is allocated at once, so that a lack of memory is an error here and not
// a fault later.
func newMemfd(name string, size int64, seals int) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, resourceError("memfd_create", err)
	}
	if err = memfd.Allocate(fd, size); err != nil {
		err = resourceError(fmt.Sprintf("allocate %d bytes of shared memory", size), err)
	} else if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		err = fmt.Errorf("seal shared memory: %w", err)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// sizeSeals keep a peer from shrinking what we have mapped, which would turn
// our next access into SIGBUS.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// checkSealed checks that a descriptor from a peer is memory of the size that
// it should have, and that no process can change that.
func checkSealed(fd int, want int64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("peer passed a descriptor that is no memfd: %w", err)
	}
	if seals&sizeSeals != sizeSeals {
		return errors.New("peer passed memory that is not sealed")
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("fstatfs: %w", err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		// Huge pages that were taken back fault with SIGBUS.
		return errors.New("peer passed memory that is not of tmpfs")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if st.Size != want {
		return fmt.Errorf("peer passed memory of %d bytes, expected %d", st.Size, want)
	}
	return nil
}

// mapSegment maps a segment and owns fd from then on, on failure too.
func mapSegment(fd int, large bool) (*segment, error) {
	s := &segment{fd: fd, size: uintptr(segmentFileSize(large) + 2*int64(dataBytes(large)))}
	base, err := unix.MmapPtr(-1, 0, nil, s.size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		unix.Close(fd)
		return nil, resourceError("reserve address space", err)
	}
	s.base = base
	if err := s.place(large); err != nil {
		s.unmap()
		return nil, resourceError("map shared memory", err)
	}
	return s, nil
}

// place maps the parts over the reserved range, in the order of the file; only
// the data areas come twice.
func (s *segment) place(large bool) error {
	at, off := s.base, int64(0)
	part := func(n int) (unsafe.Pointer, error) {
		p, err := unix.MmapPtr(s.fd, off, at, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		at = unsafe.Add(at, n)
		return p, err
	}
	p, err := part(controlBytes)
	if err != nil {
		return err
	}
	s.ctl = (*control)(p)
	off += controlBytes
	for d := range 2 {
		m := &s.ring[d]
		m.cons = &s.ctl.cons[d]
		if m.slots, err = part(ringSlots * slotBytes); err != nil {
			return err
		}
		off += ringSlots * slotBytes
		data := dataBytes(large)
		m.size = uint64(data)
		if m.data, err = part(data); err != nil {
			return err
		}
		if _, err = part(data); err != nil {
			return err
		}
		off += int64(data)
	}
	for d := 0; large && d < 2; d++ {
		if p, err = part(tableBytes); err != nil {
			return err
		}
		s.table[d] = (*[transferSlots]transferSlot)(p)
		off += tableBytes
	}
	return nil
}

// closeFD is called once the peer has its own descriptor.
func (s *segment) closeFD() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

func (s *segment) unmap() {
	s.closeFD()
	if s.base != nil {
		_ = unix.MunmapPtr(s.base, s.size)
		s.base = nil
	}
}

// Operations in the directory for sockets.
const (
	opListen    = "listen"
	opDirectory = "make directory for sockets"
)

// resourceError adds the remedy to an error that means "not enough".
func resourceError(op string, err error) error {
	inDirectory := op == opListen || op == opDirectory
	switch {
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%s: %w (raise the limit of open files: ulimit -n)", op, err)
	case errors.Is(err, unix.ETOOMANYREFS):
		return fmt.Errorf("%s: %w (too many descriptors of this user are on their way to processes that do not take them: end or continue those, or raise ulimit -n)", op, err)
	case errors.Is(err, unix.ENFILE):
		return fmt.Errorf("%s: %w (raise fs.file-max)", op, err)
	case errors.Is(err, unix.ENOSPC) && inDirectory:
		return fmt.Errorf("%s: %w (remove files there, or set the option dir, or XDG_RUNTIME_DIR, to a directory with room)", op, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%s: %w (free memory, or raise the memory limit of this cgroup or vm.max_map_count)", op, err)
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: %w (set the option dir, or XDG_RUNTIME_DIR, to a directory that can be written)", op, err)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s: %w (the directory of the option dir, or XDG_RUNTIME_DIR, must exist)", op, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}
