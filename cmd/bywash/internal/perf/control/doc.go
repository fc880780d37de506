//go:build linux

// Package control runs measurements: [Run] leads one, [Serve] is a listener that follows leads on other machines, and
// [ServeChild] follows the lead that has started it.
//
// The processes of a measurement are the ranks of an embedded job of session/launch. Rank 0 leads: it has the plan,
// times the rounds and reports (lead.go). On one machine it serves the rendezvous and starts the others; between two
// the listener serves, and the lead joins (gather.go, serve.go). A session would disturb the measurement with its
// goroutines; a job has one that sleeps.
//
// All ranks take the same steps in the same order (end.go). At each step they exchange messages (team.go): every rank
// reports its result by Exchange, and all ranks alike go on, skip the case or end. No rank listens within the measuring
// loops: a failure there aborts the job, which stops the loops of the others, as the death of a rank does.
package control
