// Package drivertest is the conformance suite of the contract. Each driver runs
// it, unchanged, in a few lines:
//
//	func TestMain(m *testing.M) { drivertest.Main(m) }
//
//	func TestSmall(t *testing.T) {
//		drivertest.Run(t, drivertest.Config{Driver: "shm"})
//	}
//
//	func TestLarge(t *testing.T) {
//		drivertest.Run(t, drivertest.Config{Driver: "shm", Hints: driver.Hints{Track: driver.Large}})
//	}
//
// Peers are processes: the test binary starts itself again, and Main plays a
// role instead of running tests. Test and peer talk over the standard input and
// output of the peer, which also carry urls, rdv data and keys, so that peers
// may run in another namespace or machine (Config.Launch). In an emulated
// machine (Config.TimeScale) a peer process plays one role after the other.
//
// The suite checks that announced capabilities work and that others are absent; there are no exclusions. Each check is
// a subtest:
//
//   - open.go: OpenOnce, Properties, URL, AbsentFeatures
//   - connect.go: in any order, many, absent peers, foreign urls, oneself,
//     twice, restarted peers, secrets, posts that come too early
//   - message.go, busy.go: every form and size, order, full queues, too long,
//     truncation, many instances
//   - cancel.go: before, during and after arrival
//   - probe.go: fairness, each message named once, ends named once
//   - wait.go: sleep, cancellation, wake-ups that must not be lost
//   - rdv.go: rdv data and updates, damaged ones, prefetch
//   - onesided.go, atomic.go: put, get, atomics, bounds, keys, access,
//     deregistration, flush, fence, depth
//   - close.go: disconnect with sends pending, close
//   - death.go: SIGKILL in the middle of everything, SIGSTOP
//   - inside.go: SIGSTOP in the middle of a put, then everything is closed here
//   - leak.go, counters.go, alloc.go: what must come back, be counted, and not
//     be allocated
//
// A run is repeated with BYWASH_SEED; BYWASH_SOAK=2h goes on killing peers for
// so long, and sends messages of up to 64 MiB. On a deadline the goroutines of all processes are printed.
//
// How the suite reads the contract where it leaves a choice:
//
//   - A second Connect for a peer is another instance; the nth calls of both
//     sides are matched, also when one side makes all of its calls first.
//   - RecvPost on an instance that ended may fail at once or when polled.
//   - SendPost between SendBufGet and SendBufPost is not tried.
//   - RecvCancel on a receive that is done and not polled may return nil or
//     ErrInvalid; RecvPoll then returns the outcome.
//   - A send whose receive was cancelled may succeed or fail, but the
//     connection holds.
//   - Damaged rdv data is found by SendPost, damaged keys by Import.
//   - Put, get and atomics beyond MaxPut and sizes other than 4 and 8 are
//     ErrInvalid (ErrBounds and ErrUnsupported are accepted).
//   - A process that ends right after Disconnect has to close its context so
//     that the peer sees ErrClosed and not ErrBroken.
package drivertest
