package ibv

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
)

// MW is a memory window: a remote key of its own to a part of a region, given
// and revoked without a system call.
type MW struct {
	object
	pd   *PD
	typ  int
	rkey atomic.Uint32
}

// AllocMW makes an unbound window of type 1, bound by [QP.BindMW1], or 2, bound by [SendChain.BindMW] and invalidated
// by [SendWR.LocalInv] or the peer's [SendWR.SendInv]. It fails with EOPNOTSUPP if the device has none.
func (pd *PD) AllocMW(typ int) (*MW, error) {
	if typ != 1 && typ != 2 {
		return nil, invalid("alloc_mw", pd.device, "type %d; there are types 1 and 2", typ)
	}
	mw := &MW{pd: pd, typ: typ}
	mw.kind = "memory window"
	mw.label = func() string { return fmt.Sprintf("key %#x", mw.RKey()) }
	err := mw.make("alloc_mw", func() (handle, int) {
		k, r := rawAllocMW(pd.h, typ)
		mw.rkey.Store(k.rkey)
		return k.h, r
	}, &pd.object)
	if err != nil {
		return nil, err
	}
	return mw, nil
}

// Close frees the window and revokes its key.
func (mw *MW) Close() error {
	return mw.close("dealloc_mw", func() int { return rawDeallocMW(mw.h) })
}

// RKey returns the key of the last bind that was posted, or the key with which the window was allocated.
func (mw *MW) RKey() uint32 { return mw.rkey.Load() }

// IncRKey returns rkey with its lowest 8 bits, the tag of a type 2 window, incremented.
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// BindMW1 binds a type 1 window to length bytes at addr of mr, which needs AccessMWBind, through the send queue: the
// completion carries id. It counts as a posted request and returns the new key, valid once it completed. A length of 0
// unbinds it. Soft-RoCE checks a window's key and rights, but instead of its range only that of mr.
func (qp *QP) BindMW1(mw *MW, mr *MR, addr, length uint64, access Access, id uint64, flags SendFlags) (uint32, error) {
	if mw.typ != 1 {
		return 0, invalid("bind_mw", qp.device, "a window of type 2 is bound through the send queue: SendChain.BindMW")
	}
	if mw.pd != qp.pd || mr.pd != qp.pd {
		return 0, invalid("bind_mw", qp.device, "window, region and queue pair are not of one protection domain")
	}
	if s := qp.State(); s != StateRTS && s != StateErr && s != StateSQD {
		return 0, qp.notReady("bind_mw", s)
	}
	if err := mw.use("bind_mw"); err != nil {
		return 0, err
	}
	defer mw.mu.RUnlock()
	if err := mr.use("bind_mw"); err != nil {
		return 0, err
	}
	defer mr.mu.RUnlock()
	// Unbinding names the region too: rxe's library follows the pointer.
	rkey, r := rawBindMW(qp.q, mw.h, id, flags, mr.h, addr, length, access)
	runtime.KeepAlive(qp)
	if r < 0 {
		return 0, qp.postError("bind_mw", r)
	}
	mw.rkey.Store(rkey)
	return rkey, nil
}

// binding holds the objects of a bind request in a chain.
type binding struct {
	at int
	mw *MW
	mr *MR
}

// BindMW adds a request that binds a type 2 window to length bytes at addr of mr, which needs AccessMWBind, under rkey:
// mw.RKey() with other lowest 8 bits, usually IncRKey(mw.RKey()). The window must not be bound. It is a method of the
// chain because both objects must be open when the chain is posted. It returns nil if the chain is full.
func (c *SendChain) BindMW(mw *MW, mr *MR, addr, length uint64, rkey uint32, access Access) *SendWR {
	w := c.Next()
	if w == nil {
		return nil
	}
	w.opcode, w.mwKey, w.mwAddr, w.mwLen, w.mwAcc = opBindMW, rkey, addr, length, access
	c.bind = append(c.bind, binding{c.tail - 1, mw, mr})
	return w
}

// lockBindings keeps the objects of the chain's bind requests open until unlockBindings, and enters their addresses.
func (c *SendChain) lockBindings(qp *QP) error {
	for i, b := range c.bind {
		err := b.lock(qp)
		if err != nil {
			c.unlockBindings(i)
			return err
		}
		c.wrs[b.at].mw, c.wrs[b.at].mr = uint64(uintptr(b.mw.h)), uint64(uintptr(b.mr.h))
	}
	return nil
}

func (b binding) lock(qp *QP) error {
	if b.mw.typ != 2 || b.mw.pd != qp.pd || b.mr.pd != qp.pd {
		return &Error{Verb: "post_send", Device: qp.device, Errno: syscall.EINVAL, Detail: faultBind.String()}
	}
	if err := b.mw.use("post_send"); err != nil {
		return err
	}
	if err := b.mr.use("post_send"); err != nil {
		b.mw.mu.RUnlock()
		return err
	}
	return nil
}

// unlockBindings undoes lockBindings for the first n requests.
func (c *SendChain) unlockBindings(n int) {
	for _, b := range c.bind[:n] {
		b.mw.mu.RUnlock()
		b.mr.mu.RUnlock()
	}
}
