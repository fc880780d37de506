package regcache

import "slices"

// index finds regions by address. It is never changed: the cache publishes a
// new one for each change, and readers need no lock. Its regions do not
// overlap. It has two levels, so that a change copies one leaf and the list of
// leaves, some 10 KiB for 100 000 regions.
type index[H any] struct {
	starts []uintptr // of each leaf's first region, ascending
	leaves []*leaf[H]
}

type leaf[H any] struct {
	starts  []uintptr // of each region, ascending
	regions []*Region[H]
}

// maxLeaf balances what a change copies of the leaf and of the list.
const maxLeaf = 256

// floor returns the last i with starts[i] <= p, or -1.
func floor(starts []uintptr, p uintptr) int {
	lo, hi := 0, len(starts)
	for lo < hi {
		m := int(uint(lo+hi) / 2)
		if starts[m] <= p {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo - 1
}

// find returns the region with the greatest start that is at most p, or nil.
func (x *index[H]) find(p uintptr) *Region[H] {
	i := floor(x.starts, p)
	if i < 0 {
		return nil
	}
	l := x.leaves[i]
	return l.regions[floor(l.starts, p)]
}

// touching returns the regions, in order, of which a byte lies in the range or
// next to it.
func (x *index[H]) touching(lo, hi uintptr) []*Region[H] {
	var found []*Region[H]
	for i := max(floor(x.starts, lo), 0); i < len(x.leaves) && x.starts[i] <= hi; i++ {
		l := x.leaves[i]
		for j := max(floor(l.starts, lo), 0); j < len(l.regions) && l.starts[j] <= hi; j++ {
			if l.regions[j].hi >= lo {
				found = append(found, l.regions[j])
			}
		}
	}
	return found
}

// overlapping returns the regions, in order, of which a byte lies in [lo, hi).
func (x *index[H]) overlapping(lo, hi uintptr) []*Region[H] {
	found := x.touching(lo, hi-1)
	if len(found) > 0 && found[0].hi == lo {
		found = found[1:]
	}
	return found
}

// edit returns an index without gone, which are neighbours in it and in order,
// and with add unless that is nil. One of the two there must be.
func (x *index[H]) edit(gone []*Region[H], add *Region[H]) *index[H] {
	var first, last uintptr // starts of what goes
	if len(gone) > 0 {
		first, last = gone[0].lo, gone[len(gone)-1].lo
	}
	low, high := first, last // starts of what changes
	if add != nil {
		low, high = add.lo, add.lo
		if len(gone) > 0 {
			low, high = min(first, low), max(last, high)
		}
	}
	i := max(floor(x.starts, low), 0)
	j, room := i, 1 // the leaves [i, j) are replaced: those that change, and more while they would be small
	for ; j < len(x.leaves) && (x.starts[j] <= high || room-len(gone) < maxLeaf/4); j++ {
		room += len(x.leaves[j].regions)
	}
	keep := make([]*Region[H], 0, room)
	for _, l := range x.leaves[i:j] {
		for _, r := range l.regions {
			if add != nil && add.lo < r.lo && (len(keep) == 0 || keep[len(keep)-1].lo < add.lo) {
				keep = append(keep, add)
			}
			if len(gone) == 0 || r.lo < first || r.lo > last {
				keep = append(keep, r)
			}
		}
	}
	if add != nil && (len(keep) == 0 || keep[len(keep)-1].lo < add.lo) {
		keep = append(keep, add)
	}
	return x.replace(i, j, split(keep))
}

// replace returns an index with the leaves [i, j) replaced.
func (x *index[H]) replace(i, j int, leaves []*leaf[H]) *index[H] {
	starts := make([]uintptr, len(leaves))
	for k, l := range leaves {
		starts[k] = l.starts[0]
	}
	return &index[H]{
		starts: slices.Concat(x.starts[:i], starts, x.starts[j:]),
		leaves: slices.Concat(x.leaves[:i], leaves, x.leaves[j:]),
	}
}

// split makes leaves of equal size. It keeps regions.
func split[H any](regions []*Region[H]) []*leaf[H] {
	n := (len(regions) + maxLeaf - 1) / maxLeaf
	leaves := make([]*leaf[H], n)
	for i := range leaves {
		part := regions[i*len(regions)/n : (i+1)*len(regions)/n]
		if n > 1 {
			part = slices.Clone(part) // not to keep the others' for as long
		}
		starts := make([]uintptr, len(part))
		for j, r := range part {
			starts[j] = r.lo
		}
		leaves[i] = &leaf[H]{starts, part}
	}
	return leaves
}
