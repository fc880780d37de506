package kit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

func TestPacketQueueKeepsOrder(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed: %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var q packetQueue
	var model []*driver.Packet
	for range 20_000 {
		switch rnd.IntN(3) {
		case 0, 1:
			if q.full() != (len(model) == PacketQueueDepth) {
				t.Fatalf("full: %v with %d packets", q.full(), len(model))
			}
			if p := new(driver.Packet); !q.full() {
				q.push(p)
				model = append(model, p)
			} else if got := q.pop(); got != model[0] {
				t.Fatal("a full queue pops another packet than its oldest")
			} else {
				model = model[1:]
			}
		case 2:
			if len(model) == 0 {
				continue
			}
			k := rnd.IntN(len(model))
			if p := model[k]; !q.remove(p) || q.remove(p) {
				t.Fatal("a packet is not removed exactly once")
			}
			model = slices.Delete(model, k, k+1)
		}
		if q.empty() != (len(model) == 0) || !q.empty() && q.first() != model[0] {
			t.Fatalf("the queue disagrees with the model of %d packets", len(model))
		}
	}
}
