//go:build linux && race

package workload

// RaceEnabled is of the race detector.
const RaceEnabled = true
