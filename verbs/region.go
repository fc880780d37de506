//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// region is memory that peers can access.
type region struct {
	ctx   *opened
	mem   []byte
	key   [keyBytes]byte
	arena *driver.Arena
	mr    *ibv.MR
	fixed bool // the memory is mapped for reading only

	mu   sync.Mutex
	gone bool
}

func (c *opened) Register(b []byte, access driver.Access) (driver.Region, error) {
	r, err := c.register(b, access)
	if err != nil {
		return nil, &driver.Error{Driver: Name, Op: "register", Err: fmt.Errorf("%s: %d bytes: %w", c.Props.Device, len(b), err)}
	}
	return r, nil
}

func (c *opened) register(b []byte, access driver.Access) (*region, error) {
	if len(b) == 0 || access > driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic {
		return nil, fmt.Errorf("%w: nothing to register, or unknown access flags", driver.ErrInvalid)
	}
	flags := ibv.AccessLocalWrite
	for _, f := range []struct {
		has  driver.Access
		want ibv.Access
	}{{driver.RemoteRead, ibv.AccessRemoteRead}, {driver.RemoteWrite, ibv.AccessRemoteWrite}, {driver.RemoteAtomic, ibv.AccessRemoteAtomic}} {
		if access&f.has != 0 {
			flags |= f.want
		}
	}
	if c.dev.Query().Atomic == ibv.AtomicNone {
		flags &^= ibv.AccessRemoteAtomic // some devices refuse the flag
	}
	r := &region{ctx: c, mem: b}
	if a, _, ok := driver.ArenaOf(b); ok {
		if !a.Hold() {
			return nil, fmt.Errorf("%w: the arena is closed", driver.ErrInvalid)
		}
		r.arena = a
	}
	err := c.addRegion(r, flags)
	if r.fixed = errors.Is(err, unix.EFAULT) && access == driver.RemoteRead; r.fixed {
		err = c.addRegion(r, flags&^ibv.AccessLocalWrite)
	}
	if err != nil {
		r.letGo()
		return nil, err
	}
	k := regionKey{incarnation: c.Incarnation, addr: address(b), length: uint64(len(b)), rkey: r.mr.RKey(), access: access}
	k.encode(r.key[:])
	return r, nil
}

// addRegion registers the memory of r, unless the context is closed. Others do not wait meanwhile: to pin much
// memory takes long.
func (c *opened) addRegion(r *region, flags ibv.Access) (err error) {
	c.Mu.Lock()
	if c.IsClosed() {
		c.Mu.Unlock()
		return driver.ErrClosed
	}
	c.registering++
	c.Mu.Unlock()
	r.mr, err = c.pd.RegMR(r.mem, flags)
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.registering--; err == nil {
		c.regions[r] = struct{}{}
	}
	return err
}

func (r *region) letGo() {
	if r.arena != nil {
		r.arena.Release()
		r.arena = nil
	}
}

func (r *region) Bytes() []byte { return r.mem }

func (r *region) Key() []byte { return r.key[:] }

// Deregister implements driver.Region. When it has returned nil, no operation of a peer changes the memory any more.
func (r *region) Deregister() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return &driver.Error{Driver: Name, Op: "deregister", Err: driver.ErrClosed}
	}
	if err := r.mr.Close(); err != nil {
		return &driver.Error{Driver: Name, Op: "deregister", Err: err}
	}
	r.gone = true
	r.letGo()
	r.ctx.Mu.Lock()
	defer r.ctx.Mu.Unlock()
	delete(r.ctx.regions, r)
	return nil
}

// remoteRegion implements driver.RemoteRegion.
type remoteRegion struct {
	conn *conn
	key  regionKey
}

func (r *remoteRegion) Len() int { return int(r.key.length) }

func (r *remoteRegion) Access() driver.Access { return r.key.access }

func (n *conn) Import(key []byte) (driver.RemoteRegion, error) {
	if n.State() != kit.StateUp {
		return nil, n.Failure("import")
	}
	k, err := parseKey(key, n.peerInc)
	if err != nil {
		return nil, n.Fault("import", err)
	}
	return &remoteRegion{conn: n, key: k}, nil
}
