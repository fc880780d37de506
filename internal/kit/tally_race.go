//go:build race

package kit

import "sync/atomic"

// Tally is a counter; see the version without the race detector.
type Tally struct{ v atomic.Uint64 }

// Add adds n.
func (t *Tally) Add(n uint64) { t.v.Add(n) }

// Load returns the count.
func (t *Tally) Load() uint64 { return t.v.Load() }
