package session

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/bywash/bywash/driver"
)

// Region is registered memory that peers read and write by one-sided operations.
type Region struct {
	s       *Session
	id      uint64
	mem     []byte
	access  driver.Access
	native  []driver.Region // by rail; nil where the driver cannot
	revoked []driver.Region // registrations that drivers could not release, because a peer was accessing the memory
	key     []byte
}

// Key of a region: version u8, access u8, rails u8, 0 u8, era u32 (of the session: drivers' keys of another era are
// void, and messages carry the operations), id u64, length u64, then for each rail its number u8, its flags u8, length
// u16 and bytes of the driver's key.
const (
	keyVersion  = 2
	keyHeader   = 24
	keyAtomics  = 1 << 0 // of a rail: the driver does atomics there
	keyCoherent = 1 << 1 // of a rail: and they are atomic with the CPU's
)

// MaxKey is the size in bytes of the largest key that Region.Key returns, whatever drivers the session has opened.
const MaxKey = keyHeader + 8*(4+driver.MaxRemoteKey)

// Register makes memory available, with the given access, to peers that have the key. The memory must stay allocated
// until Deregister has returned nil. Over a rail whose driver cannot register the memory, messages carry the
// operations, which takes longer, and this process answers them when it makes progress. Register fails with ErrInvalid
// for no memory or unknown access, and with ErrClosed.
func (s *Session) Register(mem []byte, access driver.Access) (*Region, error) {
	if len(mem) == 0 || access == 0 || access > driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic {
		return nil, &Error{Peer: -1, Op: "register", Err: fmt.Errorf("%w: no memory (0 bytes), or access that does not exist", ErrInvalid)}
	}
	r := &Region{s: s, mem: mem, access: access}
	var b [8]byte
	_, _ = rand.Read(b[:])
	r.id = binary.LittleEndian.Uint64(b[:])
	s.mu.lock()
	defer s.mu.unlock()
	if s.closed {
		return nil, &Error{Peer: -1, Op: "register", Err: ErrClosed}
	}
	r.enroll()
	s.oneSided.regions[r.id] = r
	return r, nil
}

// enroll registers the memory with the drivers where it is not, unless the session is quiet, and makes the key.
func (r *Region) enroll() {
	s, mem, access := r.s, r.mem, r.access
	le := binary.LittleEndian
	if r.native == nil {
		r.native = make([]driver.Region, len(s.nics))
	}
	r.key = append([]byte(nil), keyVersion, byte(access), 0, 0)
	r.key = le.AppendUint32(r.key, s.era)
	r.key = le.AppendUint64(r.key, r.id)
	r.key = le.AppendUint64(r.key, uint64(len(mem)))
	_, _, arena := driver.ArenaOf(mem)
	for i, n := range s.nics {
		if r.native[i] == nil && n.reg != nil && !s.quiesced {
			if reg, err := n.reg.Register(mem, access); err == nil { // else by messages
				r.native[i] = reg
			}
		}
		reg := r.native[i]
		if reg == nil {
			continue
		}
		one := n.oneSided()
		var flags byte
		if access&driver.RemoteAtomic != 0 && (arena || !one.AtomicArenaOnly) && (one.AtomicWithCPU || len(s.nics) == 1) && one.Atomics64 == driver.AllAtomics &&
			one.Atomics32 == driver.AllAtomics && one.Fetch64 == driver.AllAtomics && one.Fetch32 == driver.AllAtomics {
			flags = keyAtomics
			if one.AtomicWithCPU {
				flags |= keyCoherent
			}
		}
		r.key[2]++
		r.key = append(r.key, byte(n.index), flags)
		r.key = le.AppendUint16(r.key, uint16(len(reg.Key())))
		r.key = append(r.key, reg.Key()...)
	}
}

// Bytes returns the memory of the region.
func (r *Region) Bytes() []byte { return r.mem }

// Key returns the key of the region for Gate.Import. Every process with the key can use the region. A key stays valid
// after Session.Resume; operations with it then go by messages, and drivers carry out operations again with a key that
// was fetched after Resume. The bytes belong to the session: do not change them.
func (r *Region) Key() []byte {
	r.s.mu.lock()
	defer r.s.mu.unlock()
	return r.key
}

