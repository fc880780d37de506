package ibv

import (
	"fmt"
	"sync/atomic"
	"syscall"
)

// MW is a memory window of type 2: a remote key of its own to a part of a region, given and revoked through the send
// queue, without a system call. Soft-RoCE checks a window's key and rights, but instead of its range only that of the
// region.
type MW struct {
	object
	pd   *PD
	rkey atomic.Uint32
}

// AllocMW makes an unbound window. [SendChain.BindMW] binds it; [SendWR.LocalInv] or the peer's [SendWR.SendInv]
// invalidates it. It fails with EOPNOTSUPP if the device has none.
func (pd *PD) AllocMW() (*MW, error) {
	mw := &MW{pd: pd}
	mw.kind = "memory window"
	mw.label = func() string { return fmt.Sprintf("key %#x", mw.RKey()) }
	err := mw.make("alloc_mw", func() (handle, int) {
		k, r := rawAllocMW(pd.h)
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

// IncRKey returns rkey with its lowest 8 bits, which are the tag of a window, incremented.
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// binding holds the objects of a bind request in a chain.
type binding struct {
	at int
	mw *MW
	mr *MR
}

// BindMW adds a request that binds a window to length bytes at addr of mr, which needs AccessMWBind, under rkey:
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
	if b.mw.pd != qp.pd || b.mr.pd != qp.pd {
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
