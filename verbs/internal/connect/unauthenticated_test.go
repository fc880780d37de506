//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/bywash/bywash/internal/lab/attack"
)

// An unauthenticated program attacks the socket of oob, in each way (attack.Unauthenticated documents
// what is asserted).
func TestUnauthenticated(t *testing.T) {
	onHost(t)
	for _, way := range []string{"connections", "garbage", "slow bytes"} {
		t.Run(way, func(t *testing.T) { attack.Unauthenticated(t, way, openTarget) })
	}
}

// openTarget is two hosts, of which the attacker has the address of the first.
func openTarget(t *testing.T, _ *rand.Rand) *attack.Target {
	defaultTimeout := func(c *Config, _ *Port) { c.Timeout = 0 } // those of other tests are short
	a, b := aHost(t, defaultTimeout), aHost(t, defaultTimeout)
	goesOn := func(what string) {
		t.Helper()
		x, y := a.endpoint(b, nil), b.endpoint(a, nil)
		attack.Await(t, "two endpoints connect "+what, func() bool {
			for _, e := range []*testEnd{x, y} {
				if e.State() > Ready {
					t.Fatalf("connecting %s: %v", what, e.Err())
				}
			}
			return x.State() == Ready && y.State() == Ready
		})
		x.finalize(t)
		y.finalize(t)
	}
	goesOn("at first")
	return &attack.Target{
		Network: "tcp", Addr: a.address(), GoesOn: goesOn, Unauthenticated: 2 * 2 * maxUnauthenticated,
		Close: func() error { return errors.Join(a.m.Close(), b.m.Close()) },
	}
}
