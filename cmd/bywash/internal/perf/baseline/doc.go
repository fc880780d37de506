//go:build linux

// Package baseline measures what drivers are compared with. [Open] makes a [bench.Bench] over TCP, Unix stream or UDP
// sockets of this machine: it makes the system calls that a good C program would make, and does not use package net; it
// spins on non-blocking sockets, or sleeps in the kernel for cases that block. Or it makes one that only copies
// between two processes, through a ring in shared memory or by process_vm_readv(2) and process_vm_writev(2): the least
// time that a message between two processes of this machine can take.
//
// socket.go connects two processes, stream.go and datagram.go move messages between them, star.go has the tests of a
// group of eight processes; memory.go copies.
package baseline
