//go:build linux

// Package workload measures drivers and sessions: [Open] makes a [bench.Bench] over a driver of the registry, or over a
// session.
//
// A driver has a context for each track and an instance on each (link.go). A sender (sender.go) and a receiver
// (receiver.go) move the messages of a case over either track, with updates of rdv data (update.go); rounds.go makes
// ping-pongs and streams of them. onesided.go has puts, gets and atomics. control.go carries messages between the ends
// during a measurement. connect.go, group.go and idlepeers.go are further tests. A session of two or more ranks is in
// session.go and ranks.go.
package workload
