//go:build linux

// Package hostile attacks Bywash from outside: the attackers are programs of their own, which use public interfaces and
// raw bytes, while this process, the victim, exchanges messages with an honest peer.
//
//	test                 the attacker
//	TestRandomWriter     a peer that writes at random into all memory that it shares with the victim (arena, cma, ring)
//	TestFlooder          a peer that sends one kind of the session's messages as fast as it can, and reads none
//	TestUnauthenticated  a process without the secret at each socket: thousands of connections, invalid data, slow bytes,
//	                     descriptors; also in verbs/internal/connect, for the sockets of its connection manager oob
//	TestReplayer         a host on the path that sends recorded, changed and forged frames to both ends of a connection over
//	                     afxdp
//	TestPingers          hundreds of peers that send keep-alives over tcp as fast as they can
//	TestSquatter         a peer that connects over tcp as often as it can, and is not wanted
//	TestKills            peers of shm, tcp and of a softnic that are killed and stopped at random moments
//	TestTenant           another user of a QNIX network interface who wants all names, groups, memory and time of it
//
// Unauthenticated peers at the port of bywash perf --listen are in cmd/bywash/internal/perf/control
// (TestUnauthenticatedPeersDelayNoLead).
//
// Each test asserts the same of the victim: it is alive; every byte of the honest peer's messages is right, and they go
// on during the attack; descriptors, mappings, goroutines, threads and heap stay within bounds that do not depend on
// how long the attack goes on; operations with the attacker end with an error of the contract; closing stays within its
// time limit; and after the attacker has gone, none of its resources are left.
//
// Package internal/lab/attack starts the attackers and takes the measure of the victim.
//
// An attack takes 0.4 s, and half of that with -short. Variables of the environment:
//
//	BYWASH_HOSTILE=1m   how long each attack goes on (make test-all)
//	BYWASH_SOAK=8h      how long all of them go on together (make soak)
//	BYWASH_SEED=N       draws the same random numbers as the run that has printed this
//	BYWASH_QNIX_KO=F    the tenant is one of the kernel module in the file F, in a virtual machine of hack/vm
//
// A seed replays what the attacker does, not the moments at which the scheduler lets it. The replayer and the tenant
// need root.
package hostile
