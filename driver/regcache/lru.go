package regcache

import "container/heap"

// lru is a heap of the cached regions by when they were acquired last. A hit
// only stamps its region; the heap learns of it when the region comes to the
// top. So a key is never newer than its region's stamp, and the region on top
// whose key is its stamp is the one unused for the longest.
type lru[H any] []lruItem[H]

type lruItem[H any] struct {
	key    uint64
	region *Region[H]
}

func (l lru[H]) Len() int           { return len(l) }
func (l lru[H]) Less(i, j int) bool { return l[i].key < l[j].key }
func (l lru[H]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].region.pos, l[j].region.pos = int32(i), int32(j)
}

func (l *lru[H]) Push(x any) {
	item := x.(lruItem[H])
	item.region.pos = int32(len(*l))
	*l = append(*l, item)
}

func (l *lru[H]) Pop() any {
	last := len(*l) - 1
	item := (*l)[last]
	item.region.pos = -1
	(*l)[last] = lruItem[H]{}
	*l = (*l)[:last]
	return item
}

func (l *lru[H]) add(r *Region[H]) { heap.Push(l, lruItem[H]{r.stamp.Load(), r}) }

func (l *lru[H]) remove(r *Region[H]) {
	if r.pos >= 0 {
		heap.Remove(l, int(r.pos))
	}
}

// evict retires the region that was not acquired for the longest time, of
// those not in use, and returns it; nil if there is none. Those in use that it
// finds are parked: Release brings them back.
func (l *lru[H]) evict() *Region[H] {
	for len(*l) > 0 {
		top := &(*l)[0]
		if now := top.region.stamp.Load(); now != top.key {
			top.key = now
			heap.Fix(l, 0)
			continue
		}
		r := top.region
		for {
			s := r.state.Load()
			if s&countMask == 0 && r.state.CompareAndSwap(s, s|retired) {
				l.remove(r)
				return r
			}
			if s&countMask != 0 && r.state.CompareAndSwap(s, s|parked) {
				l.remove(r)
				break
			}
		}
	}
	return nil
}
