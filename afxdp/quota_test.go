//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Each connection, and control packets, have their own chunks whatever other connections do.
func TestQuotasLeaveEachItsChunks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var q quotas
	q.init(8, 1400)
	total := q.chunks() - controlChunks
	held := map[uint16]int{} // of open and closed ones
	var open []uint16
	sum := 0
	for range 200_000 {
		switch k := r.IntN(100); {
		case k == 0 && len(open) < q.room:
			if id, ok := q.open(); ok {
				if _, used := held[id]; used || id == 0 {
					t.Fatalf("quota %d is given twice", id)
				}
				open, held[id] = append(open, id), 0
			} else if len(held) < q.room {
				t.Fatalf("%d connections, and no room for another one of %d", len(held), q.room)
			}
		case k == 1 && len(open) > 0 && r.IntN(4) == 0:
			n := r.IntN(len(open))
			id := open[n]
			open[n] = open[len(open)-1]
			open = open[:len(open)-1]
			q.close(id)
			if held[id] == 0 {
				delete(held, id)
			}
		case k < 70 && len(open) > 0:
			id := open[r.IntN(len(open))]
			took := q.take(id)
			if !took && held[id] < q.least {
				t.Fatalf("connection with %d chunks of its %d gets none", held[id], q.least)
			}
			if took {
				held[id]++
				sum++
			}
		default:
			id := uint16(1 + r.IntN(q.room))
			if held[id] == 0 {
				continue
			}
			q.back(id)
			held[id]--
			sum--
			if held[id] == 0 && q.of[id].closed {
				delete(held, id)
			}
		}
		if sum > total || q.over > commonChunks || q.over < 0 {
			t.Fatalf("%d chunks of %d are held, %d of %d common ones", sum, total, q.over, commonChunks)
		}
	}
}