// Deregister revokes the key: operations that peers begin afterwards fail with driver.ErrRemoteKey. It never blocks.
// ErrBusy means that a peer is accessing the region at this moment; any other error means that a driver could not
// release the memory. In both cases call Deregister again, and do not free the memory before it has returned nil.
func (r *Region) Deregister() error {
	s := r.s
	s.mu.lock()
	defer s.mu.unlock()
	delete(s.oneSided.regions, r.id)
	err := r.drop()
	if err != nil {
		s.oneSided.revoked[r] = struct{}{}
	} else {
		delete(s.oneSided.revoked, r)
	}
	return err
}

// drop deregisters the memory with all drivers. A registration that a driver cannot release yet moves to revoked until
// a later call: its key is no longer valid, but the memory is still in use.
func (r *Region) drop() error {
	for i, reg := range r.native {
		if reg != nil {
			r.native[i] = nil
			r.revoked = append(r.revoked, reg)
		}
	}
	var why error
	r.revoked = slices.DeleteFunc(r.revoked, func(reg driver.Region) bool {
		free, err := tryDeregister(reg)
		if free {
			return true
		}
		if why == nil || errors.Is(err, ErrBusy) {
			why = err
		}
		return false
	})
	switch {
	case why == nil:
		return nil
	case errors.Is(why, ErrBusy):
		return ErrBusy
	}
	return &Error{Peer: -1, Op: "deregister", Err: why}
}

// tryDeregister deregisters, and reports whether the memory is free. The driver contract guarantees that for nil and
// ErrClosed only: after any other error a peer or a device may still access it.
func tryDeregister(r driver.Region) (free bool, err error) {
	err = r.Deregister()
	return err == nil || errors.Is(err, ErrClosed), err
}

// Remote is an imported region of a gate's peer.
type Remote struct {
	g      *Gate
	id     uint64
	n      int
	access driver.Access
	era    uint32
	rails  []remoteRail
}

type remoteRail struct {
	index uint8 // of the owner
	flags uint8
	key   []byte
	link  *link // that the region below was imported on
	r     driver.RemoteRegion
}

// Len returns the length of the region in bytes.
func (r *Remote) Len() int { return r.n }

// Access returns the access for which the region was registered.
func (r *Remote) Access() driver.Access { return r.access }

// AtomicWithCPU reports whether atomics on the region are atomic with those of its owner's CPU. It is false only if a
// network interface carries them out that does not promise this.
func (r *Remote) AtomicWithCPU() bool {
	for _, x := range r.rails {
		if x.flags&keyAtomics != 0 && x.flags&keyCoherent == 0 {
			return false
		}
	}
	return true
}

// Import makes the key of a region of this gate's peer usable. It fails with driver.ErrRemoteKey if key is damaged; with
// the key of another process operations fail. It copies key and never blocks. A Remote need not be released.
func (g *Gate) Import(key []byte) (*Remote, error) {
	bad := g.fault("import", fmt.Errorf("%w: malformed", driver.ErrRemoteKey))
	if len(key) < keyHeader || len(key) > MaxKey || key[0] != keyVersion || key[3] != 0 {
		return nil, bad
	}
	le := binary.LittleEndian
	r := &Remote{g: g, access: driver.Access(key[1]), era: le.Uint32(key[4:]), id: le.Uint64(key[8:])}
	n := le.Uint64(key[16:])
	if n == 0 || n > 1<<60 {
		return nil, bad
	}
	r.n = int(n)
	rails := int(key[2])
	for key = key[keyHeader:]; rails > 0; rails-- {
		if len(key) < 4 || len(key) < 4+int(le.Uint16(key[2:])) {
			return nil, bad
		}
		end := 4 + int(le.Uint16(key[2:]))
		r.rails = append(r.rails, remoteRail{index: key[0], flags: key[1], key: append([]byte(nil), key[4:end]...)})
		key = key[end:]
	}
	if len(key) != 0 {
		return nil, bad
	}
	return r, nil
}

// over returns the region as imported into the driver of the link; nil if that driver cannot reach it.
func (r *Remote) over(l *link) (driver.RemoteRegion, uint8) {
	if r.era != r.g.dialing.peerEra {
		return nil, 0
	}
	for i := range r.rails {
		x := &r.rails[i]
		if x.index != l.peer || l.one == nil {
			continue
		}
		if x.link != l {
			x.link, x.r = l, nil
			if rr, err := l.one.Import(x.key); err == nil {
				x.r = rr
			}
		}
		if x.r == nil {
			return nil, 0
		}
		return x.r, x.flags
	}
	return nil, 0
}
