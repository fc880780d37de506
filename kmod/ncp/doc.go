// Package ncp is the QNIX NIC control program: the C files of this directory, which the kernel module is built from as
// well, compiled through cgo.
//
// The control program gives processes that are registered with a NIC named, tagged, reliable messages, multicast,
// groups and barriers, between the NICs of a cluster. It has no threads, no clock and no locks: its caller runs the
// functions of a NIC in one thread at a time. README.md maps each step of the specification to its function and its
// test, and has the layouts of what goes over the wire.
//
// A [NIC] of this package is one in memory, as simulators, fuzzers and tests want it. It carries
// frames only when it is told to.
package ncp
