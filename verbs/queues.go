//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// Devices differ in what they can do beyond the specification's minimum. Many refuse to make a completion queue larger
// (the providers hns, qedr, ionic, erdma, mana, cxgb4, siw and vmw_pvrdma of rdma-core have no resize_cq), and each has
// its own limit of inline bytes. So a context begins with what it would like, and goes on with what the device grants.

// firstEntries and mostEntries bound the size of the first completion queue: 64 KiB and 4 MiB, at 64 bytes an entry.
const (
	firstEntries = 1 << 10
	mostEntries  = 1 << 16
)

// completionQueue is one of a context's completion queues. All queue pairs of a connection complete in the same one.
type completionQueue struct {
	cq   *ibv.CQ
	need int // completions that its queue pairs can cause; guarded by the context's mutex
}

// firstQueue makes a completion queue for the number of peers that the user expects.
func (c *opened) firstQueue(peers int) error {
	want := max(firstEntries, min(peers*c.entriesOfAPeer(), mostEntries))
	_, err := c.addQueue(min(want, c.dev.Query().MaxCQE))
	return err
}

// entriesOfAPeer returns how many completions a connection to another process can cause.
func (c *opened) entriesOfAPeer() int {
	switch {
	case c.Props.Track == driver.Large:
		return c.depth(largeSends) + c.rxDepth() + largeReceives
	case c.shared != nil:
		return c.depth(sharedSends)
	}
	return c.depth(smallSends) + c.opts.window + controlReceives
}

// addQueue makes a completion queue of that many entries, and more if shared receives need them: the receives of all
// peers may complete in one queue. The caller holds the context's mutex, or no other goroutine has the context yet.
func (c *opened) addQueue(entries int) (*completionQueue, error) {
	q := &completionQueue{need: c.sharedDepth()}
	cq, err := c.dev.CreateCQ(max(entries, q.need), c.channel, c.vector)
	if err != nil {
		return nil, err
	}
	q.cq = cq
	c.done.mustLock()
	defer c.done.unlock()
	if c.done.armed {
		if err := cq.ReqNotify(false); err != nil {
			return nil, errors.Join(err, cq.Close())
		}
	}
	c.done.queues = append(c.done.queues, q)
	return q, nil
}

func (c *opened) sharedDepth() int {
	if c.shared == nil {
		return 0
	}
	return c.shared.depth
}

// reserve finds room for the completions of a connection: in a queue that has some, in the last queue made larger, or
// in one more queue. The caller holds the context's mutex.
func (c *opened) reserve(n *conn, entries int) error {
	q, err := c.roomFor(entries)
	if err != nil {
		return err
	}
	q.need += entries
	n.cq, n.entries = q, entries
	return nil
}

func (c *opened) roomFor(entries int) (*completionQueue, error) {
	for _, q := range c.done.queues {
		if q.need+entries <= q.cq.Len() {
			return q, nil
		}
	}
	limit := c.dev.Query().MaxCQE
	last := c.done.queues[len(c.done.queues)-1]
	twice := min(2*last.cq.Len(), limit)
	if need := last.need + entries; need <= limit && !c.fixed {
		if err := c.resize(last, max(need, twice)); err == nil {
			return last, nil
		}
		c.fixed = true // the next connections do not ask again
	}
	if c.sharedDepth()+entries > limit {
		return nil, fmt.Errorf("%w: a connection needs %d entries of a completion queue, and the device has at most %d: use a smaller option window or srq",
			driver.ErrInvalid, c.sharedDepth()+entries, limit)
	}
	q, err := c.addQueue(max(c.sharedDepth()+entries, twice))
	if err != nil {
		return nil, fmt.Errorf("%w: the completion queues are full, and the device makes no further one (%w): use fewer peers a context",
			driver.ErrBusy, err)
	}
	return q, nil
}

func (c *opened) resize(q *completionQueue, entries int) error {
	c.done.mustLock()
	defer c.done.unlock()
	return q.cq.Resize(entries)
}

