//go:build linux

// Package bench has the types that the parts of bywash perf share: tests and cases (tests.go), the lead's plan
// (plan.go), and the [Bench] that a subject under test implements (bench.go). It also has the tools of measuring loops:
// a [Spinner] that notices the end of a measurement, a [Recorder] of times and a pattern that shows damaged bytes.
//
// A bench measures between two ranks, or more. All run the same calls in the same order:
//
//	Connect                            once
//	Check, Prepare, Start              for each case
//	Run                                for each round of it
//	Inspect                            within a round, if the lead asks a passive rank to check what it put
//	Finish                             at the end of the case
//	Close                              once
package bench
