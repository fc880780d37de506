// Package shm is the driver for processes on one host: messages travel through
// memory that both ends share, long ones are copied once, by both ends at the
// same time. It needs no privileges, and works between containers that share a
// directory.
//
// Import it for its effect, and find it as "shm" with [driver.Lookup]. The
// contract, with the life of a packet, is in package driver.
//
// # Options
//
// [driver.Hints].Options takes these; the first value is what holds without it.
//
//	dir         a directory for sockets, which must exist and be the same for all
//	            peers; without it bywash in XDG_RUNTIME_DIR, else
//	            bywash-UID in the directory for temporary files
//	allow-uids  none, or user ids, with commas: users besides our own that may
//	            connect; they need access to dir, and must allow us
//	path        auto | arena | cma | ring: ways that long messages may take
//	ends        both | sender | receiver: who copies them
//	ptracer     on | off: where Yama forbids attaching among processes of one
//	            user, whether to allow it to ours (PR_SET_PTRACER_ANY)
//	membarrier  on | off: off, senders pay a fence a message instead of
//	            those who sleep a system call
//
// # Paths
//
// On the small track a message of up to 56 bytes crosses in one cache line of a
// ring, one of up to 8 KiB in the ring's data area. [driver.Instance].Path says
// "ring".
//
// On the large track each end copies pieces (32 to 512 KiB) from its side of the
// message until they meet, in the best way that it has to reach the other's buffer:
//
//   - arena: the buffer lies in a [driver.Arena], which this end has mapped;
//   - cma: the kernel copies between processes (process_vm_readv, which needs
//     the permission that ptrace does);
//   - where neither end has one: both copy, through the ring.
//
// Path says who copied and how: "arena-both", "arena-put" (the sender alone),
// "arena-get" (the receiver), "cma-both", "cma-put", "cma-get",
// "arena-put+cma-get", "cma-put+arena-get", "ring"; "copy" within one process.
//
// A path is also left out when it is not possible: processes in different pid
// namespaces cannot always name each other, a sandbox may refuse the system
// call, and a buffer in several pieces cannot be reached from outside. At most 64 arenas
// are shown to a peer; further ones count as private memory.
//
// One-sided access goes to mapped arenas, at the speed of memory, and to private
// memory by cma. Atomics need an arena. Operations are carried out by the CPU
// of whoever posts them, in order, and are atomic with the CPU of the owner.
//
// # Limits
//
// A message has at most 8 KiB on the small track, 256 GiB on the large one. In
// flight are, each way, 64 packets on the small track, 16 on the large one,
// 64 one-sided operations; a context has up to 2048 regions.
//
// A connection takes 148 KiB of shared memory on the small track, 100 KiB on
// the large one, both directions together, allocated when it is made; a
// context takes 132 KiB, two descriptors more for its memory, one for its
// socket. A connection keeps a socket; all connections to a process share its pidfd.
//
// Of one user, 256 processes may be connecting that have not proved the secret, for 5 s each: the oldest
// has to try again when one more comes. Connections that wait for this side's Connect are
// 256 of a peer's context and 1024 of a user. Where 64 closed connections to a peer's context
// still hold memory, as that peer is inside it, Connect returns [driver.ErrBusy].
//
// # Death
//
// A peer that dies is noticed at once, by the end of its socket (DeadTime, 1 s, is
// the promise). A peer that is stopped loses nothing. While a peer may be inside a
// posted buffer or a region, which a stopped one can be for long, the packet stays
// posted and Deregister says ErrBusy, whatever is closed or broken here; the memory
// stays pinned, and its arena held. That costs one goroutine for the whole process,
// which looks every 256 ms at the latest.
//
// # Kernel
//
// Linux 3.17 (memfd_create) is required; the rest is used where it is found:
// process_vm_readv (3.2), membarrier (4.16), sealing of the region table
// (5.1), pidfd_open (5.3), prefaulting by prefetch (5.14), SO_PEERPIDFD
// (6.5), inodes of pidfds (6.9), SO_PASSRIGHTS (6.16). Where SO_PASSRIGHTS is missing, threads that
// drop descriptors of strangers are interrupted by SIGURG, the signal of Go's scheduler.
//
// # Threads
//
// As the contract says: an instance by one goroutine at a time, the context by
// many. Close may be called while others wait. One goroutine of the context
// accepts peers, one of each connection watches for the peer's end; no
// goroutine and no thread moves data. Waits poll for some microseconds,
// then sleep on a futex, which holds a thread.
//
// # Errors
//
// Besides the contract's: a peer whose bytes make no sense is [driver.ErrBroken], and
// counted in BadFrames; strangers that were turned away are counted in Refused.
// ErrAuth has one of three causes: another secret, another user (allow-uids),
// or a directory for sockets that is not only ours. Errors for lack of
// descriptors, memory or access name the remedy.
//
// docs/wire.md draws what is shared and spoken, docs/security.md says what a
// hostile peer can do.
package shm
