package link

// Pool counts the frames that arriving fragments may occupy. Endpoints whose packets arrive in the same frames share
// one, so that no two of them promise the same frame. Its methods and the endpoints that use it must be called one at a
// time.
//
// Each connection reserves its share when it is created, whatever others hold; without enough frames that fails. A busy
// connection gets more, except frames that are kept for future connections.
type Pool struct {
	frames int // all
	spare  int // not reserved for a connection
	kept   int // for the shares of all future connections
	shares int // sum of the shares of present connections
}

// NewPool makes a pool of frames, of which kept are reserved for the shares of the first connections (see [Share]). A
// quarter of the frames is always kept for further ones.
func NewPool(frames, kept int) *Pool {
	return &Pool{frames: frames, spare: frames, kept: min(kept, frames)}
}

// Reserved returns how many frames peers may fill now: their credit, and the frames that handlers have not released.
func (p *Pool) Reserved() int { return p.frames - p.spare }

// more returns how many frames connections may take beyond their shares.
func (p *Pool) more() int { return p.spare - max(p.frames/4, p.kept-p.shares) }

// Share returns the least number of frames that are reserved for a connection, with packets of up to mtu bytes in
// frames of unit bytes.
func Share(mtu, unit int) int { return max(minShare, 2*units(mtu, unit)) }
