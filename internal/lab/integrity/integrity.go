// Package integrity marks what a test finds wrong with data: wrong bytes, wrong order, messages that are lost or come
// twice, memory and descriptors that are not freed. hack/test runs a failed test again and calls one that passes then
// unsteady, but never one that failed with this mark.
package integrity

import "fmt"

// Errorf returns an error with the mark.
func Errorf(format string, args ...any) error { return fmt.Errorf("INTEGRITY: "+format, args...) }
