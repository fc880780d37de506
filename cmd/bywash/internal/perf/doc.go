// Package perf measures drivers and, as baselines, the kernel's own sockets,
// between two processes. One leads (it has the plan, times the runs and
// reports), the other follows; they talk over a control connection
// (control.go) that is a socket pair on one machine and authenticated TCP
// between two (auth.go). A subject under test is a bench (bench.go): a driver
// (link.go and small.go, large.go, onesided.go, connect.go) or a socket
// (sock*.go). The lead runs each case in rounds of an agreed number of
// iterations, so that the hot loops need no stop condition but their count
// (lead.go, follow.go).
package perf
