//go:build linux

// Package toy is a simple driver over Unix stream sockets that has every part
// of the contract and, on request, one of the [Faults]. The conformance suite
// is tried against it: without a fault every check passes, and each check fails
// for at least one fault.
//
// Options: "dir" is the directory of the sockets, "fault" one of Faults.
//
// A connection is one stream of frames. A goroutine of each connection writes
// them and another reads them; messages wait in an inbox, bounded by credits,
// until the user's goroutine copies them out. One-sided requests are served by
// the reading goroutine of the target. What the contract asks for besides is in
// package kit, as in other drivers: a fault in that part is in a method
// that hides the kit's.
package toy
