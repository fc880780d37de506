//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// minRx is the least room in a chunk behind the headroom, in bytes. Recent kernels (seen on 6.18.44) require a minimal
// frame and a struct skb_shared_info: 448 bytes with cache lines of 64.
const minRx = 512

// A UMEM is the memory of frames, divided into chunks of one size. Sockets on any queues and devices may share it. It
// does not record which chunks are free: a chunk belongs to the user, which passes it to the kernel by [Socket.Fill] or
// [Socket.Transmit] and gets it back by [Socket.Receive] or [Socket.Complete]. Built with -race or the tag xskdebug,
// the package checks every such step, and panics if a chunk is passed on twice.
//
// Frame, Data and the methods that only compute may be called from any goroutine.
type UMEM struct {
	mem       []byte
	chunkSize int
	cfg       UMEMConfig
	mapped    bool
	hugeErr   error
	pin       runtime.Pinner
	own       ownership

	mu      sync.Mutex
	bound   []*Socket // sockets that use it; the first one's mode applies to all
	closed  bool
	closing error
}

// NewUMEM makes a UMEM. It is registered with the kernel when the first socket
// is opened; from then on its pages are locked in memory and count against
// RLIMIT_MEMLOCK unless the process has CAP_IPC_LOCK.
func NewUMEM(cfg UMEMConfig) (*UMEM, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("xsk: UMEM: %w", err)
	}
	u := &UMEM{cfg: cfg, chunkSize: cfg.ChunkSize, mem: cfg.Memory}
	if u.mem == nil {
		if err := u.mmap(cfg.Chunks * cfg.ChunkSize); err != nil {
			return nil, fmt.Errorf("xsk: UMEM: %w", err)
		}
	} else {
		u.hugeErr = errors.New("the caller's memory is used")
		u.pin.Pin(&u.mem[0])
	}
	u.own = newOwnership(cfg.Chunks)
	return u, nil
}

func (cfg *UMEMConfig) complete() error {
	if cfg.ChunkSize == 0 {
		cfg.ChunkSize = 4096
	}
	if cfg.ChunkSize != 2048 && cfg.ChunkSize != 4096 {
		return fmt.Errorf("chunks of %d bytes: the kernel takes 2048 or 4096", cfg.ChunkSize)
	}
	if cfg.Memory != nil {
		if uintptr(unsafe.Pointer(unsafe.SliceData(cfg.Memory)))%uintptr(os.Getpagesize()) != 0 {
			return errors.New("the memory is not page-aligned")
		}
		if len(cfg.Memory) == 0 || len(cfg.Memory)%cfg.ChunkSize != 0 {
			return fmt.Errorf("the memory's %d bytes are no multiple of the chunk's %d", len(cfg.Memory), cfg.ChunkSize)
		}
		held := len(cfg.Memory) / cfg.ChunkSize
		if cfg.Chunks != 0 && cfg.Chunks != held {
			return fmt.Errorf("%d chunks asked for in memory of %d", cfg.Chunks, held)
		}
		cfg.Chunks = held
	}
	if cfg.Chunks == 0 {
		cfg.Chunks = 4096
	}
	if cfg.Chunks < 0 {
		return fmt.Errorf("%d chunks", cfg.Chunks)
	}
	if limit := cfg.ChunkSize - RxReserve - minRx; cfg.Headroom < 0 || cfg.Headroom > limit {
		return fmt.Errorf("headroom of %d bytes: a chunk of %d leaves %d", cfg.Headroom, cfg.ChunkSize, limit)
	}
	return nil
}

