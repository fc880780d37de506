//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"errors"
	"time"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/kit"
)

// run moves frames and messages. If another goroutine does so already, that one also serves the instances that the
// caller has marked.
func (n *nic) run() {
	for n.lock.CompareAndSwap(0, 1) {
		n.step()
		n.lock.Store(0)
		if n.dirty.Load() == nil {
			return
		}
	}
}

// Polls without work read the clock, which takes longer than they do, only now and then: at the latest after clockPolls,
// and earlier where they follow each other so slowly that timers would be late by more than clockTime.
const (
	clockPolls = 32
	clockTime  = link.Time(10 * time.Microsecond)
)

// step is one round: it handles the frames that have arrived and the marked instances, and sends all that has become
// due.
func (n *nic) step() {
	n.polls.Add(1)
	work := false
	for k := range n.queues {
		if q := &n.queues[k]; q.sock.RxPending() > 0 {
			work = true
			n.receive(q)
		}
	}
	if len(n.copies) > 0 && n.wanted.Load() == 0 { // the lock is free most of the time while a goroutine wants it
		work = true
		n.serveCopies()
		n.clock()
	}
	if n.dirty.Load() != nil {
		if !work {
			work = true
			n.clock()
		}
		n.serve()
	}
	if work && len(n.backlog) > 0 {
		n.serveBacklog()
	}
	if !work {
		if n.idle++; n.idle < n.stride && !n.late.Load() {
			return
		}
		n.late.Store(false)
		for k := range n.queues {
			_ = n.queues[k].sock.WakeRx()
		}
		before := n.now
		n.clock()
		if took := n.now - before; took > clockTime {
			n.stride = max(n.stride*int(clockTime)/int(took), 1)
		} else {
			n.stride = min(n.stride+1, clockPolls)
		}
		if n.now < n.next && !n.held() {
			n.due.Store(int64(n.next))
			return
		}
	}
	n.next = never
	for _, c := range n.contexts[:n.used] {
		if c == nil {
			continue
		}
		if c.end.Next() <= n.now {
			c.end.Tick(n.now)
		} else {
			c.end.Flush(n.now)
		}
		n.next = min(n.next, c.end.Next())
	}
	n.publish()
	n.fill() // before peers get credit
	for k := range n.queues {
		if q := &n.queues[k]; q.out > 0 || q.stuck {
			n.push(q)
		}
	}
	if n.under() > reclaimAt {
		n.reclaim()
	}
	switch {
	case len(n.copies) > 0:
		n.due.Store(0)
	case n.held():
		n.due.Store(int64(n.now) + int64(50*time.Microsecond))
	default:
		n.due.Store(int64(n.next))
	}
}

// publish updates the counts of unacknowledged fragments for the owners.
func (n *nic) publish() {
	kept := n.sending[:0]
	for _, i := range n.sending {
		p := i.lc.Unacknowledged()
		i.pending.Store(int32(p))
		if p > 0 {
			kept = append(kept, i)
		}
	}
	clear(n.sending[len(kept):])
	n.sending = kept
}

// reclaimAt is the number of chunks, handed to the kernel, from which on the completion ring is read.
const reclaimAt = 64

func (n *nic) under() (sum int) {
	for k := range n.queues {
		sum += n.queues[k].under
	}
	return sum
}

// held reports whether frames could not be sent for lack of room, which may be there soon. While the link is down, or the
// device is gone, the timers of connections suffice.
func (n *nic) held() bool {
	alive := false
	for k := range n.queues {
		q := &n.queues[k]
		if !q.dead && (q.out > 0 || q.stuck) {
			return true
		}
		alive = alive || !q.dead
	}
	if !alive {
		return false
	}
	for _, c := range n.contexts[:n.used] {
		if c != nil && c.end.Waiting() {
			return true
		}
	}
	return false
}

func (n *nic) clock() { n.now, n.idle = link.Time(time.Since(n.origin)), 0 }

// receive handles the frames of one queue.
func (n *nic) receive(q *queue) {
	got := q.sock.Receive(n.batch)
	n.clock() // not before: a round trip must not seem shorter because this process did not run meanwhile
	q.posted -= got
	to := n.tap.Sinks()
	m := &n.memory
	for _, d := range n.batch[:got] {
		id, b := uint32(m.umem.Chunk(d.Addr)), m.umem.Data(d)
		if q.long.n > 0 || d.Options&xsk.DescContinued != 0 {
			n.arrivedPart(&q.long, id, b, d.Options&xsk.DescContinued == 0, to)
			continue
		}
		if to != nil {
			n.showArrived(to, b)
		}
		if !n.arrived(id, b) {
			m.spare = append(m.spare, id)
		}
	}
}

