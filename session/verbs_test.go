//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/bywash/bywash/internal/lab/provider"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/rdv"
)

// Put and Get are never chosen where Cooperative is possible: here the device does them, in one piece and in chunks.
func TestEveryModeWorksOverVerbs(t *testing.T) {
	verbsRail(t)
	for m := range rdv.Modes {
		for _, chunk := range []int{0, 100_000} {
			t.Run(fmt.Sprintf("%v/chunk %d", m, chunk), func(t *testing.T) {
				rails := both(verbsRail(t))
				s := joinAll(t, 2, func(rank int, c *session.Config) { c.Rails, c.Mode, c.Chunk = rails[rank], &m, chunk })
				for _, n := range []int{1, 8193, 1<<20 + 3} {
					transfer(t, s[0], s[1], n)
					transfer(t, s[1], s[0], n)
				}
				transfer(t, s[0], s[0], 1<<20) // oneself
			})
		}
	}
}

// Two ranks exchange everything on the adapters of each profile, in each mode, and notice each other's death.
func TestSessionsAsProvider(t *testing.T) {
	lib, profiles := provider.Build(t), provider.Profiles
	if testing.Short() {
		profiles = profiles[:1]
	}
	for _, profile := range profiles {
		t.Run(profile, func(t *testing.T) {
			provider.Run(t, lib, profile, "^Test(EveryDriverCarriesASession|EveryModeWorksOverVerbs|DeathIsNoticedOverEveryDriver)$"+
				"/^(verbs$|null|put|get|cooperative)")
		})
	}
}

// Of two rails over RDMA either is lost in the middle of everything: nothing is, and a late write of the
// device lands nowhere.
func TestMessagesGoOnWhenARailOfVerbsIsLost(t *testing.T) {
	verbsRail(t)
	const messages, shorts = 2, 300 // an emulated machine moves some 40 MB/s
	rng := rand.New(rand.NewPCG(seed(t), 6))
	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	for i := range rounds {
		l := railLoss{rank: i % 2, rail: (i + i/2) % 2, moment: rng.Uint64N(messages * lossSize)}
		ok := t.Run(fmt.Sprintf("%d", i), func(t *testing.T) {
			rails := both(verbsRail(t), verbsRail(t))
			l.run(t, joinAll(t, 2, func(rank int, c *session.Config) { c.Rails = rails[rank] }), messages, shorts)
		})
		if !ok {
			t.Fatalf("%+v", l)
		}
	}
}
