//go:build linux && cgo

package ncp

// #include <stdlib.h>
// #include "host.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// commandKind is the kind of a driver command.
type commandKind uint32

// The driver's commands, with the fields of driverCommand that they use.
const (
	newProcess    commandKind = C.NCP_NEW_PROCESS    // all but nic; the group may be empty
	deleteProcess commandKind = C.NCP_DELETE_PROCESS // index
	joinGroup     commandKind = C.NCP_JOIN_GROUP     // index, group, size
	leaveGroup    commandKind = C.NCP_LEAVE_GROUP    // index, group
	abandon       commandKind = C.NCP_ABANDON        // the cookie of a newProcess or joinGroup
	addNIC        commandKind = C.NCP_ADD_NIC        // nic
	removeNIC     commandKind = C.NCP_REMOVE_NIC     // nic
)

// nameTaken is a commandDoorbell's result: a process of the cluster has that name.
const nameTaken = C.NCP_TAKEN

// overQuota is a commandDoorbell's result: the user, or the NIC, holds its whole share of a table.
const overQuota = C.NCP_QUOTA

// driverCommand is an entry of the Driver Command Queue.
type driverCommand struct {
	command     commandKind
	index, nic  uint16
	size        uint32
	cookie      uint64 // returned in the commandDoorbell
	user        uint64 // user of a new process; 0: root
	name, group nameBytes
	process     *hostProcess
}

// commandDoorbell reports that a driver command is done. result is 0, a QNIX_DB_* of uapi/qnix.h, nameTaken or
// overQuota.
type commandDoorbell struct {
	cookie    uint64
	result, _ int32
}

// accessRights are the rights of a NIC to translated memory.
type accessRights uint32

// Read lets the NIC send from the memory, Write lets it receive into it.
const (
	readAccess  accessRights = C.QNIX_ACCESS_READ
	writeAccess accessRights = C.QNIX_ACCESS_WRITE
)

// hostProcess is the host's record of a process: its two mappings and its translated memory, all outside the Go heap.
type hostProcess struct {
	host     *C.struct_host_process
	vni, hps []byte // zeroed at first
	info     memoryInfo
}

// makeProcess makes the mappings of a process that is not registered yet. It fails with errLayout.
func makeProcess(r registrationSizes) (*hostProcess, error) {
	info, err := layoutOf(r)
	if err != nil {
		return nil, err
	}
	p := &hostProcess{host: (*C.struct_host_process)(C.calloc(1, C.sizeof_struct_host_process)), info: info}
	p.vni = newMemory(int(info.vniSize))
	p.hps = newMemory(int(info.hpsSize))
	return p, nil
}

// newMemory returns n zeroed bytes outside the Go heap. The caller must free them with freeMemory.
func newMemory(n int) []byte {
	return unsafe.Slice((*byte)(C.calloc(1, C.size_t(max(n, 1)))), max(n, 1))[:n]
}

// freeMemory frees memory of newMemory.
func freeMemory(b []byte) { C.free(unsafe.Pointer(unsafe.SliceData(b))) }

// free frees the mappings, once no NIC knows the process any more.
func (p *hostProcess) free() {
	freeMemory(p.vni)
	freeMemory(p.hps)
	C.free(unsafe.Pointer(p.host))
}

// translate lets the NIC access b, which is outside the Go heap, and returns its handle, or 0 if there are too many.
func (p *hostProcess) translate(b []byte, a accessRights) uint32 {
	for i := range p.host.memory {
		m := &p.host.memory[i]
		if m.access == 0 {
			*m = C.struct_host_memory{base: (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(b))), len: C.uint64_t(len(b)), access: C.uint32_t(a)}
			return uint32(i + 1)
		}
	}
	return 0
}

// untranslate ends a translation.
func (p *hostProcess) untranslate(handle uint32) { p.host.memory[handle-1] = C.struct_host_memory{} }

// notified returns how often the NIC has woken the process.
func (p *hostProcess) notified() uint64 { return uint64(p.host.notified) }

// post posts a command of the driver. It returns false if the queue is full.
func (n *hostNIC) post(d driverCommand) bool {
	c := C.struct_ncp_driver_command{command: C.uint32_t(d.command), index: C.uint16_t(d.index), nic: C.uint16_t(d.nic),
		size: C.uint32_t(d.size), cookie: C.uint64_t(d.cookie), user: C.uint64_t(d.user)}
	*(*nameBytes)(unsafe.Pointer(&c.name)) = d.name
	*(*nameBytes)(unsafe.Pointer(&c.group)) = d.group
	if p := d.process; p != nil {
		c.process = unsafe.Pointer(p.host)
		c.vni = unsafe.Pointer(unsafe.SliceData(p.vni))
		c.hps = unsafe.Pointer(unsafe.SliceData(p.hps))
		*(*memoryInfo)(unsafe.Pointer(&c.info)) = p.info
	}
	return bool(C.ncp_post(n.ncp, &c))
}

// doorbells moves the driver's doorbells that have rung into dst and returns their number.
func (n *hostNIC) doorbells(dst []commandDoorbell) int {
	if len(dst) == 0 {
		return 0
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&dst[0])
	return int(C.host_doorbells(n.host, (*C.struct_host_doorbell)(unsafe.Pointer(&dst[0])), C.uint32_t(len(dst))))
}

// frame returns the oldest frame in the output FIFO to nic, valid until consume, or nil if there is none.
func (n *hostNIC) frame(nic uint16) []byte {
	var size C.uint32_t
	f := C.host_tx_peek(n.host, C.uint16_t(nic), &size)
	return unsafe.Slice((*byte)(f), size)
}

// consume removes the frame that frame returned.
func (n *hostNIC) consume(nic uint16) { C.host_tx_consume(n.host, C.uint16_t(nic)) }

// drop empties the output FIFO to nic.
func (n *hostNIC) drop(nic uint16) { C.host_drop(n.host, C.uint16_t(nic)) }

// receive puts a frame of NIC from into the input FIFO. It returns false if the FIFO is full or the frame is empty.
func (n *hostNIC) receive(from uint16, frame []byte) bool {
	if len(frame) == 0 {
		return false
	}
	return bool(C.host_receive(n.host, C.uint16_t(from), unsafe.Pointer(&frame[0]), C.uint32_t(len(frame))))
}

// carry moves up to most frames for NIC to into its input FIFO and returns their number.
func (n *hostNIC) carry(to *hostNIC, most int) int {
	return int(C.host_carry(n.host, to.host, C.uint32_t(most)))
}

// hostMember is a membership as a NIC knows it. A process that leaves and joins again has another serial.
type hostMember struct {
	nic, pid, generation, _ uint16
	serial                  uint32
}

// members returns the members of the group that the NIC knows, at most 64.
func (n *hostNIC) members(group string) []hostMember {
	name := makeName(group)
	all := make([]hostMember, 64)
	k := C.host_members(n.host, (*C.uint8_t)(&name[0]), (*C.struct_host_member)(unsafe.Pointer(&all[0])), 64)
	return all[:min(int(k), len(all))]
}

// setRound sets the number of the last barrier of all members of the group that the NIC knows.
func (n *hostNIC) setRound(group string, round uint32) {
	name := makeName(group)
	C.host_set_round(n.host, (*C.uint8_t)(&name[0]), C.uint32_t(round))
}
