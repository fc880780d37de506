// Package perf measures drivers and, as baselines, the kernel's own sockets, between processes that are the ranks of a
// job of session/launch. Rank 0 leads (it has the plan, times the rounds and reports), the others follow (end.go). On
// one machine the lead serves the rendezvous and starts the others, between two the listener does (gather.go, serve.go).
//
// All ranks do the same steps in the same order and tell each other by Exchange how they fared (team.go). A subject
// under test is a bench (bench.go): a driver (link.go and small.go, large.go, onesided.go, connect.go), a session
// (session.go) or a socket (sock*.go). The lead runs each case in rounds of an agreed number of operations, so that the
// hot loops need no stop condition but their count (lead.go).
package perf
