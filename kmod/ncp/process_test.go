//go:build linux && cgo

package ncp

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"unsafe"
)

// The Virtual Network Interface that a process writes, and the host page that it reads: uapi/qnix.h.
const (
	cmdSend = 1 + iota
	cmdSendShort
	cmdBroadcast
	cmdBroadcastShort
	cmdMulticast
	cmdMulticastShort
	cmdNames
	cmdJoinGroup
	cmdLeaveGroup
	cmdReceive
	cmdBarrier
	cmdCancelSend
	cmdCancelReceive
)

const (
	flagDoorbell = 1 << iota
	flagInline
	flagPool
)

type state uint32

const (
	free state = iota
	pending
	done
	truncated
	unknown
	gone
	canceled
	invalid
	fault
	noMemory
)

func (s state) String() string {
	return [...]string{"free", "pending", "done", "truncated", "unknown", "gone", "canceled", "invalid", "fault",
		"no memory"}[s]
}

// process is a registered process, as it sees its own interface.
type process struct {
	*hostProcess
	node  *node
	name  string
	index uint16
	tail  uint32 // commands posted
	seen  uint32 // doorbells read
}

var little = binary.NativeEndian

func (p *process) word(in []byte, at uint32) *uint32 {
	return (*uint32)(unsafe.Pointer(&in[at]))
}

func (p *process) status(field uint32) uint32 {
	return atomic.LoadUint32(p.word(p.hps, p.info.status+field))
}

// The offsets of struct qnix_vni_status.
const (
	statusHead   = 0
	statusWakeup = 4
	statusMisuse = 8
	statusGone   = 12
	statusTail   = 64
)

// full says that the Command Queue has no free entry.
func (p *process) full() bool {
	return atomic.LoadUint32(p.word(p.vni, p.entry())) != 0
}

func (p *process) entry() uint32 {
	return p.info.commandQueue + p.tail%p.info.commands*64
}

// post puts a command into the queue, and rings if the NIC wants it.
func (p *process) post(command uint32, context uint16, size uint32, name string) {
	at := p.entry()
	body := p.vni[at+4 : at+64]
	clear(body)
	little.PutUint16(body, context)
	little.PutUint32(body[4:], size)
	copy(body[8:27], name)
	p.commit(command)
}

// postReserved posts a command, of which a byte is 1 instead of 0.
func (p *process) postReserved(command uint32, context uint16, reserved int) {
	at := p.entry()
	clear(p.vni[at+4 : at+64])
	little.PutUint16(p.vni[at+4:], context)
	p.vni[int(at)+reserved] = 1
	p.commit(command)
}

func (p *process) commit(command uint32) {
	atomic.StoreUint32(p.word(p.vni, p.entry()), command)
	p.tail++
	if p.status(statusWakeup) != 0 {
		p.node.nic.ring(p.index)
	}
}

func (p *process) postNames(names ...string) {
	for len(names) > 0 {
		at := p.entry()
		body := p.vni[at+4 : at+64]
		clear(body)
		for i := 0; i < 3 && len(names) > 0; i++ {
			copy(body[20*i:20*i+19], names[0])
			names = names[1:]
		}
		p.commit(cmdNames)
	}
}

// message is what a context says.
type message struct {
	peer        string
	tag         uint16
	flags       uint16
	len         int
	descriptors []descriptor
	pool        uint32
	reserved    int // a byte of the context that is 1 instead of 0
}

type descriptor struct {
	handle, len uint32
	offset      uint64
}

func (p *process) context(receive bool, i uint16, m message) {
	at := p.info.sendContexts
	if receive {
		at = p.info.receiveContexts
	}
	c := p.vni[at+uint32(i)*64:][:64]
	clear(c)
	copy(c[:19], m.peer)
	little.PutUint16(c[20:], m.tag)
	little.PutUint16(c[22:], m.flags)
	little.PutUint32(c[24:], uint32(m.len))
	little.PutUint32(c[28:], uint32(len(m.descriptors)))
	little.PutUint32(c[32:], m.pool)
	if m.reserved > 0 {
		c[m.reserved] = 1
	}
	list := p.region(receive, i)
	if m.flags&flagPool != 0 {
		list = p.vni[p.info.bufferPool+m.pool*16:]
	}
	if m.flags&flagInline == 0 {
		for j, d := range m.descriptors {
			little.PutUint32(list[16*j:], d.handle)
			little.PutUint32(list[16*j+4:], d.len)
			little.PutUint64(list[16*j+8:], d.offset)
		}
	}
}

func (p *process) region(receive bool, i uint16) []byte {
	at := p.info.sendRegions
	if receive {
		at = p.info.receiveRegions
	}
	return p.vni[at+uint32(i)*p.info.regionSize:][:p.info.regionSize]
}

func (p *process) send(i uint16, m message)  { p.context(false, i, m); p.post(cmdSend, i, 0, "") }
func (p *process) recv(i uint16, m message)  { p.context(true, i, m); p.post(cmdReceive, i, 0, "") }
func (p *process) short(i uint16, m message) { p.context(false, i, m); p.post(cmdSendShort, i, 0, "") }

// doorbell is what the doorbell of a context says; clear sets it free.
func (p *process) doorbell(receive bool, i uint16) (state, int) {
	at := p.info.sendDoorbells
	if receive {
		at = p.info.receiveDoorbells
	}
	w := atomic.LoadUint64((*uint64)(unsafe.Pointer(&p.hps[at+uint32(i)*8])))
	return state(w >> 32), int(uint32(w))
}

func (p *process) clear(receive bool, i uint16) {
	at := p.info.sendDoorbells
	if receive {
		at = p.info.receiveDoorbells
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&p.hps[at+uint32(i)*8])), 0)
}

// rung is the next entry of the Doorbell Ring.
func (p *process) rung() (receive bool, i uint16, ok bool) {
	if p.status(statusTail) == p.seen {
		return false, 0, false
	}
	e := *p.word(p.hps, p.info.doorbellRing+p.seen%p.info.ringEntries*4)
	p.seen++
	return e>>31 != 0, uint16(e), true
}

func (p *process) wantSend(t *testing.T, i uint16, s state, n int) {
	t.Helper()
	if got, m := p.doorbell(false, i); got != s || m != n {
		t.Fatalf("%s: send doorbell %d: got %v, %d bytes, want %v, %d", p.name, i, got, m, s, n)
	}
}

func (p *process) wantRecv(t *testing.T, i uint16, s state, n int) {
	t.Helper()
	if got, m := p.doorbell(true, i); got != s || m != n {
		t.Fatalf("%s: receive doorbell %d: got %v, %d bytes, want %v, %d", p.name, i, got, m, s, n)
	}
}
