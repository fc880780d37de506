//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import "github.com/bywash/bywash/qnix/nic"

// Tags of a peer that is gone.
//
// The NIC keeps whole messages that have no receive, also while the link to the sender is lost. The peer may send such a
// message even after the link has come back, until it reads that the link was lost. A later connection with the same
// tags would receive it as its own. So the tags of a connection whose peer is gone are unclean: no other connection gets
// them. They are kept for the peer's incarnation until it connects again, unless the peer was at the same NIC, to which
// no link is lost. When it connects again its old connections have no messages under way any more, since it makes no
// connection while one of these is left. Now a receive is posted to each unclean tag and cancelled. It takes a message,
// or rings that it was cancelled: then the tag is clean.

// peerTags are the tags of the connections to a peer.
type peerTags struct {
	idAllocator
	unclean []idRange
}

// cleaner cleans tags one after the other.
type cleaner struct {
	receive  int  // context
	begun    bool // the peer has connected again
	posted   bool // the context has a receive
	canceled bool // its cancel was posted
	done     int  // tags of the first unclean range that are clean
}

// clean is called by the background goroutine, which holds ctx.Mu. It does what is possible now.
func (p *peer) clean() {
	c, k := p.ctx, &p.cleaner
	for {
		if k.posted {
			switch s, _ := c.proc.ReceiveDoorbell(k.receive); s {
			case nic.Pending:
				k.canceled = k.canceled || c.post(c.proc.CancelReceive(k.receive))
				return
			case nic.Canceled:
				p.cleaned()
			case nic.Done, nic.Truncated, nic.Fault: // a message, which another may follow
			default:
				k.begun = false // until the peer connects again
			}
			k.posted = false
		}
		if !k.begun || len(p.tags.unclean) == 0 {
			return
		}
		m := nic.Message{Peer: p.name, Tag: uint16(p.tags.unclean[0].at + k.done), Flags: nic.Doorbell | nic.Inline}
		if !c.post(c.proc.Post(nic.Receive, k.receive, &m)) {
			return
		}
		k.posted, k.canceled = true, false
	}
}

// cleaned counts a tag that is clean.
func (p *peer) cleaned() {
	r := p.tags.unclean[0]
	if p.cleaner.done++; p.cleaner.done == r.n {
		p.tags.put(r.at, r.n)
		p.tags.unclean, p.cleaner.done = p.tags.unclean[1:], 0
	}
}
