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
	newProcess    commandKind = C.NCP_NEW_PROCESS    // all but NIC; the group may be empty
	deleteProcess commandKind = C.NCP_DELETE_PROCESS // Index
	joinGroup     commandKind = C.NCP_JOIN_GROUP     // Index, Group, Size
	leaveGroup    commandKind = C.NCP_LEAVE_GROUP    // Index, Group
	abandon       commandKind = C.NCP_ABANDON        // the Cookie of a newProcess or joinGroup
	addNIC        commandKind = C.NCP_ADD_NIC        // NIC
	removeNIC     commandKind = C.NCP_REMOVE_NIC     // NIC
)

// nameTaken is a commandDoorbell's result: a process of the cluster has that name.
const nameTaken = C.NCP_TAKEN

// overQuota is a commandDoorbell's result: the user, or the NIC, holds its whole share of a table.
const overQuota = C.NCP_QUOTA

// driverCommand is an entry of the Driver Command Queue.
type driverCommand struct {
	Command     commandKind
	Index, NIC  uint16
	Size        uint32
	Cookie      uint64 // returned in the commandDoorbell
	User        uint64 // user of a new process; 0: root
	Name, Group nameBytes
	Process     *hostProcess
}

// commandDoorbell reports that a driver command is done. Result is 0, a QNIX_DB_* of uapi/qnix.h, nameTaken or
// overQuota.
type commandDoorbell struct {
	Cookie    uint64
	Result, _ int32
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
	VNI, HPS []byte // zeroed at first
	Info     memoryInfo
}

// makeProcess makes the mappings of a process that is not registered yet. It fails with errLayout.
func makeProcess(r registrationSizes) (*hostProcess, error) {
	info, err := layoutOf(r)
	if err != nil {
		return nil, err
	}
	p := &hostProcess{host: (*C.struct_host_process)(C.calloc(1, C.sizeof_struct_host_process)), Info: info}
	p.VNI = newMemory(int(info.VNISize))
	p.HPS = newMemory(int(info.HPSSize))
	return p, nil
}

// newMemory returns n zeroed bytes outside the Go heap. The caller must free them with freeMemory.
func newMemory(n int) []byte {
	return unsafe.Slice((*byte)(C.calloc(1, C.size_t(max(n, 1)))), max(n, 1))[:n]
}

// freeMemory frees memory of newMemory.
func freeMemory(b []byte) { C.free(unsafe.Pointer(unsafe.SliceData(b))) }

// Free frees the mappings, once no NIC knows the process any more.
func (p *hostProcess) Free() {
	freeMemory(p.VNI)
	freeMemory(p.HPS)
	C.free(unsafe.Pointer(p.host))
}

// Translate lets the NIC access b, which is outside the Go heap, and returns its handle, or 0 if there are too many.
func (p *hostProcess) Translate(b []byte, a accessRights) uint32 {
	for i := range p.host.memory {
		m := &p.host.memory[i]
		if m.access == 0 {
			*m = C.struct_host_memory{base: (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(b))), len: C.uint64_t(len(b)), access: C.uint32_t(a)}
			return uint32(i + 1)
		}
	}
	return 0
}

// Untranslate ends a translation.
func (p *hostProcess) Untranslate(handle uint32) { p.host.memory[handle-1] = C.struct_host_memory{} }

// Notified returns how often the NIC has woken the process.
func (p *hostProcess) Notified() uint64 { return uint64(p.host.notified) }

// Post posts a command of the driver. It returns false if the queue is full.
func (n *hostNIC) Post(d driverCommand) bool {
	c := C.struct_ncp_driver_command{command: C.uint32_t(d.Command), index: C.uint16_t(d.Index), nic: C.uint16_t(d.NIC),
		size: C.uint32_t(d.Size), cookie: C.uint64_t(d.Cookie), user: C.uint64_t(d.User)}
	*(*nameBytes)(unsafe.Pointer(&c.name)) = d.Name
	*(*nameBytes)(unsafe.Pointer(&c.group)) = d.Group
	if p := d.Process; p != nil {
		c.process = unsafe.Pointer(p.host)
		c.vni = unsafe.Pointer(unsafe.SliceData(p.VNI))
		c.hps = unsafe.Pointer(unsafe.SliceData(p.HPS))
		*(*memoryInfo)(unsafe.Pointer(&c.info)) = p.Info
	}
	return bool(C.ncp_post(n.ncp, &c))
}

// Doorbells moves the driver's doorbells that have rung into dst and returns their number.
func (n *hostNIC) Doorbells(dst []commandDoorbell) int {
	if len(dst) == 0 {
		return 0
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&dst[0])
	return int(C.host_doorbells(n.host, (*C.struct_host_doorbell)(unsafe.Pointer(&dst[0])), C.uint32_t(len(dst))))
}

// Frame returns the oldest frame in the output FIFO to nic, valid until Consume, or nil if there is none.
func (n *hostNIC) Frame(nic uint16) []byte {
	var size C.uint32_t
	f := C.host_tx_peek(n.host, C.uint16_t(nic), &size)
	return unsafe.Slice((*byte)(f), size)
}

// Consume removes the frame that Frame returned.
func (n *hostNIC) Consume(nic uint16) { C.host_tx_consume(n.host, C.uint16_t(nic)) }

// Drop empties the output FIFO to nic.
func (n *hostNIC) Drop(nic uint16) { C.host_drop(n.host, C.uint16_t(nic)) }

// Receive puts a frame of NIC from into the input FIFO. It returns false if the FIFO is full or the frame is empty.
func (n *hostNIC) Receive(from uint16, frame []byte) bool {
	if len(frame) == 0 {
		return false
	}
	return bool(C.host_receive(n.host, C.uint16_t(from), unsafe.Pointer(&frame[0]), C.uint32_t(len(frame))))
}

// Carry moves up to most frames for NIC to into its input FIFO and returns their number.
func (n *hostNIC) Carry(to *hostNIC, most int) int {
	return int(C.host_carry(n.host, to.host, C.uint32_t(most)))
}
