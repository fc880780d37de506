//go:build linux

package afxdp

import (
	"time"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/afxdp/xsk"
)

// run moves what there is to be moved, unless somebody else is at it, who then
// also does what the caller has marked.
func (n *nic) run() {
	for n.lock.CompareAndSwap(0, 1) {
		n.step()
		n.lock.Store(0)
		if n.dirty.Load() == nil {
			return
		}
	}
}

// clockPolls is how many polls in vain go without a look at the clock.
const clockPolls = 32

// step is one round: take what has arrived and what instances want, send what that makes due.
func (n *nic) step() {
	n.polls.Add(1)
	work := false
	for k := range n.queues {
		if q := &n.queues[k]; q.sock.RxPending() > 0 {
			if !work {
				work = true
				n.clock()
			}
			n.receive(q)
		}
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
		if n.polls.Load()%clockPolls != 0 {
			return
		}
		if n.clock(); n.now < n.next && !n.held() {
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
	n.fill() // before anybody hears of credit
	for k := range n.queues {
		if q := &n.queues[k]; q.out > 0 || q.stuck {
			n.push(q)
		}
	}
	if n.under() > reclaimAt {
		n.reclaim()
	}
	if n.held() {
		n.due.Store(int64(n.now) + int64(50*time.Microsecond))
	} else {
		n.due.Store(int64(n.next))
	}
}

// publish tells owners how much is under way.
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

// reclaimAt is from how many chunks on, that may have been sent, it is worth to look.
const reclaimAt = 64

func (n *nic) under() (sum int) {
	for k := range n.queues {
		sum += n.queues[k].under
	}
	return sum
}

// held reports whether something could not be sent for lack of room.
func (n *nic) held() bool {
	for k := range n.queues {
		if n.queues[k].out > 0 || n.queues[k].stuck {
			return true
		}
	}
	for _, c := range n.contexts[:n.used] {
		if c != nil && c.end.Waiting() {
			return true
		}
	}
	return false
}

func (n *nic) clock() { n.now = link.Time(time.Since(n.origin)) }

// receive takes frames from one queue.
func (n *nic) receive(q *queue) {
	got := q.sock.Receive(n.batch)
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

// arrived takes one frame, and reports whether it is kept.
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

// contextOf is where the frame that was parsed goes; nil: nowhere.
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

// serve does what instances have marked.
func (n *nic) serve() {
	for i := n.dirty.Swap(nil); i != nil; {
		next := i.nextDirty
		i.nextDirty = nil
		i.marked.Store(false)
		i.api.serve()
		i = next
	}
}

// serveBacklog serves again those whose posts found no room.
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

// kick makes the kernel send. What it does not take now is kicked again.
func (q *queue) kick(n *nic) {
	q.stuck = false
	if err := q.sock.Kick(); err != nil {
		q.stuck = !isGone(err)
		n.reclaim()
	}
}

// keep looks after a queue when no instance does: what arrives, timers, and who
// sleeps. While the program polls, it only looks now and then.
func (n *nic) keep(q *queue) {
	const look = time.Millisecond
	timer := time.NewTimer(look)
	defer timer.Stop()
	var last uint64
	for !n.closing.Load() {
		polls, wait := n.pollsSince(&last)
		if n.waits.Watching() || polls > 1 && n.waits.Sleepers() == 0 {
			timer.Reset(look)
			n.tended.Store(true)
			select {
			case <-timer.C:
			case <-n.nudge:
			}
			n.tended.Store(false)
		} else if wait = min(wait, longestSleep); wait > 0 {
			_, _ = q.sock.Wait(rxEvent, wait)
		}
		n.run()
		n.sweepRoutes()
	}
}

// pollsSince tells how often others have polled since the last call, and how long there is
// nothing to do. It does not ask for the lock: on one processor, its holder could not let go of it
// as long as somebody spins.
func (n *nic) pollsSince(last *uint64) (polls uint64, wait time.Duration) {
	now := n.polls.Load()
	polls = now - *last
	*last = now + 1 // the one that follows
	return polls, time.Duration(n.due.Load()) - time.Since(n.origin)
}
