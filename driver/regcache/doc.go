// Package regcache caches memory registrations.
package regcache
