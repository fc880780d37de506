//go:build linux && !(386 || arm || mips || mipsle)

package drivertest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver/drivertest/internal/toy"
)

// trip is a fault that a check must find: on which track, and what the failure must
// contain.
type trip struct {
	check, fault, track, text string
}

const small, large = "Small", "Large"

// trips shows of each check that it can fail.
var trips = []trip{
	{"OpenOnce", "second-open", small, "second open"},
	{"OpenOnce", "close-twice", small, "second close"},
	{"OpenOnce", "wrong-properties", small, "properties of the context"},
	{"Properties", "any-option", small, "unknown option"},
	{"URL", "same-incarnation", small, "have the incarnation"},
	{"URL", "url-with-space", small, "url has byte"},
	{"Reaches", "reaches-none", small, "reach the peer"},
	{"Reaches", "reaches-all-urls", small, "reach a malformed url"},
	{"Reaches", "reaches-while-open", small, "reach the peer from a closed context"},
	{"AbsentFeatures", "hidden-wait", small, "RecvWaiter: announced false, there true"},

	{"ConnectInAnyOrder", "refuse-early-dial", small, "connect wait"},
	{"ConnectMany", "one-instance-a-peer", small, "connect wait"},
	{"ConnectAbsentPeer", "wait-ignores-context", small, "not back within"},
	{"ConnectAbsentPeer", "connect-blocks", small, "not back within"},
	{"ConnectForeignURL", "any-version", small, "another version"},
	{"ConnectForeignURL", "bare-errors", small, "no \\*driver.Error"},
	{"ConnectSelf", "no-self", small, "connect wait"},
	{"ConnectTwice", "connect-crossed", small, "not within"},
	{"ConnectRestartedPeer", "refuse-after-broken", small, "connect wait"},
	{"ConnectSecret", "any-secret", small, "connected: yes, want no"},
	{"ConnectSecret", "short-secret", small, "open with a secret of 15 bytes"},
	{"PostBeforeConnected", "early-post", small, "post before"},

	{"EveryForm", "wrong-byte-layout", small, "byte .* want"},
	{"EverySize", "wrong-byte", small, "byte .* want"},
	{"EverySize", "wrong-byte", large, "byte .* want"},
	{"EverySize", "overrun", small, "outside of the message was written"},
	{"Order", "reorder", small, "message .* byte"},
	{"Order", "lose-every-7th", small, "message .* byte"},
	{"Busy", "busy-takes", small, "swap|byte 0 of 64 is"},
	{"TooLong", "long-accepted", small, "MaxMessage\\+1"},
	{"TooLong", "long-accepted", large, "MaxMessage\\+1"},
	{"Truncation", "truncate-silently", small, "want \\*TruncatedError"},
	{"ManyInstances", "cross-talk", small, "not within|byte"},

	{"CancelBefore", "cancel-ignored", small, "receive: not within"},
	{"CancelBefore", "write-after-cancel", small, "cancelled buffer was written"},
	{"CancelRace", "write-after-cancel", small, "cancelled buffer was written"},
	{"CancelRace", "write-after-cancel", large, "cancelled buffer was written"},

	{"ProbeFair", "unfair-probe", small, "were of one peer"},
	{"ProbeFair", "probe-forgets", small, "probe: not within|enough"},
	{"ProbeOnce", "probe-twice", small, "between probe and receive"},
	{"ProbeConcurrent", "probe-twice", small, "named to two|success at once"},
	{"ProbeRest", "wait-any-late", small, "notified of messages behind others"},
	{"ProbeEnd", "probe-misses-death", small, "probe: not within"},

	{"WaitSleeps", "burn-cpu", small, "CPU time"},
	{"WaitCancel", "cancel-any-ignored", small, "waiters are woken"},
	{"WaitCancel", "recv-wait-ignores-context", small, "not back within"},
	{"NoLostWakeup", "lost-wakeup", large, "RecvWait: context deadline"},
	{"SendWait", "send-wakeup-lost", large, "SendWait: context deadline"},
	{"SendWait", "send-wakeup-lost", small, "SendWait( of a send that was stuck)?: context deadline"},

	{"RdvDataSize", "rdv-oversize", large, "bytes of rdv data"},
	{"RdvDataDamaged", "rdv-trusted", large, "accepted, want"},
	{"RdvUpdateDamaged", "update-trusted", large, "damaged update"},
	{"Prefetch", "unfetch-stuck", large, "post (send|receive)"},
	{"PrefetchOther", "prefetch-any-layout", large, "other memory"},

	{"PutGet", "put-short", small, "byte .* want"},
	{"PutGet", "get-short", small, "byte .* want"},
	{"Atomics", "atomic-wrong-result", small, "old value"},
	{"AtomicSum", "atomic-torn", small, "sum is"},
	{"Alignment", "any-alignment", small, "atomic of"},
	{"Bounds", "bounds-overflow", small, "operation of 64 bytes"},
	{"KeyDamaged", "key-trusted", small, "import of"},
	{"KeyDamaged", "stale-region", small, "key of another context"},
	{"KeyExpired", "stale-key-works", small, "a region that is gone|second deregister"},
	{"Access", "ignore-access", small, "not allowed"},
	{"DeregisterWhileUsed", "late-write", small, "after Deregister"},
	{"StoppedInside", "left-forgotten", small, "after Deregister"},
	{"Flush", "flush-returns-early", small, "after flush"},
	{"Fence", "fence-ignored", small, "its data are not"},
	{"OpDepth", "op-lost", small, "operation: not within"},

	{"DisconnectDelivers", "closed-as-broken", small, "disconnected in order"},
	{"DisconnectDelivers", "disconnect-drops", large, "connection closed|receive: not within"},
	{"DisconnectDelivers", "zombie", small, "ended"},
	{"Close", "close-leaves-posted", small, "when the context closed"},
	{"Close", "closed-as-broken", small, "peer closed its context"},

	{"Death", "never-notice-death", small, "peer that dies|not noticed"},
	{"Death", "death-spreads", small, "closed"},
	{"DeathIsolated", "death-spreads", small, "closed"},
	{"Stopped", "impatient", small, "broken"},

	{"CloseFrees", "leak-fd", small, "descriptors"},
	{"CloseFrees", "leak-goroutine", small, "goroutines"},
	{"CloseFrees", "leak-mapping", small, "mappings"},
	{"CloseFrees", "leak-file", small, "left behind"},
	{"DeathFrees", "leak-after-death", small, "descriptors"},
	{"OpenSweeps", "no-sweep", small, "left behind"},
	{"Counters", "frozen-counters", small, "messages sent: 0"},
	{"NoAllocations", "alloc", small, "allocations in"},
	{"TooLong", "buffer-late", small, "swap"},
}

