// Package ncp is the QNIX NIC control program: the C files of this directory, which the kernel module is built from as
// well, compiled through cgo.
//
// The control program gives processes that are registered with a NIC named, tagged, reliable messages, multicast,
// groups and barriers, between the NICs of a cluster. It has no threads, no clock and no locks: its caller runs the
// functions of a NIC in one thread at a time. README.md maps each step of the specification to its function, and has
// the layouts of what goes over the wire.
//
// [Soft] runs the NICs of this machine in user space; package qnix/softnic uses it. The rest of the Go code is for the
// tests of this package, because test files cannot use cgo: a NIC in memory (ncp.go, host.go), whose frames move only
// when a test asks for it, and one end of the links between NICs (wire.go).
package ncp
