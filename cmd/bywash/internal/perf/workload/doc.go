//go:build linux

// Package workload measures drivers and sessions: [Open] makes a [bench.Bench] over a driver of the registry, or over a
// session.
//
// A driver has a context for each track and an instance on each (link.go). Messages go over the small track (small.go),
// over the large one (large.go, with updates of rdv data in update.go), or by one-sided operations (onesided.go).
// stream.go runs tests of throughput, and control.go carries messages between the ends during a measurement.
// connect.go, group.go and idlepeers.go are further tests. A session of two or more ranks is in session.go and
// ranks.go.
package workload
