//go:build !linux

package descriptors

import "math"

// Free is not known here.
func Free() (free, limit int) { return math.MaxInt32, math.MaxInt32 }
