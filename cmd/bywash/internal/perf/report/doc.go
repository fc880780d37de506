//go:build linux

// Package report presents results of measurements: as a table for people, as JSON or CSV for programs, and as a
// picture. A [Reporter] gets each [Result] when it is measured. A [Baseline] is an earlier run to compare results with.
package report
