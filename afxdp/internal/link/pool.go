package link

// Pool is the frames that arriving fragments may occupy. Endpoints whose packets arrive in the same frames share one,
// so that what one of them holds cannot be promised by another. Its users call one at a time.
//
// Each connection has its share from the call on, whatever the others hold: a call for which there is none fails. A
// connection that is used gets more, out of what is not kept for connections to come.
type Pool struct {
	frames int // all
	spare  int // those that no connection has credit for
	kept   int // for the shares of all connections that there will be
	shares int // of those that there are
}

// NewPool makes a pool of frames, of which kept are for the first connections only; see [Share]. A quarter of them is
// always kept for further ones.
func NewPool(frames, kept int) *Pool {
	return &Pool{frames: frames, spare: frames, kept: min(kept, frames)}
}

// Reserved is how many frames peers may fill now: their credit, and what handlers have not released.
func (p *Pool) Reserved() int { return p.frames - p.spare }

// more is how many frames connections may take beyond their shares.
func (p *Pool) more() int { return p.spare - max(p.frames/4, p.kept-p.shares) }

// Share is how many frames are reserved for a connection at least, with packets of up to mtu bytes in frames of unit
// bytes.
func Share(mtu, unit int) int { return max(minShare, 2*units(mtu, unit)) }