// unreserve gives back the room of a connection whose queue pairs are closed. A queue without connections is
// closed, unless it is the only one, because each queue makes polls dearer.
func (c *opened) unreserve(n *conn) {
	q := n.cq
	if q == nil {
		return
	}
	q.need -= n.entries
	n.cq, n.entries = nil, 0
	if len(c.done.queues) == 1 || q.need > c.sharedDepth() {
		return
	}
	c.done.mustLock()
	defer c.done.unlock()
	if q.cq.Close() == nil { // a queue pair that could not be closed keeps it
		c.done.queues = slices.DeleteFunc(c.done.queues, func(o *completionQueue) bool { return o == q })
	}
}

// leastRequests is how many requests the queues of a connection must have.
func (c *opened) leastRequests() int {
	const sends = 2 * controlReserve
	switch {
	case c.Props.Track == driver.Large:
		return max(sends, largeReceives)
	case c.shared == nil:
		return max(sends, c.opts.window+controlReceives)
	}
	return sends
}

// depth returns want, or the largest power of two below it that the device grants a queue.
func (c *opened) depth(want int) int {
	return min(want, 1<<(bits.Len(uint(c.dev.Query().MaxQPWR))-1))
}

// rxDepth returns how many requests the queue pair of the peer's data has.
func (c *opened) rxDepth() int {
	if c.windows.Load() {
		return windowSends
	}
	return c.depth(cancelSends)
}

// newQP makes one of a connection's queue pairs, whose requests carry up to inline bytes themselves if the device
// allows for that. reserve has found room for its completions.
func (c *opened) newQP(n *conn, sends, recvs, inline int) (*ibv.QP, error) {
	init := ibv.QPInit{
		SendCQ: n.cq.cq, RecvCQ: n.cq.cq, MaxSendWR: sends, MaxRecvWR: recvs,
		MaxInline: inline, Tag: queueTag(n.Number(), uint8(len(n.qps))),
	}
	if c.shared != nil {
		init.SRQ = c.shared.srq
	}
	qp, err := c.createQP(init)
	if err != nil {
		return nil, err
	}
	n.qps = append(n.qps, qp)
	return qp, nil
}

// inlineSizes are the numbers of inline bytes that createQP tries, the largest first. A device's limit cannot be asked
// for: rdma-core's providers have 1 KiB and more (mlx5, mlx4), 208 or 96 (bnxt_re, by mode), 101 or 48 (irdma, by
// generation), 96 (erdma), 80 (siw), 64 (hns), or none.
var inlineSizes = [...]int{inlineSize, 208, 160, 128, 101, 96, 80, 64, 48, 32, 16, 8, 0}

// vendorMicrosoft is the vendor of MANA adapters. Their provider grants inline bytes, and then does not look at the
// request's flag for them.
const vendorMicrosoft = 0x1414

// tryQueuePair makes a queue pair and frees it: the number of inline bytes is known afterwards.
func (c *opened) tryQueuePair() error {
	q := c.done.queues[0].cq
	qp, err := c.createQP(ibv.QPInit{SendCQ: q, RecvCQ: q, MaxSendWR: 1, MaxRecvWR: 1, MaxInline: inlineSize})
	if err != nil {
		return cmp.Or(noRC(c.Props.Device, err), err)
	}
	return qp.Close()
}

// createQP makes a queue pair with as many inline bytes as the device grants, at most init.MaxInline. Some devices
// refuse to make one with more, others grant less than was asked for. It remembers the limit for later queue pairs.
func (c *opened) createQP(init ibv.QPInit) (*ibv.QP, error) {
	var first error
	for _, size := range inlineSizes {
		if size > c.inline || size > init.MaxInline {
			continue
		}
		asked := init
		asked.MaxInline = size
		qp, err := c.pd.CreateQP(asked)
		if err == nil {
			if granted := min(size, qp.Caps().MaxInline); granted < init.MaxInline {
				c.inline = min(c.inline, granted)
			}
			return qp, nil
		}
		if first == nil {
			first = err
		}
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return nil, first
}
