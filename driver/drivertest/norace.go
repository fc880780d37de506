//go:build !race

package drivertest

// raceEnabled makes checks smaller, and leaves out those that the race detector
// would spoil (allocations, CPU time).
const raceEnabled = false
