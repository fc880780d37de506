// Package baseline measures the kernel's own sockets, to compare drivers with: [Open] makes a [bench.Bench] over TCP,
// Unix stream or UDP sockets of this machine. It makes the system calls that a good C program would make, and does not
// use package net: it spins on non-blocking sockets, or sleeps in the kernel where the case says block.
//
// socket.go connects two processes, stream.go and datagram.go move messages between them, star.go has the tests of a
// group of eight processes.
package baseline
