// Package nic is the client of a QNIX network interface. The interface is the device of the kernel module (/dev/qnix0)
// or a NIC in user space (bywash softnic); both have the same methods here.
//
// A process registers with a NIC under a name that is unique in the cluster. It is
// given a Virtual Network Interface, which it writes and the NIC reads, and
// a host page, which the NIC writes:
//
//   - Send and Receive Contexts, each of which describes one message, with a Context Region for short data or for
//     descriptors of longer data;
//   - a Command Queue, in which Post puts "send context 3";
//   - a doorbell for each context, which reports when and how the operation ended, and the Doorbell Ring, which lists
//     the doorbells that have rung.
//
// From the post until its doorbell rings, a context, its region and the memory that it names belong to the NIC. A
// receive names its sender and its tag: a message goes to the oldest receive that names both. A message without such a
// receive waits in the NIC's memory, or, beyond the limits of that memory, at the sender.
//
//	p, err := n.Register(ctx, nic.Config{Name: "rank0"})
//	…
//	copy(p.SendRegion(0), "hello")
//	err = p.SendShort(0, peer, 7, 5) // region, receiver, tag, bytes
//	err = p.Kick()                   // wakes the NIC, if it sleeps
//	for {
//		seen := p.RingTail()
//		if s, _ := p.SendDoorbell(0); s.Rung() {
//			break // Done, or why not
//		}
//		err = p.Wait(seen, -1)
//	}
//
// Longer data are in memory that Translate makes accessible to the NIC; descriptors name the memory by the handle that
// Translate returns.
//
// # Threads
//
// All methods may be called from any goroutine, with two restrictions. Each variable that Rung counts in belongs to one
// reader. One goroutine at a time may post a context; the second gets ErrInUse if the first asked for a doorbell. Post,
// Kick, Rung and the doorbell calls neither block nor allocate. One goroutine for each softnic handle notices its end.
//
// # Trust
//
// The kernel is trusted. A softnic is an ordinary process: this package checks all that it writes before it uses it,
// and requires that its memory is sealed so that it cannot vanish. Invalid values give errors or the state Garbled. A
// softnic can lose, change and invent messages, and can access all memory of this process that the kernel lets
// processes of one user access. If Yama restricts that (kernel.yama.ptrace_scope 1), opening a softnic lifts the
// restriction for this process (PR_SET_PTRACER_ANY).
//
// # Errors
//
// Errors have one line and name the remedy. They wrap the errors of this package, or unix.Errno.
//
// # Kernel
//
// A softnic needs Linux 3.17 (memfd_create). From 5.16 on this package uses futex_waitv.
package nic
