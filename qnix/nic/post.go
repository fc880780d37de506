//go:build linux

package nic

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/qnix/internal/abi"
)

var _ = [1]struct{}{}[unsafe.Sizeof(Descriptor{})-unsafe.Sizeof(abi.Descriptor{})]

// queue is the Command Queue. Any goroutine may post: entries are claimed by compare-and-swap and published by storing
// their command. An entry is free again when the NIC has set its command to 0. But the command is also 0 while the last
// claimant has not published it yet; turn distinguishes the two.
type queue struct {
	entries []abi.Command
	tail    atomic.Uint32   // entries claimed, modulo 2^32
	turn    []atomic.Uint32 // for each entry, the tail that may claim it next
}

func (q *queue) init(entries []abi.Command) {
	q.entries = entries
	q.turn = make([]atomic.Uint32, len(entries))
	for i := range q.turn {
		q.turn[i].Store(uint32(i))
	}
}

// claim gives n consecutive entries, from t on, to the caller.
func (q *queue) claim(n uint32) (t uint32, ok bool) {
	mask := uint32(len(q.entries) - 1)
	if n > mask+1 {
		return 0, false
	}
again:
	t = q.tail.Load()
	for k := t; k != t+n; k++ {
		if q.turn[k&mask].Load() != k || atomic.LoadUint32(&q.entries[k&mask].Command) != abi.CmdNone {
			if q.tail.Load() != t {
				goto again // another goroutine has claimed it
			}
			return 0, false
		}
	}
	if !q.tail.CompareAndSwap(t, t+n) {
		goto again
	}
	return t, true
}

func (q *queue) entry(t uint32) *abi.Command { return &q.entries[t&uint32(len(q.entries)-1)] }

// publish hands a filled entry to the NIC.
func (q *queue) publish(t uint32, command uint32) {
	n := uint32(len(q.entries))
	atomic.StoreUint32(&q.entries[t&(n-1)].Command, command)
	q.turn[t&(n-1)].Store(t + n)
}

// command posts a command that takes one entry. next is the entry behind it.
func (q *queue) command(command uint32, context int, size uint32, name *Name) (next uint32, ok bool) {
	t, ok := q.claim(1)
	if !ok {
		return 0, false
	}
	e := q.entry(t)
	e.Context, e.Reserved, e.Size = uint16(context), 0, size
	e.Name = *name
	e.Pad = [32]byte{}
	q.publish(t, command)
	return t + 1, true
}

// multicast posts a command with its names. The names are published first, so that the NIC finds them all.
func (q *queue) multicast(command uint32, context int, names []Name) (next uint32, ok bool) {
	const each = abi.NamesPerCommand
	more := uint32((len(names) + each - 1) / each)
	t, ok := q.claim(1 + more)
	if !ok {
		return 0, false
	}
	for k := more; k > 0; k-- {
		e := (*abi.Names)(unsafe.Pointer(q.entry(t + k)))
		e.Names = [each][abi.NameLen]byte{}
		for j, n := range names[(k-1)*each : min(k*each, uint32(len(names)))] {
			e.Names[j] = n
		}
		q.publish(t+k, abi.CmdNames)
	}
	e := q.entry(t)
	e.Context, e.Reserved, e.Size = uint16(context), 0, uint32(len(names))
	e.Name, e.Pad = [abi.NameLen]byte{}, [32]byte{}
	q.publish(t, command)
	return t + 1 + more, true
}

var noName Name

// Post fills context i (a Receive Context for Receive, otherwise a Send Context) and posts the command. The context's
// doorbell is then Pending; without the flag Doorbell it is Free, and rings only for a failure. Post neither blocks nor
// allocates, and several goroutines may call it at once. The NIC may sleep: see Kick. The memory, the Context Region
// and the context belong to the NIC until the doorbell rings; m belongs to the caller when Post returns.
//
// Post fails with ErrInUse if an operation of the context is under way, ErrBusy if the Command Queue is full,
// ErrInvalid, ErrClosed or ErrGone.
func (p *Process) Post(c Command, i int, m *Message) error {
	if c != Send && c != SendShort && c != Receive {
		return ErrInvalid
	}
	l := &p.sends
	if c == Receive {
		l = &p.receives
	}
	old, err := p.fill(l, i, m, c == SendShort)
	if err != nil {
		return err
	}
	next, ok := p.queue.command(uint32(c), i, 0, &noName)
	return p.posted(l, i, old, next, ok)
}

// SendShort sends the first n bytes of SendRegion(i), with a doorbell.
func (p *Process) SendShort(i int, to Name, tag uint16, n int) error {
	return p.Post(SendShort, i, &Message{Peer: to, Tag: tag, Len: n, Flags: Doorbell | Inline})
}

// ReceiveShort receives at most room bytes in ReceiveRegion(i), with a
// doorbell.
func (p *Process) ReceiveShort(i int, from Name, tag uint16, room int) error {
	return p.Post(Receive, i, &Message{Peer: from, Tag: tag, Len: room, Flags: Doorbell | Inline})
}

