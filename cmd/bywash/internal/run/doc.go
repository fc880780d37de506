//go:build linux

// Package run starts the processes of a job on this machine, joined by a
// rendezvous of package launch, and sees to it that they end together.
//
// All ranks are in one process group. Its leader is the guard, a process that waits for the end of the launcher and
// then kills the group. So no process outlives a launcher that was killed, not even children of ranks. Ranks also ask
// the kernel for a signal when their parent dies, in case the guard is killed too. A rank that leaves the group is
// signalled separately, with the group that it then leads; processes that ranks start in other groups escape.
package run
