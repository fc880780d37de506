//go:build cgo && linux

package ncp

/*
#include <errno.h>
#include <stdlib.h>
#include "soft.h"
*/
import "C"

import (
	"fmt"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Soft is a host of NICs in user space: their memory, the FIFOs between them, the wire to other hosts, and the thread
// that runs them. Package softnic builds a NIC for programs with it. All methods but Close may be called from any
// goroutine.
type Soft struct{ s *C.struct_soft }

// SoftSupported returns nil, or errors.ErrUnsupported if this program was built without cgo and so has no NIC in user
// space.
func SoftSupported() error { return nil }

// NewSoft makes the NICs. They do nothing before Run.
func NewSoft(c SoftConfig) (*Soft, error) {
	if len(c.NICs) == 0 {
		return nil, unix.EINVAL
	}
	// C does not keep the pointer.
	numbers := (*C.uint16_t)(unsafe.Pointer(unsafe.SliceData(c.NICs)))
	var pin runtime.Pinner
	pin.Pin(numbers)
	defer pin.Unpin()
	config := C.struct_soft_config{
		numbers: numbers,
		nics:    C.uint32_t(len(c.NICs)),
		limits: C.struct_ncp_limits{
			processes: C.uint32_t(c.Processes), names: C.uint32_t(c.Names), groups: C.uint32_t(c.Groups),
			nics: C.uint32_t(c.Cluster), packet_size: C.uint32_t(c.PacketSize), local_memory: C.uint32_t(c.LocalMemory),
		},
		translations: C.uint32_t(c.Translations),
		polls:        C.uint32_t(c.Polls),
		udp:          C.int(c.UDP),
		dead_ns:      C.uint64_t(c.DeadTime.Nanoseconds()),
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&config.key)), len(c.Key)), c.Key[:])
	var s *C.struct_soft
	if e := C.soft_create(&config, &s); e != 0 {
		return nil, fmt.Errorf("make %d NICs: %w", len(c.NICs), unix.Errno(-e))
	}
	return &Soft{s}, nil
}

// Close frees everything. Run must have returned, and all processes must be freed.
func (s *Soft) Close() { C.soft_destroy(s.s) }

// Run runs the NICs on the caller's thread and blocks until Stop. For each driver command whose doorbell has rung, it
// calls done with the command's cookie and 0, a QNIX_DB_*, SoftTaken or SoftQuota.
func (s *Soft) Run(done func(cookie uint64, result int)) {
	var d [64]C.struct_soft_doorbell
	var pin runtime.Pinner
	pin.Pin(&d)
	defer pin.Unpin()
	for {
		n := C.soft_run(s.s, &d[0], C.int(len(d)))
		if n < 0 {
			return
		}
		for _, x := range d[:n] {
			done(uint64(x.cookie), int(x.result))
		}
	}
}

// Stop ends Run.
func (s *Soft) Stop() { C.soft_stop(s.s) }

// AddPeer adds an address at which the wire asks for NICs from now on.
func (s *Soft) AddPeer(a netip.AddrPort) error {
	var e C.int
	port := [2]byte{byte(a.Port() >> 8), byte(a.Port())}
	if ip := a.Addr().Unmap(); ip.Is4() {
		sa := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: *(*uint16)(unsafe.Pointer(&port)), Addr: ip.As4()}
		e = C.soft_add_peer(s.s, unsafe.Pointer(&sa), C.uint32_t(unsafe.Sizeof(sa)))
	} else {
		sa := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: *(*uint16)(unsafe.Pointer(&port)), Addr: ip.As16()}
		e = C.soft_add_peer(s.s, unsafe.Pointer(&sa), C.uint32_t(unsafe.Sizeof(sa)))
	}
	return softError(e)
}

func softError(e C.int) error {
	if e != 0 {
		return unix.Errno(-e)
	}
	return nil
}

// SoftLayout computes where the components of a registration (struct qnix_register) lie, and fills a struct
// qnix_memory_info. It fails with EINVAL if the registration exceeds a limit.
func SoftLayout(register, info []byte) error {
	if len(register) != C.sizeof_struct_qnix_register || len(info) != C.sizeof_struct_qnix_memory_info {
		return unix.EINVAL
	}
	r := (*C.struct_qnix_register)(unsafe.Pointer(&register[0]))
	if C.ncp_layout(r, (*C.struct_qnix_memory_info)(unsafe.Pointer(&info[0]))) != 0 {
		return unix.EINVAL
	}
	return nil
}

// SoftProcess is a process of a Soft.
type SoftProcess struct {
	soft *Soft
	nic  int
	p    *C.struct_soft_process
}

