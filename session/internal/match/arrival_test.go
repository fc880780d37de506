package match

import "testing"

// oldHash is a hash without a secret, which any sender can compute.
func oldHash(tag uint64) uint64 {
	h := tag * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// A sender chooses the tags of its messages, but not the bucket that they lie in: else a receive, of whatever source,
// might have to search all of them.
func TestSendersCannotChooseABucket(t *testing.T) {
	table := New()
	const n = 4096
	for tag := uint64(0); table.Waiting() < n; tag++ {
		if oldHash(tag)&2047 == 0 {
			table.Keep(&Arrival{Tag: tag})
		}
	}
	longest := 0
	for i := range table.buckets {
		k := 0
		for a := table.buckets[i].first; a != nil; a = a.below {
			k++
		}
		longest = max(longest, k)
	}
	if longest > 64 {
		t.Errorf("%d of %d messages lie in one of %d buckets", longest, n, len(table.buckets))
	}
}

// Arrivals that were taken leave no slots behind; the others stay in their order.
func TestSlotsAreUsedAgain(t *testing.T) {
	table := New()
	as := make([]Arrival, 100)
	for i := range as {
		as[i].Tag = uint64(i)
		table.Keep(&as[i])
	}
	pattern := Pattern{From: Any, Mask: 0}
	for i := range 100_000 {
		a := table.Peek(&pattern)
		if a != &as[i%len(as)] || !table.Take(a) {
			t.Fatalf("message %d is not the oldest", i)
		}
		table.Keep(a)
	}
	if c := cap(table.slots); c > 4*len(as) {
		t.Errorf("%d slots for %d messages, want at most four for each", c, len(as))
	}
}

// BenchmarkPeekNothing is what a receive with a wildcard costs that finds none of many messages.
// A search that names no source does not read the slots of a burst that was received, though one message of it stays.
func TestTakenArrivalsSlowNoSearch(t *testing.T) {
	table := New()
	burst := make([]Arrival, 10_000)
	for i := range burst {
		burst[i] = Arrival{From: 1, Tag: uint64(i)}
		table.Keep(&burst[i])
	}
	for i := range burst {
		if i != 5000 {
			table.Take(&burst[i])
		}
	}
	if n := len(table.slots) - table.first; n > 2*minCompact {
		t.Errorf("a search reads %d slots, and one message is there", n)
	}
	if a := table.Peek(&Pattern{From: Any, Tag: 5000, Mask: Exact}); a != &burst[5000] {
		t.Errorf("found %v, want the message that stayed", a)
	}
}

func BenchmarkPeekNothing(b *testing.B) {
	table := New()
	for i := range uint64(1 << 16) {
		table.Keep(&Arrival{Tag: i})
	}
	p := Pattern{From: Any, Tag: 1 << 40, Mask: Exact}
	for b.Loop() {
		table.Peek(&p)
	}
}

// An arrival that is given back lies where it was among those of its source.
func TestArrivalGivenBackKeepsItsPlace(t *testing.T) {
	table := New()
	as := make([]Arrival, 6)
	for i := range as {
		as[i].From, as[i].Tag = uint32(i%2), uint64(i)
	}
	as[0].Order = table.NextOrder() // a receive takes it at once
	for i := range as[1:] {
		table.Keep(&as[i+1])
	}
	table.Take(&as[2])
	table.KeepAgain(&as[2])
	table.KeepAgain(&as[0])
	for source := range uint32(2) {
		for i := int(source); i < len(as); i += 2 {
			a := table.Peek(&Pattern{From: source})
			if a != &as[i] {
				t.Fatalf("the oldest arrival of source %d is %v, want number %d", source, a, i)
			}
			table.Take(a)
		}
	}
}
