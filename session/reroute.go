package session

import "github.com/bywash/bywash/session/internal/rdv"

// continuesWithout reports whether a message can continue without a rail that has failed: its chunks are then
// requested over the others.
func (in *incoming) continuesWithout(l *link, err error) bool {
	l.ends(err)
	if !in.g.others(l) || !in.confirm || in.err != nil || !l.dead && !isGone(err) {
		return false
	}
	l.down(err)
	in.Lost(l.rail)
	return true
}

// reroute continues a message, all of whose rails are lost, over other rails, or fails it: in mode Put over a rail
// that can do it, else in mode Cooperative, else by fragments. It first waits until no driver uses memory of the
// message, so that two modes never overlap. It reports whether there is a chunk to begin.
func (in *incoming) reroute() bool {
	g := in.g
	if !in.confirm || g.lead == nil || in.mode == rdv.Null {
		in.fail(ErrBroken)
		return false
	}
	if in.Hold() > 0 {
		return false
	}
	if in.mode == rdv.Put {
		for _, l := range g.links {
			if !l.dead && l.modes().Has(rdv.Put) {
				in.Use(l.rail, l.plan(rdv.Put, in.want))
				return true
			}
		}
	}
	in.mode = rdv.Null
	var rails [rdv.MaxRails]rdv.Rail
	g.stripe(in.want, &rails)
	for i := range rails {
		if rails[i].Usable {
			in.mode = rdv.Cooperative
			in.Use(uint8(i), rails[i])
		}
	}
	if in.mode == rdv.Null {
		in.Use(g.lead.rail, g.lead.plan(rdv.Null, in.want))
	}
	return true
}
