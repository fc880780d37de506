package ibv

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"
)

// Access limits the use of registered memory and, for a queue pair, of its peer. Grant the least that suffices.
type Access uint32

// Access rights. AccessRemoteWrite and AccessRemoteAtomic need AccessLocalWrite too.
const (
	AccessLocalWrite   Access = 1 << 0 // the device may write: receives, and results of reads and atomics
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3
	AccessMWBind       Access = 1 << 4 // memory windows may be bound to it

	// AccessRelaxedOrdering lets the device's accesses overtake each other on the bus. A completion comes after all of
	// them, but memory that a program polls may show a later byte before an earlier one. Devices that cannot, ignore it.
	AccessRelaxedOrdering Access = 1 << 20
)

// PD is a protection domain: queue pairs can use the windows and memory of the same domain only.
type PD struct {
	object
	c *Context
}

// AllocPD makes a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	pd := &PD{c: c}
	pd.kind = "protection domain"
	err := pd.make("alloc_pd", func() (handle, int) { return rawAllocPD(c.h) }, &c.object)
	if err != nil {
		return nil, err
	}
	return pd, nil
}

// Close frees the domain. It fails with EBUSY, and names them, while it has regions, windows, queue pairs or SRQs.
func (pd *PD) Close() error {
	return pd.close("dealloc_pd", func() int { return rawDeallocPD(pd.h) })
}

// MR is a registered memory region.
type MR struct {
	object
	addr, length uint64
	lkey, rkey   uint32
	pin          runtime.Pinner
	pd           *PD
}

// RegMR registers b, which stays pinned until Close: Go heap memory then is
// neither freed nor reused. Errors: EINVAL for an empty b or rights that
// contradict each other, ENOMEM for the memlock limit, EFAULT.
//
// It takes microseconds per page; register once, use often.
func (pd *PD) RegMR(b []byte, access Access) (*MR, error) {
	if len(b) == 0 {
		return nil, invalid("reg_mr", pd.device, "no memory to register")
	}
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	mr := &MR{}
	mr.pin.Pin(unsafe.SliceData(b))
	if err := pd.reg(mr, addr, uint64(len(b)), addr, access); err != nil {
		mr.pin.Unpin()
		return nil, err
	}
	return mr, nil
}

// RegMRAt registers length bytes at addr without pinning them in Go's heap:
// for memory outside it, or pinned by the caller, which keeps it mapped until
// Close. Peers and work requests address its first byte as iova; pass addr
// for iova to keep addresses as they are. Errors as of [PD.RegMR].
func (pd *PD) RegMRAt(addr, length, iova uint64, access Access) (*MR, error) {
	mr := &MR{}
	if err := pd.reg(mr, addr, length, iova, access); err != nil {
		return nil, err
	}
	return mr, nil
}

func (pd *PD) reg(mr *MR, addr, length, iova uint64, access Access) error {
	if length == 0 || iova+length-1 < iova {
		return invalid("reg_mr", pd.device, "%d bytes at %#x", length, iova)
	}
	if limit := pd.c.attr.MaxMRSize; limit != 0 && length > limit {
		return invalid("reg_mr", pd.device, "%d bytes; the device registers at most %d at a time", length, limit)
	}
	if access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0 {
		return invalid("reg_mr", pd.device, "remote write and atomic access need local write access too")
	}
	mr.kind, mr.pd, mr.addr, mr.length = "memory region", pd, iova, length
	mr.label = func() string { return fmt.Sprintf("%#x+%d", mr.addr, mr.length) }
	return mr.make("reg_mr", func() (handle, int) {
		k, r := rawRegMR(pd.h, addr, length, iova, access)
		mr.lkey, mr.rkey = k.lkey, k.rkey
		return k.h, r
	}, &pd.object)
}

// Close deregisters the memory. The device returns EBUSY while a window is bound to it.
func (mr *MR) Close() error {
	return mr.close("dereg_mr", func() int {
		r := rawDeregMR(mr.h)
		if r >= 0 || r == -int(syscall.EIO) || r == -int(syscall.ENODEV) {
			mr.pin.Unpin()
		}
		return r
	})
}

// Addr returns the address of the first byte in work requests, local and remote.
func (mr *MR) Addr() uint64 { return mr.addr }

// Len returns the length in bytes.
func (mr *MR) Len() uint64 { return mr.length }

// LKey returns the key for local use.
func (mr *MR) LKey() uint32 { return mr.lkey }

// RKey returns the key for the peer.
func (mr *MR) RKey() uint32 { return mr.rkey }

// rawKeys is the result of a registration.
type rawKeys struct {
	h          handle
	lkey, rkey uint32
}
