// Package rights receives file descriptors from processes that are not trusted (SCM_RIGHTS, unix(7)), and reads
// and closes the sockets over which such descriptors may come. None of its functions blocks for longer than some
// milliseconds, whatever the other process sends.
//
// # The danger
//
// A process that can send to a Unix socket can send descriptors along. Dropping the last reference to a file
// closes it, and that can block: a TCP socket with unsent data blocks for the time of its SO_LINGER, a file of
// a FUSE file system until its daemon answers. These drop the last reference:
//
//  1. closing a descriptor that was received;
//  2. a read without room for the descriptors of its message: the kernel closes them in the reader's thread;
//  3. closing a socket, or a listener with sockets that were not accepted, while descriptors lie in its queue.
//
// # What is done about it
//
//   - [Refuse] sets SO_PASSRIGHTS to 0 (Linux 6.16): a process that sends descriptors gets EPERM. Sockets inherit it
//     from their listener. [Admit] sets it back once the other process has shown that it may send them.
//   - [Receive] takes as many descriptors as the protocol expects at that point. It lets the kernel close all
//     others: in flight they never enter the table of descriptors, so that they can neither fill it nor block in the
//     flush of FUSE, which only close(2) calls.
//   - [Receive], [Send] and [Close] interrupt the wait for a lingering socket, in their own thread, by SIGURG.
//     That signal is the one by which Go's scheduler preempts; programs ignore it otherwise.
//   - [Discard] passes received descriptors to two workers for each user, for which no caller waits. The workers clear
//     SO_LINGER first. [Stuck] reports a user whose descriptors block the workers, so that nothing more is taken from
//     him.
package rights
