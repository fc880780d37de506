package drivertest

import "testing"

// short reports whether checks shall be brief. Peer processes learn sizes from
// the test, so that only the test asks.
func short() bool { return testing.Testing() && testing.Short() }