// Broadcast sends to all other members of a group; each receives as from a Send. The doorbell rings when all have
// received it, or with the first failure; for an unknown group it rings Unknown. With short the data come from the
// Context Region, as in SendShort. m.Peer is ignored. Errors are those of Post.
func (p *Process) Broadcast(i int, group Name, m *Message, short bool) error {
	command := uint32(abi.CmdBroadcast)
	if short {
		command = abi.CmdBroadcastShort
	}
	old, err := p.fill(&p.sends, i, m, short)
	if err != nil {
		return err
	}
	next, ok := p.queue.command(command, i, 0, &group)
	return p.posted(&p.sends, i, old, next, ok)
}

// Multicast is Broadcast to the named processes. It takes an entry of the Command Queue and one more for each three
// names, and fails with ErrInvalid if the queue has fewer entries.
func (p *Process) Multicast(i int, to []Name, m *Message, short bool) error {
	if len(to) == 0 || 1+(len(to)+abi.NamesPerCommand-1)/abi.NamesPerCommand > len(p.queue.entries) {
		return ErrInvalid
	}
	command := uint32(abi.CmdMulticast)
	if short {
		command = abi.CmdMulticastShort
	}
	old, err := p.fill(&p.sends, i, m, short)
	if err != nil {
		return err
	}
	next, ok := p.queue.multicast(command, i, to)
	return p.posted(&p.sends, i, old, next, ok)
}

// JoinGroup joins a group. The doorbell of Send Context i rings when size processes have joined.
func (p *Process) JoinGroup(i int, group Name, size int) error {
	return p.groupCommand(abi.CmdJoinGroup, i, group, size)
}

// LeaveGroup leaves a group. The doorbell of Send Context i rings when that is done.
func (p *Process) LeaveGroup(i int, group Name) error {
	return p.groupCommand(abi.CmdLeaveGroup, i, group, 1)
}

// Barrier rings the doorbell of Send Context i when all size processes of the group have posted a barrier, with Gone if
// a member has died, with NoMemory if 16 barriers of this process are under way in the group, or too many messages wait
// for another NIC.
func (p *Process) Barrier(i int, group Name, size int) error {
	return p.groupCommand(abi.CmdBarrier, i, group, size)
}

var onlyDoorbell = Message{Flags: Doorbell | Inline}

func (p *Process) groupCommand(command uint32, i int, group Name, size int) error {
	if size < 1 || size > abi.MaxMessage {
		return ErrInvalid
	}
	old, err := p.fill(&p.sends, i, &onlyDoorbell, true)
	if err != nil {
		return err
	}
	// In these operations the field len is not a length.
	atomic.StoreUint32(&p.sends.room[i], abi.MaxMessage)
	next, ok := p.queue.command(command, i, uint32(size), &group)
	return p.posted(&p.sends, i, old, next, ok)
}

// CancelSend asks the NIC to give up the send of context i. The doorbell rings Canceled if the receiver had not granted
// the send yet, otherwise with its outcome. For a message of up to 1 KiB to another NIC it rings when that NIC has
// answered.
func (p *Process) CancelSend(i int) error { return p.cancel(abi.CmdCancelSend, &p.sends, i) }

// CancelReceive asks the NIC to give up the receive of context i. The doorbell rings Canceled if no message was matched
// to the receive, otherwise with its outcome.
func (p *Process) CancelReceive(i int) error {
	return p.cancel(abi.CmdCancelReceive, &p.receives, i)
}

func (p *Process) cancel(command uint32, l *contexts, i int) error {
	if i < 0 || i >= len(l.list) {
		return ErrInvalid
	}
	if p.Gone() {
		return p.over()
	}
	next, ok := p.queue.command(command, i, 0, &noName)
	if !ok {
		return ErrBusy
	}
	p.published(next)
	return nil
}

// published ends a post with the entry before next. If another goroutine has posted there meanwhile, its Kick may have
// been too early: the NIC sleeps in front of the gap that was there.
func (p *Process) published(next uint32) {
	if p.queue.tail.Load() != next {
		_ = p.Kick() // a NIC that is gone shows that to waits
	}
}

// Kick wakes the NIC if it sleeps. Call it after one or several posts; the NIC then sees them all. It costs a load when
// the NIC is awake and a system call otherwise. It does not allocate.
func (p *Process) Kick() error {
	if atomic.LoadUint32(&p.status.NeedWakeup) == 0 {
		return nil
	}
	if p.Gone() {
		return p.over()
	}
	if err := p.host.kick(); err != nil {
		return hostError("doorbell", err)
	}
	return nil
}

// over returns the error of calls after the end.
func (p *Process) over() error {
	if p.closed.Load() {
		return ErrClosed
	}
	return ErrGone
}

// SetPool writes a descriptor into entry k of the Buffer Pool, which must not be part of an operation under way. It
// fails with ErrInvalid if there is no such entry.
func (p *Process) SetPool(k int, d Descriptor) error {
	if k < 0 || k >= len(p.pool) {
		return fmt.Errorf("qnix: pool entry %d of %d: %w", k, len(p.pool), ErrInvalid)
	}
	p.pool[k] = abi.Descriptor{Handle: uint32(d.Handle), Len: d.Len, Offset: d.Offset}
	return nil
}
