// Package shm is the driver for processes on one host. Messages travel through memory that both ends share; long ones
// are copied once, by both ends at the same time. The driver needs no privileges, and works between containers that
// share a directory.
//
// Import it for its effect, and find it as "shm" with [driver.Lookup]. Package driver documents the contract and the
// life of a packet.
//
// # Options
//
// [driver.Hints].Options takes these; the first value is the default, unless the text names another.
//
//	dir         a directory for sockets, which must exist and be the same for all
//	            peers; without it bywash in XDG_RUNTIME_DIR, else
//	            bywash-UID in the directory for temporary files
//	allow-uids  user ids separated by commas: other users that may connect; none
//	            without it; they need access to dir, and must admit this user
//	path        auto | arena | cma | ring: ways that long messages may take
//	ends        both | sender | receiver: the ends that copy them
//	ptracer     on | off: where Yama forbids attaching among processes of one
//	            user, whether to permit it for this one (PR_SET_PTRACER_ANY)
//	membarrier  on | off: with off, senders pay a fence for each message; with
//	            on, a waiter pays a system call before it sleeps
//
// # Reach
//
// Each end must find the other's socket in the file system, and be admitted. Contexts of one user with the default
// directory reach each other in one mount namespace, and between containers if the directory is mounted at the same
// path in both. [driver.Reacher] compares, from the urls: the running kernel (its boot id), the directory (device and
// inode), the mount namespace with its root, the user namespace, and the users that may connect. Nothing else need be
// shared: memory travels as descriptors of memfds, so that /dev/shm and the other namespaces do not matter. In
// different pid namespaces a peer's death shows at its socket, and long messages take other paths (below).
//
// # Paths
//
// On the small track a message of up to 56 bytes crosses in one cache line of a ring; a longer one, in the ring's data
// area. [driver.Instance].Path returns "ring".
//
// On the large track each end copies pieces (16 to 512 KiB) from its side of the
// message until they meet, in the best way that it has to reach the other's buffer:
//
//   - arena: the buffer lies in a [driver.Arena], which this end has mapped;
//   - cma: the kernel copies between processes (process_vm_readv, which needs
//     the permission that ptrace does);
//   - where neither end has one: both copy, through the ring.
//
// Path names the copying end and the way: "arena-both", "arena-put" (the sender alone), "arena-get" (the receiver),
// "cma-both", "cma-put", "cma-get", "arena-put+cma-get", "cma-put+arena-get", "ring"; "copy" within one process.
//
// A path is also left out when it is not possible: processes in different pid
// namespaces cannot always name each other, a sandbox may refuse the system
// call, and a buffer in several pieces cannot be reached from outside. At most 64 arenas
// are shown to a peer; further ones count as private memory.
//
// One-sided access goes to mapped arenas, at the speed of memory, and to private memory by cma. Atomics need an arena.
// The CPU of the process that posts operations carries them out, in order; they are atomic with the CPU of the owner.
//
// # Limits
//
// A message has at most 16.5 KiB on the small track, 256 GiB on the large one. Each way, 64 packets can be in flight on
// the small track, 16 on the large one, and 64 one-sided operations. A context has up to 2048 regions.
//
// A connection takes 148 KiB of shared memory on the small track, 100 KiB on the large one, for both directions
// together, allocated when it is made. A context takes 132 KiB, two descriptors for its memory and one for its socket.
// A connection keeps a socket; all connections to a process share one pidfd.
//
// At most 256 processes of one user may be connecting without having proved the secret, for 5 s each: when one more
// comes, the oldest has to try again. At most 256 connections and watchers of a peer's context, and 1024 of a user, may
// wait for this side's Connect. While 64 closed connections to a peer's context still hold memory, because that peer
// accesses it, Connect fails with [driver.ErrBusy].
//
// # Death
//
// The end of its socket shows the death of a peer at once (the promise, DeadTime, is 1 s), once the kernel has freed
// its memory: a process that dumps core first looks stopped meanwhile (ulimit -c 0). A peer that is stopped loses
// nothing. While a peer may access a posted buffer or a region, which for a stopped peer can be long, the packet stays
// posted and Deregister returns ErrBusy, even after the connection or context was closed or broke. The memory stays
// pinned and its arena held. One goroutine of the process waits for such peers and looks every 256 ms at the latest.
//
// # Kernel
//
// Linux 3.17 (memfd_create) is required. These are used where they exist: process_vm_readv (3.2), membarrier (4.16),
// sealing of the region table (5.1), pidfd_open (5.3), SO_PEERPIDFD (6.5), inodes of pidfds (6.9), SO_PASSRIGHTS
// (6.16). Where SO_PASSRIGHTS is missing, threads that drop descriptors of unauthenticated dialers are interrupted by
// SIGURG, the signal of Go's scheduler.
//
// # Threads
//
// As in the contract, one goroutine at a time uses an instance, and many may use the context. Close may be called while
// others wait. One goroutine of the context accepts peers, and one for each connection watches for the peer's end; none
// moves data. Waits poll for some microseconds, then sleep on a futex, which holds a thread.
//
// # Errors
//
// Besides the contract's errors: a peer whose bytes make no sense breaks its connection ([driver.ErrBroken]) and counts
// in BadFrames; refused dialers count in Refused. ErrAuth has one of three causes: another secret, another user
// (allow-uids), or a directory for sockets that other users can enter. Errors for lack of descriptors, memory or access
// name the remedy.
//
// docs/wire.md draws the shared memory and the set-up protocol; docs/security.md lists the powers of a hostile peer.
package shm

// Name is the driver's name.
const Name = "shm"

// URLVersion is the version in this driver's urls.
const URLVersion = 2
