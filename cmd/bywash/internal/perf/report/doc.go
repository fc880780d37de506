// Package report presents results of measurements: as a table for people, as JSON or CSV for programs, and as a
// picture. A [Reporter] gets each [Result] as it comes. A [Baseline] is an earlier run, with whose figures results are
// compared.
package report