// arrived handles one frame and reports whether it is kept.
func (n *nic) arrived(id uint32, frame []byte) bool {
	var code carrier.Code
	n.from, code = carrier.Parse(frame, &n.filter)
	c := n.contextOf(code)
	if c == nil {
		return false
	}
	b := n.from.Payload
	return c.end.Input(n.now, n.source(b[3]), link.Frame{ID: uint64(id), Data: b[prefixSize:]})
}

// contextOf returns the context that the parsed frame is for, or nil.
func (n *nic) contextOf(code carrier.Code) *share {
	if code != carrier.OK {
		n.stats.codes[code]++
		return nil
	}
	b := n.from.Payload
	if !isOurs(b) || n.contexts[b[2]] == nil {
		n.stats.foreign++
		return nil
	}
	return n.contexts[b[2]]
}

// serve serves the marked instances.
func (n *nic) serve() {
	for i := n.dirty.Swap(nil); i != nil; {
		next := i.nextDirty
		i.nextDirty = nil
		i.marked.Store(false)
		i.api.serve()
		i = next
	}
}

// serveBacklog serves again the instances whose posts found no room.
func (n *nic) serveBacklog() {
	list := n.backlog
	n.backlog = n.backlogSpare[:0]
	for _, i := range list {
		i.waits = false
		i.api.serve()
	}
	clear(list)
	n.backlogSpare = list[:0]
}

// serveCopies copies a further part of messages to oneself.
func (n *nic) serveCopies() {
	kept := n.copies[:0]
	for _, l := range n.copies {
		if l.waits = l.State() == kit.StateUp && l.copyToSelf(); l.waits {
			kept = append(kept, l)
		}
	}
	clear(n.copies[len(kept):])
	n.copies = kept
}

// mark asks the holder of the lock to serve an instance. The caller runs the engine next.
func (i *conn) mark() {
	if i.marked.Swap(true) {
		return
	}
	n := i.ctx.nic
	for {
		i.nextDirty = n.dirty.Load()
		if n.dirty.CompareAndSwap(i.nextDirty, i) {
			return
		}
	}
}

// kick makes the kernel send. If the kernel does not send all, stuck asks for another kick.
func (q *queue) kick(n *nic) {
	err := q.sock.Kick()
	q.stuck = errors.Is(err, xsk.ErrAgain)
	q.dead = err != nil && !q.stuck // packets that are sent again kick again
	if err != nil {
		n.reclaim()
	}
}

// kickDead makes the kernel send what it has kept since a kick failed.
func (n *nic) kickDead() {
	for k := range n.queues {
		if q := &n.queues[k]; q.dead {
			q.kick(n)
		}
	}
}

// runQueue is the goroutine of a queue: it handles arriving frames, timers and sleeping waiters when no instance
// does. While the program polls, it polls only now and then.
func (n *nic) runQueue(q *queue) {
	const look = time.Millisecond
	timer := time.NewTimer(look)
	defer timer.Stop()
	var last uint64
	for !n.closing.Load() {
		polls, due := n.pollsSince(&last)
		minds := false
		if n.waits.Watching() || polls > 1 && n.waits.Sleepers() == 0 {
			timer.Reset(look)
			n.polledSoon.Store(true)
			select {
			case <-timer.C:
			case <-n.wakeup:
			}
			n.polledSoon.Store(false)
			n.late.Store(true)
		} else if wait := min(due-time.Since(n.origin), longestSleep); wait > 0 {
			minds = n.minded.Swap(int64(due)) != int64(due)
			if !minds { // another queue's goroutine wakes then
				wait = longestSleep
			}
			_ = q.sock.WakeRx()
			// A waiter that has begun to watch the same queue meanwhile may be the one that is to wake.
			if got, _ := q.sock.Wait(rxEvent, wait); got&xsk.EventWake != 0 && n.waits.Watching() {
				q.sock.Wake()
			}
			if minds {
				n.minded.CompareAndSwap(int64(due), 0) // unless another one minds a later change
			}
		}
		n.run()
		n.dropRoutes()
	}
}

// pollsSince returns how often others have polled since the last call, and when a round is due. It does not take the
// lock: on one processor, the lock's holder could not release it while a waiter spins.
func (n *nic) pollsSince(last *uint64) (polls uint64, due time.Duration) {
	now := n.polls.Load()
	polls = now - *last
	*last = now + 1 // excludes the queue goroutine's own round, which follows
	return polls, time.Duration(n.due.Load())
}
