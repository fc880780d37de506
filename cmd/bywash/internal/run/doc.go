// Package run starts the processes of a job on this machine, joined by a
// rendezvous of package launch, and sees to it that they end together.
//
// All ranks are in one process group. Its leader is the guard, a process that
// waits for the end of the launcher, however that comes, and then kills the
// group: so nothing outlives a launcher that was killed, not even what ranks
// started. Ranks also ask the kernel for a signal when their parent dies, in
// case the guard is killed too. A rank that leaves the group is signalled by itself, with the group that it then leads;
// what ranks start in groups of their own escapes.
package run
