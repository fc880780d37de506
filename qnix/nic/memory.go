//go:build linux

package nic

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/bywash/bywash/qnix/internal/abi"
)

// Translate makes b reachable for the NIC until Untranslate or Deregister. The
// memory must stay where it is: outside the Go heap, or pinned (runtime.Pinner)
// by the caller for as long. The module pins its pages, which count against the
// limit of locked memory (ENOMEM). A softnic reaches it by process_vm_readv and
// process_vm_writev, which the kernel may refuse it (EPERM): see TranslateFile.
func (p *Process) Translate(b []byte, access Access) (Handle, error) {
	return p.translate(b, -1, 0, access, abi.NoPool, 0)
}

// TranslateFile is Translate for a mapping of a memfd, of which b is the part at offset: a softnic maps the memfd and
// copies directly. The memfd must be sealed against shrinking (F_SEAL_SHRINK). fd is used only during the call.
func (p *Process) TranslateFile(b []byte, fd int, offset int64, access Access) (Handle, error) {
	if fd < 0 || offset < 0 {
		return 0, fmt.Errorf("qnix: translate: %w", ErrInvalid)
	}
	return p.translate(b, fd, offset, access, abi.NoPool, 0)
}

// TranslatePool is Translate for a pool of buffers of stride bytes each:
// entries of the Buffer Pool, from pool on, are filled with len(b)/stride
// descriptors.
func (p *Process) TranslatePool(b []byte, access Access, pool, stride int) (Handle, error) {
	if pool < 0 || stride < 1 || stride > math.MaxInt32 || pool > len(p.pool) || len(b)/stride > len(p.pool)-pool {
		return 0, fmt.Errorf("qnix: translate: %w: pool entries %d to %d of %d", ErrInvalid, pool, pool+len(b)/max(stride, 1), len(p.pool))
	}
	return p.translate(b, -1, 0, access, uint32(pool), uint32(stride))
}

func (p *Process) translate(b []byte, fd int, offset int64, access Access, pool, stride uint32) (Handle, error) {
	if len(b) == 0 || access == 0 || access&^(Read|Write) != 0 {
		return 0, fmt.Errorf("qnix: translate %d bytes: %w", len(b), ErrInvalid)
	}
	if p.Gone() {
		return 0, p.over()
	}
	t := abi.Translate{
		Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Len: uint64(len(b)),
		Access: uint32(access), PoolIndex: pool, PoolStride: stride,
	}
	if err := p.host.translate(&t, fd, uint64(offset)); err != nil {
		return 0, hostError(fmt.Sprintf("translate %d bytes", len(b)), err)
	}
	if t.Handle == 0 {
		return 0, hostError("translate", ErrUntrusted)
	}
	return Handle(t.Handle), nil
}

// Untranslate ends a translation. When it returns the NIC does not access the memory any more; operations under way
// with it ring Fault.
func (p *Process) Untranslate(h Handle) error {
	if p.Gone() {
		return p.over()
	}
	if err := p.host.untranslate(uint32(h)); err != nil {
		return hostError("untranslate", err)
	}
	return nil
}
