// Package softnic is the QNIX network interface in user space, for machines without the kernel module. It runs the same
// control program as the module, in a process of its own. Programs use it through package nic, as they use /dev/qnix0.
//
// One process runs one or several NICs, each of which listens at a Unix socket. A program connects, registers, and gets
// three descriptors: the memory of its Virtual Network Interface and of its host page, which both sides map, and an
// eventfd that wakes the NIC. Messages between processes of one NIC are copied once, from the sender's memory to the
// receiver's: memory of memfds is mapped, other memory is reached by process_vm_readv and process_vm_writev. NICs of
// one process exchange frames in memory, those of different ones (and of the kernel module) UDP datagrams,
// authenticated by the cluster's key, over a link that repairs loss.
//
// The command bywash softnic runs it; [Ensure] starts one on demand; [Start] runs it
// in the calling process.
//
// # Cost
//
// A thread runs the NICs. When there is nothing to do it polls for some ten microseconds, giving its CPU away each
// time, and then sleeps without using any; the next post wakes it. Each process takes its Virtual Network Interface in
// memory (some 150 KiB by default) and four descriptors here.
//
// # Death
//
// The end of a process, however it ends, closes its connection: the NIC deregisters it at once, and operations with it
// ring Gone. The end of the softnic is the end of every connection: clients find it gone at once. A process that holds
// a copy of a dead process's connection keeps that registration alive.
//
// # Trust
//
// Users other than this one are refused, unless Config.AllowUIDs names them. A client may be hostile: the softnic
// checks everything that it writes into its memory or sends. A client reaches nothing but its own interface, must seal
// memory that it passes so that it cannot vanish, and holds at most its share of the process table. It can use the
// NIC's time like other clients. docs/qnix.md lists the promises.
//
// Without cgo there is no softnic: [Supported] and Start return an error.
package softnic

// EnvProgram names the program bywash, which Ensure starts. "bywash run" sets it for its ranks.
const EnvProgram = "BYWASH_PROGRAM"
