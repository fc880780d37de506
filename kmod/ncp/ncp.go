//go:build linux && cgo

package ncp

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra
#cgo noescape host_run
#cgo nocallback host_run
#cgo noescape host_carry
#cgo nocallback host_carry
#cgo noescape ncp_ring
#cgo nocallback ncp_ring
#include "host.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// nameBytes is a process's or a group's name: 1 to 19 printable ASCII characters without spaces, padded with NUL.
type nameBytes [C.QNIX_NAME_LEN]byte

// makeName makes a name of s; it is cut after 19 bytes and otherwise not checked.
func makeName(s string) (n nameBytes) {
	copy(n[:len(n)-1], s)
	return n
}

// tableLimits are the sizes of a NIC's tables.
type tableLimits struct {
	processes   uint32 // entries of the NIC Process Table, below 65536
	names       uint32 // processes of the whole cluster, at least processes
	groups      uint32
	nics        uint32 // other NICs of the cluster
	packetSize  uint32 // bytes of payload in a packet, 1024 to 65536
	localMemory uint32 // bytes for messages without a receive
}

// registrationSizes are the sizes that a process requests.
type registrationSizes struct {
	commands    uint32 // entries of the Command Queue, a power of two
	sends       uint32 // Send Contexts
	receives    uint32 // Receive Contexts
	regionSize  uint32 // bytes of each Context Region, a multiple of 64
	poolEntries uint32 // descriptors of the Buffer Pool
}

// memoryInfo is the layout of a process's two mappings: struct qnix_memory_info.
type memoryInfo struct {
	abiVersion, commandQueue, sendContexts, receiveContexts, sendRegions, receiveRegions, bufferPool, vniSize uint32
	status, sendDoorbells, receiveDoorbells, doorbellRing, hpsSize                                            uint32
	commands, sends, receives, regionSize, poolEntries, ringEntries, _                                        uint32
}

// nicStatistics is struct qnix_statistics.
type nicStatistics struct {
	commands, packetsSent, packetsReceived, bytesSent, bytesReceived, doorbells uint64
	requestsSent, requestsRemembered, requestsBuffered, failures, misuse        uint64
	systemMessages, badFrames, lateFrames, processes, localMemory               uint64
	_                                                                           [8]uint64
}

// errLayout means that a registration exceeds the limits of every NIC.
var errLayout = errors.New("ncp: a registration beyond the limits")

// layoutOf returns the layout of the components of r. It fails with errLayout.
func layoutOf(r registrationSizes) (memoryInfo, error) {
	var info memoryInfo
	in := C.struct_qnix_register{commands: C.__u32(r.commands), sends: C.__u32(r.sends), receives: C.__u32(r.receives),
		region_size: C.__u32(r.regionSize), pool_entries: C.__u32(r.poolEntries)}
	if C.ncp_layout(&in, (*C.struct_qnix_memory_info)(unsafe.Pointer(&info))) != 0 {
		return memoryInfo{}, errLayout
	}
	return info, nil
}

// hostNIC is one NIC with its control program, in memory. One goroutine at a time may use it and the NICs with which it
// exchanges frames.
type hostNIC struct {
	host *C.struct_host_nic
	ncp  *C.struct_ncp
	id   uint16
}

// newNIC makes a NIC with these coordinates; fifo is the bytes of its input FIFO and of the output FIFO to each other NIC.
func newNIC(nic uint16, l tableLimits, fifo int) (*hostNIC, error) {
	limits := C.struct_ncp_limits{processes: C.uint32_t(l.processes), names: C.uint32_t(l.names),
		groups: C.uint32_t(l.groups), nics: C.uint32_t(l.nics), packet_size: C.uint32_t(l.packetSize),
		local_memory: C.uint32_t(l.localMemory)}
	h := C.host_create(C.uint16_t(nic), &limits, C.uint32_t(fifo))
	if h == nil {
		return nil, fmt.Errorf("ncp: NIC %d: limits that are not allowed, or no memory", nic)
	}
	return &hostNIC{h, C.host_ncp(h), nic}, nil
}

// close ends the NIC. It returns the number of bytes that the control program has leaked.
func (n *hostNIC) close() (leaked uint64) { return uint64(C.host_destroy(n.host)) }

// allocated returns the number of bytes that the NIC holds.
func (n *hostNIC) allocated() uint64 { return uint64(C.host_allocated(n.host)) }

// longestChain returns the largest number of processes in a bucket of the Name Table.
func (n *hostNIC) longestChain() int { return int(C.host_longest_chain(n.host)) }

// failAfter makes all allocations after the next count fail; a negative count makes none fail.
func (n *hostNIC) failAfter(count int) { C.host_fail_after(n.host, C.int64_t(count)) }

// lost returns the NIC that this one lost last, or 0.
func (n *hostNIC) lost() uint16 { return uint16(C.host_lost(n.host)) }

// step runs up to budget steps and returns how many did work; fewer than budget means that there is no more work.
func (n *hostNIC) step(budget int) int { return int(C.host_run(n.host, C.uint32_t(budget))) }

// takenEarly returns how many messages a receive has taken while they arrived in local memory, at least. All receives
// must ask for a doorbell.
func (n *hostNIC) takenEarly() int { return int(C.host_taken_early(n.host)) }

// weight returns the cost of the last step: 1 for an ordinary one.
func (n *hostNIC) weight() int { return int(C.ncp_weight(n.ncp)) }

// retry reports whether the last step found no memory for its work: step again later.
func (n *hostNIC) retry() bool { return bool(C.ncp_retry(n.ncp)) }

// ring reports that the process at index has rung; an index beyond the table means all processes.
func (n *hostNIC) ring(index uint16) { C.ncp_ring(n.ncp, C.uint16_t(index)) }

// needWakeup sets whether processes must wake the NIC after a command.
func (n *hostNIC) needWakeup(need bool) { C.ncp_need_wakeup(n.ncp, C.bool(need)) }

// pid returns the id and the generation of the process at index in the NIC Process Table.
func (n *hostNIC) pid(index uint16) (pid, generation uint16) {
	C.ncp_pid(n.ncp, C.uint16_t(index), (*C.uint16_t)(&pid), (*C.uint16_t)(&generation))
	return pid, generation
}

// statistics returns the counters since the NIC was made.
func (n *hostNIC) statistics() (s nicStatistics) {
	C.ncp_statistics(n.ncp, (*C.struct_qnix_statistics)(unsafe.Pointer(&s)))
	return s
}

// processStatistics returns the counters of the process at index since its registration, and false if there is none.
func (n *hostNIC) processStatistics(index uint16) (s nicStatistics, ok bool) {
	ok = bool(C.ncp_process_statistics(n.ncp, C.uint16_t(index), (*C.struct_qnix_statistics)(unsafe.Pointer(&s))))
	return s, ok
}
