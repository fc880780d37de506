package rdv

// Rail is what a receiver may use of a rail.
type Rail struct {
	Usable bool
	Chunk  int // bytes of a chunk at most; at least 1
	Window int // chunks under way at most
}

// Receiver is the receiving half. It plans chunks; the caller posts them and sends the RTRs.
type Receiver struct {
	want   int
	next   int // bytes from here on were never asked for
	got    int
	id     uint32
	rails  [MaxRails]Rail
	under  [MaxRails]int // chunks under way, by rail
	chunks [window]Chunk // under way
	n      int
	redo   []Chunk // ranges to be asked for again
	failed bool
}

// Begin starts the reception of the first want bytes of a message.
func (r *Receiver) Begin(want int, rails ...Rail) {
	*r = Receiver{want: want, redo: r.redo[:0]}
	copy(r.rails[:], rails)
}

// Next gives a chunk that is to be posted and asked for now. False if there is
// none: all are under way, or the rails are busy.
func (r *Receiver) Next() (Chunk, bool) {
	if r.failed || r.n == window || len(r.redo) == 0 && r.next == r.want {
		return Chunk{}, false
	}
	// The emptiest rail; equals in order.
	best := -1
	for i := range r.rails {
		if u := &r.rails[i]; u.Usable && r.under[i] < u.Window && (best < 0 || r.under[i] < r.under[best]) {
			best = i
		}
	}
	if best < 0 {
		return Chunk{}, false
	}
	c := Chunk{ID: r.id, Rail: uint8(best)}
	if k := len(r.redo) - 1; k >= 0 {
		old := &r.redo[k]
		c.Off, c.Len = old.Off, min(old.Len, r.rails[best].Chunk)
		old.Off += c.Len
		if old.Len -= c.Len; old.Len == 0 {
			r.redo = r.redo[:k]
		}
	} else {
		c.Off, c.Len = r.next, min(r.want-r.next, r.rails[best].Chunk)
		r.next += c.Len
	}
	r.id++
	r.chunks[r.n] = c
	r.n++
	r.under[best]++
	return c, true
}

// take removes a chunk from those under way.
func (r *Receiver) take(id uint32) (Chunk, bool) {
	for i := range r.n {
		if c := r.chunks[i]; c.ID == id {
			r.n--
			r.chunks[i] = r.chunks[r.n]
			r.under[c.Rail]--
			return c, true
		}
	}
	return Chunk{}, false
}

// Done reports to the receiver that a chunk's bytes have arrived. It returns false, and changes nothing, if no such
// chunk is in progress.
func (r *Receiver) Done(id uint32) bool {
	c, ok := r.take(id)
	if ok {
		r.got += c.Len
	}
	return ok
}

// Failed reports to the receiver that a chunk will not arrive, and that nothing of it will be written any more. Its
// bytes are requested again. It returns false as Done does.
func (r *Receiver) Failed(id uint32) bool {
	c, ok := r.take(id)
	if !ok {
		return false
	}
	r.redo = append(r.redo, c)
	return true
}

// Lost reports to the receiver that a rail takes no more chunks. Its chunks in progress still have to be reported by
// Done or Failed.
func (r *Receiver) Lost(rail uint8) {
	r.rails[rail].Usable = false
}

// Use lets a rail take chunks from now on: a reserve rail, when the rails in use are lost.
func (r *Receiver) Use(rail uint8, u Rail) { r.rails[rail] = u }

// Stuck reports whether no usable rail is left for bytes that are missing.
func (r *Receiver) Stuck() bool {
	if len(r.redo) == 0 && r.next == r.want {
		return false
	}
	for i := range r.rails {
		if r.rails[i].Usable {
			return false
		}
	}
	return true
}

// Fail ends the message: no further chunk is asked for.
func (r *Receiver) Fail() { r.failed = true }

// Hold is how many chunks are under way: memory that drivers may still write.
func (r *Receiver) Hold() int { return r.n }

// Complete reports whether all bytes have arrived.
func (r *Receiver) Complete() bool { return r.got == r.want && r.n == 0 }

// Over reports whether the message has failed and its memory is free.
func (r *Receiver) Over() bool { return r.failed && r.n == 0 }

// First is the chunk under way that was asked for first.
func (r *Receiver) First() (Chunk, bool) {
	if r.n == 0 {
		return Chunk{}, false
	}
	first := 0
	for i := 1; i < r.n; i++ {
		if r.chunks[i].ID < r.chunks[first].ID {
			first = i
		}
	}
	return r.chunks[first], true
}
