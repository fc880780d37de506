//go:build !race

package kit

// Tally is a counter with one writer at a time and any number of readers, free
// of atomic read-modify-write: an aligned 64-bit word is never torn, and a
// reader that is late by a moment is in order for statistics. Under the race
// detector it is atomic.
type Tally struct{ v uint64 }

// Add adds n. Only one goroutine at a time may call it.
func (t *Tally) Add(n uint64) { t.v += n }

// Load returns the count.
func (t *Tally) Load() uint64 { return t.v }