// NewProcess allocates the resources of a process on the NIC with that index in the configuration. index must be a free
// index of the NIC's process table. On success the process owns c's mappings and descriptors.
func (s *Soft) NewProcess(nic, index int, c SoftProcessConfig) (*SoftProcess, error) {
	p := C.soft_process_create(s.s, C.uint32_t(nic), C.uint32_t(index),
		(*C.struct_qnix_memory_info)(unsafe.Pointer(&c.Info[0])), unsafe.Pointer(&c.VNI[0]), unsafe.Pointer(&c.HPS[0]),
		C.int(c.Wakeup), C.int(c.PID), C.int(c.PIDFD), C.bool(c.Remote), C.uint64_t(c.User))
	if p == nil {
		return nil, unix.ENOMEM
	}
	return &SoftProcess{s, nic, p}, nil
}

// Free frees the resources of a process that no NIC knows.
func (p *SoftProcess) Free() { C.soft_process_destroy(p.p) }

// Post posts a driver command. Its doorbell rings with the cookie, unless that is 0. Post fails with EAGAIN if the
// queue is full.
func (p *SoftProcess) Post(command SoftCommand, cookie uint64, name, group [20]byte, size uint32) error {
	c := C.struct_ncp_driver_command{command: C.uint32_t(command), size: C.uint32_t(size), cookie: C.uint64_t(cookie)}
	*(*[20]byte)(unsafe.Pointer(&c.name)) = name
	*(*[20]byte)(unsafe.Pointer(&c.group)) = group
	return softError(C.soft_post(p.soft.s, C.uint32_t(p.nic), p.p, &c))
}

// PID returns the process's id and generation, once it is registered.
func (p *SoftProcess) PID() (pid, generation uint16) {
	var a, b C.uint16_t
	C.soft_pid(p.p, &a, &b)
	return uint16(a), uint16(b)
}

// Translate carries out a struct qnix_translate, with a descriptor or -1.
func (p *SoftProcess) Translate(t []byte, fd int) error {
	if len(t) != C.sizeof_struct_qnix_translate {
		return unix.EINVAL
	}
	return softError(C.soft_translate(p.p, (*C.struct_qnix_translate)(unsafe.Pointer(&t[0])), C.int(fd)))
}

// Untranslate ends a translation. It fails with EINVAL if there is none with that handle.
func (p *SoftProcess) Untranslate(handle uint32) error {
	return softError(C.soft_untranslate(p.p, C.uint32_t(handle)))
}

// Statistics fills a struct qnix_statistics with the counters of the process.
func (p *SoftProcess) Statistics(st []byte) { p.soft.statistics(p.nic, p.p, st) }

// Statistics fills a struct qnix_statistics with the counters of a NIC.
func (s *Soft) Statistics(nic int, st []byte) { s.statistics(nic, nil, st) }

func (s *Soft) statistics(nic int, p *C.struct_soft_process, st []byte) {
	_ = st[C.sizeof_struct_qnix_statistics-1]
	C.soft_statistics(s.s, C.uint32_t(nic), p, (*C.struct_qnix_statistics)(unsafe.Pointer(&st[0])))
}

// Counters returns the counters of the host.
func (s *Soft) Counters() SoftCounters {
	var c C.struct_soft_counters
	C.soft_counters(s.s, &c)
	w := &c.wire
	return SoftCounters{
		Sleeps: uint64(c.sleeps), Rounds: uint64(c.rounds), Cluster: int(c.nics),
		DatagramsSent: uint64(w.datagrams_out), DatagramsReceived: uint64(w.datagrams_in),
		FramesSent: uint64(w.frames_out), FramesReceived: uint64(w.frames_in),
		Retransmitted: uint64(w.retransmitted), Unauthenticated: uint64(w.unauthenticated),
		WrongVersion: uint64(w.wrong_version), WrongLimits: uint64(w.wrong_limits), Malformed: uint64(w.malformed),
		LinksUp: uint64(w.ups), LinksDown: uint64(w.downs),
	}
}

// SoftCommand is a driver command.
type SoftCommand uint32

// Driver commands of processes.
const (
	SoftNew    SoftCommand = C.NCP_NEW_PROCESS
	SoftDelete SoftCommand = C.NCP_DELETE_PROCESS
	SoftJoin   SoftCommand = C.NCP_JOIN_GROUP
	SoftLeave  SoftCommand = C.NCP_LEAVE_GROUP

	// SoftAbandon gives up the command with the same cookie.
	SoftAbandon SoftCommand = C.NCP_ABANDON
)
