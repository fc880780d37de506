//go:build linux && cgo

package ncp

// #include <stdlib.h>
// #include "host.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Command is what a driver posts to a NIC.
type Command uint32

// The driver's commands; [DriverCommand] says which fields they take.
const (
	NewProcess    Command = C.NCP_NEW_PROCESS    // all but NIC; the group may be empty
	DeleteProcess Command = C.NCP_DELETE_PROCESS // Index
	JoinGroup     Command = C.NCP_JOIN_GROUP     // Index, Group, Size
	LeaveGroup    Command = C.NCP_LEAVE_GROUP    // Index, Group
	Abandon       Command = C.NCP_ABANDON        // the Cookie of a NewProcess or JoinGroup
	AddNIC        Command = C.NCP_ADD_NIC        // NIC
	RemoveNIC     Command = C.NCP_REMOVE_NIC     // NIC
)

// Taken is a [Doorbell]'s result: a process of the cluster has that name.
const Taken = C.NCP_TAKEN

// Quota is a [Doorbell]'s result: the user, or the NIC, holds its share of a table.
const Quota = C.NCP_QUOTA

// DriverCommand is an entry of the Driver Command Queue.
type DriverCommand struct {
	Command     Command
	Index, NIC  uint16
	Size        uint32
	Cookie      uint64 // comes back in the [Doorbell]
	User        uint64 // whose process a new one is; 0: root's
	Name, Group Name
	Process     *Process
}

// Doorbell tells of a driver command that is done: Result is 0, a QNIX_DB_* of uapi/qnix.h, or [Taken].
type Doorbell struct {
	Cookie    uint64
	Result, _ int32
}

// Access is what a NIC may do with translated memory.
type Access uint32

// What a NIC may do: send from the memory, receive in it.
const (
	Read  Access = C.QNIX_ACCESS_READ
	Write Access = C.QNIX_ACCESS_WRITE
)

// Process is a process as a host knows it: its two mappings and its translated memory, all outside the Go heap.
type Process struct {
	host     *C.struct_host_process
	VNI, HPS []byte // zeroed at first
	Info     MemoryInfo
}

// MakeProcess makes the mappings of a process that is not registered yet. It fails with [ErrLayout].
func MakeProcess(r Registration) (*Process, error) {
	info, err := Layout(r)
	if err != nil {
		return nil, err
	}
	p := &Process{host: (*C.struct_host_process)(C.calloc(1, C.sizeof_struct_host_process)), Info: info}
	p.VNI = Memory(int(info.VNISize))
	p.HPS = Memory(int(info.HPSSize))
	return p, nil
}

// Memory is n zeroed bytes outside the Go heap, for FreeMemory.
func Memory(n int) []byte {
	return unsafe.Slice((*byte)(C.calloc(1, C.size_t(max(n, 1)))), max(n, 1))[:n]
}

// FreeMemory frees what Memory gave.
func FreeMemory(b []byte) { C.free(unsafe.Pointer(unsafe.SliceData(b))) }

// Free frees the mappings, once no NIC knows the process any more.
func (p *Process) Free() {
	FreeMemory(p.VNI)
	FreeMemory(p.HPS)
	C.free(unsafe.Pointer(p.host))
}

// Translate lets the NIC access b, which lies outside the Go heap, and gives its handle; 0: there are too many.
func (p *Process) Translate(b []byte, a Access) uint32 {
	for i := range p.host.memory {
		m := &p.host.memory[i]
		if m.access == 0 {
			*m = C.struct_host_memory{base: (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(b))), len: C.uint64_t(len(b)), access: C.uint32_t(a)}
			return uint32(i + 1)
		}
	}
	return 0
}

// Untranslate ends what Translate began.
func (p *Process) Untranslate(handle uint32) { p.host.memory[handle-1] = C.struct_host_memory{} }

// Notified counts how often the NIC had the process woken.
func (p *Process) Notified() uint64 { return uint64(p.host.notified) }

// Post posts a command of the driver; false: the queue is full.
func (n *NIC) Post(d DriverCommand) bool {
	c := C.struct_ncp_driver_command{command: C.uint32_t(d.Command), index: C.uint16_t(d.Index), nic: C.uint16_t(d.NIC),
		size: C.uint32_t(d.Size), cookie: C.uint64_t(d.Cookie), user: C.uint64_t(d.User)}
	*(*Name)(unsafe.Pointer(&c.name)) = d.Name
	*(*Name)(unsafe.Pointer(&c.group)) = d.Group
	if p := d.Process; p != nil {
		c.process = unsafe.Pointer(p.host)
		c.vni = unsafe.Pointer(unsafe.SliceData(p.VNI))
		c.hps = unsafe.Pointer(unsafe.SliceData(p.HPS))
		*(*MemoryInfo)(unsafe.Pointer(&c.info)) = p.Info
	}
	return bool(C.ncp_post(n.ncp, &c))
}

// Doorbells takes the driver's doorbells that have rung into dst and says how many.
func (n *NIC) Doorbells(dst []Doorbell) int {
	if len(dst) == 0 {
		return 0
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&dst[0])
	return int(C.host_doorbells(n.host, (*C.struct_host_doorbell)(unsafe.Pointer(&dst[0])), C.uint32_t(len(dst))))
}

// Frame is the oldest frame in the output FIFO to nic, valid until Consume; nil: there is none.
func (n *NIC) Frame(nic uint16) []byte {
	var size C.uint32_t
	f := C.host_tx_peek(n.host, C.uint16_t(nic), &size)
	return unsafe.Slice((*byte)(f), size)
}

// Consume takes away the frame that Frame gave.
func (n *NIC) Consume(nic uint16) { C.host_tx_consume(n.host, C.uint16_t(nic)) }

// Drop empties the output FIFO to nic.
func (n *NIC) Drop(nic uint16) { C.host_drop(n.host, C.uint16_t(nic)) }

// Receive puts a frame of NIC from into the input FIFO; false: it is full, or the frame is empty.
func (n *NIC) Receive(from uint16, frame []byte) bool {
	if len(frame) == 0 {
		return false
	}
	return bool(C.host_receive(n.host, C.uint16_t(from), unsafe.Pointer(&frame[0]), C.uint32_t(len(frame))))
}

// Carry moves up to most frames to the input FIFO of the NIC that they are for, and says how many.
func (n *NIC) Carry(to *NIC, most int) int {
	return int(C.host_carry(n.host, to.host, C.uint32_t(most)))
}