func TestEachCheckCanFail(t *testing.T) {
	names := make(map[string]bool)
	for _, c := range checks {
		if names[c.name] {
			t.Errorf("two checks are named %s", c.name)
		}
		names[c.name] = true
		if !slices.ContainsFunc(trips, func(x trip) bool { return x.check == c.name }) {
			t.Errorf("no fault shows that %s can fail", c.name)
		}
	}
	for f := range maps.Keys(toy.Faults) {
		if !slices.ContainsFunc(trips, func(x trip) bool { return x.fault == f }) {
			t.Errorf("no check is tried with the fault %s", f)
		}
	}
	for _, x := range trips {
		if !names[x.check] || toy.Faults[x.fault] == "" {
			t.Errorf("%+v names no check, or no fault", x)
		}
	}
}

// TestFaults runs each check against the toy with a fault that it must find.
func TestFaults(t *testing.T) {
	if os.Getenv(envFault) != "" {
		t.Skip("this is such a run")
	}
	todo := slices.Clone(trips)
	if raceEnabled { // which measures neither: it allocates and computes itself
		todo = slices.DeleteFunc(todo, func(x trip) bool { return x.check == "NoAllocations" || x.check == "WaitSleeps" })
	}
	if testing.Short() || raceEnabled {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed: %d", seed)
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(todo), func(a, b int) { todo[a], todo[b] = todo[b], todo[a] })
		todo = todo[:6]
	}
	next := make(chan trip, len(todo))
	for _, x := range todo {
		next <- x
	}
	close(next)
	var wg sync.WaitGroup
	for range 4 { // most of them wait for a time limit
		wg.Go(func() {
			for x := range next {
				// Some faults show only in some timings, as on real devices, and a busy machine needs more time.
				err := x.run(t, time.Second)
				for limit := 2 * time.Second; err != nil && limit < 10*time.Second; limit *= 2 {
					t.Logf("once more, as %v", err)
					err = x.run(t, limit)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// run runs the check in a process of its own, so that nothing it leaks stays.
func (x trip) run(t *testing.T, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "toy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if x.check == "AtomicSum" || x.fault == "unfair-probe" { // whose failures are no deadlines
		limit = 10 * time.Second
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", fmt.Sprintf("^TestToy%s$/^%s$", x.track, x.check), "-test.short")
	cmd.Env = append(os.Environ(), envFault+"="+x.fault, envDir+"="+dir, envLimit+"="+limit.String(), envSeed+"=", envSoak+"=")
	start := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(start).Round(time.Millisecond)
	switch {
	case err == nil:
		return fmt.Errorf("%s passes with the fault %s (%s)", x.check, x.fault, toy.Faults[x.fault])
	case !regexp.MustCompile("(?m)^ +\\S+\\.go:.*(" + x.text + ")").Match(out):
		return fmt.Errorf("%s fails with the fault %s, but its output does not match %q:\n%.3000s", x.check, x.fault, x.text, out)
	}
	t.Logf("%-20s finds %-22s in %v", x.check, x.fault, took)
	return nil
}
