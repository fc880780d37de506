package session

// slab gives numbers to things that a peer will name. A number is an index with
// a generation, so that one that was given back means nothing any more.
type slab[T any] struct {
	items []slabItem[T]
	free  []uint32
}

type slabItem[T any] struct {
	v    T
	gen  uint32
	used bool
}

func (s *slab[T]) add(v T) uint64 {
	var i uint32
	if k := len(s.free); k > 0 {
		i = s.free[k-1]
		s.free = s.free[:k-1]
	} else {
		i = uint32(len(s.items))
		s.items = append(s.items, slabItem[T]{})
	}
	it := &s.items[i]
	if it.gen++; it.gen == 0 {
		it.gen = 1 // 0 is the number of nothing
	}
	it.v, it.used = v, true
	return uint64(it.gen)<<32 | uint64(i)
}

func (s *slab[T]) get(id uint64) (v T, ok bool) {
	i := uint32(id)
	if uint64(i) >= uint64(len(s.items)) || !s.items[i].used || s.items[i].gen != uint32(id>>32) {
		return v, false
	}
	return s.items[i].v, true
}

func (s *slab[T]) has(id uint64) bool {
	_, ok := s.get(id)
	return ok
}

func (s *slab[T]) remove(id uint64) {
	if _, ok := s.get(id); !ok {
		return
	}
	var none T
	it := &s.items[uint32(id)]
	it.v, it.used = none, false
	s.free = append(s.free, uint32(id))
}

// each calls f with everything there; f may remove it.
func (s *slab[T]) each(f func(id uint64, v T)) {
	if len(s.free) == len(s.items) { // nothing is there: the items are as many as there once were
		return
	}
	for i := range s.items {
		if it := &s.items[i]; it.used {
			f(uint64(it.gen)<<32|uint64(i), it.v)
		}
	}
}