func (u *UMEM) mmap(size int) error {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_POPULATE
	var err error
	if u.cfg.HugePages {
		const huge = 2 << 20
		u.mem, err = unix.Mmap(-1, 0, (size+huge-1)&^(huge-1), prot, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
		if err == nil {
			u.mapped = true
			return nil
		}
		u.hugeErr = fmt.Errorf("no huge pages (raise vm.nr_hugepages): %w", err)
	} else {
		u.hugeErr = errors.New("huge pages were not asked for")
	}
	if u.mem, err = unix.Mmap(-1, 0, size, prot, flags); err != nil {
		return fmt.Errorf("map %d bytes: %w", size, err)
	}
	u.mapped = true
	return nil
}

// HugePages returns nil if the memory is in huge pages, otherwise the reason why it is not.
func (u *UMEM) HugePages() error { return u.hugeErr }

// Chunks returns the number of chunks.
func (u *UMEM) Chunks() int { return u.cfg.Chunks }

// ChunkSize returns the size of a chunk in bytes.
func (u *UMEM) ChunkSize() int { return u.chunkSize }

// MaxRx returns how many bytes of a frame fit in one chunk when it is received.
// A longer frame is dropped, or spread over several chunks on a socket with
// [SocketConfig.MultiBuffer].
func (u *UMEM) MaxRx() int { return u.chunkSize - RxReserve - u.cfg.Headroom }

// Addr returns the address at which a chunk, 0 to Chunks()-1, starts.
func (u *UMEM) Addr(chunk int) uint64 { return uint64(chunk) * uint64(u.chunkSize) }

// Chunk returns the number of the chunk in which an address lies.
func (u *UMEM) Chunk(addr uint64) int { return int(addr / uint64(u.chunkSize)) }

// Frame returns the memory from an address to the end of its chunk. It panics,
// as indexing does, if the address is not in the UMEM.
func (u *UMEM) Frame(addr uint64) []byte {
	end := addr | uint64(u.chunkSize-1) + 1
	return u.mem[addr:end:end]
}

// Span returns n bytes from an address on, over the borders of chunks: for a frame that is sent from several
// chunks in a row, by a descriptor for each. It panics, as slicing does, if they are not in the UMEM.
func (u *UMEM) Span(addr uint64, n int) []byte {
	end := addr + uint64(n)
	return u.mem[addr:end:end]
}

// Data returns the bytes that a descriptor names. It panics, as slicing does,
// if they are not in one chunk.
func (u *UMEM) Data(d Desc) []byte {
	end := d.Addr | uint64(u.chunkSize-1) + 1
	return u.mem[d.Addr:end:end][:d.Len]
}

// Close unmaps the memory. Sockets that use it must be closed before; otherwise Close returns an error and does
// nothing. After a successful call, further calls return the same result.
func (u *UMEM) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return u.closing
	}
	if n := len(u.bound); n != 0 {
		return fmt.Errorf("xsk: close UMEM: %d sockets still use it", n)
	}
	u.closed = true
	u.pin.Unpin()
	mem := u.mem
	u.mem = nil
	if u.mapped {
		if err := unix.Munmap(mem); err != nil {
			u.closing = fmt.Errorf("xsk: close UMEM: %w", err)
		}
	}
	return u.closing
}

// register makes the memory known to the kernel as a socket's UMEM.
func (u *UMEM) register(fd int) error {
	reg := unix.XDPUmemReg{
		Addr:     uint64(uintptr(unsafe.Pointer(&u.mem[0]))),
		Len:      uint64(u.cfg.Chunks * u.chunkSize),
		Size:     uint32(u.chunkSize),
		Headroom: uint32(u.cfg.Headroom),
	}
	if u.cfg.TxMetadata {
		reg.Flags |= unix.XDP_UMEM_TX_METADATA_LEN
		reg.Tx_metadata_len = uint32(TxMetadataLen)
	}
	if u.cfg.SoftwareChecksum {
		reg.Flags |= unix.XDP_UMEM_TX_SW_CSUM
	}
	err := setsockopt(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL) && reg.Flags != 0:
		return unsupported("transmit metadata", "6.11", err)
	case errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("register %d bytes of UMEM: too much locked memory; raise ulimit -l or grant CAP_IPC_LOCK: %w",
			reg.Len, err)
	}
	return fmt.Errorf("register %d bytes of UMEM: %w", reg.Len, err)
}

// join binds a socket: the first one registers the memory, the others share
// it with one that is bound, so that sockets can be closed in any order.
func (u *UMEM) join(s *Socket, bind func(first *Socket) error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return fmt.Errorf("the UMEM is closed: %w", os.ErrClosed)
	}
	var first *Socket
	if len(u.bound) > 0 {
		first = u.bound[0]
	}
	if err := bind(first); err != nil {
		return err
	}
	u.bound = append(u.bound, s)
	return nil
}

func (u *UMEM) leave(s *Socket) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bound = slices.DeleteFunc(u.bound, func(b *Socket) bool { return b == s })
}
