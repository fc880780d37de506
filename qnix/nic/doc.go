// Package nic is the client of a QNIX network interface: of the kernel module's
// device (/dev/qnix0) and of a NIC in user space (bywash softnic), which look
// the same from here.
//
// A process registers with a NIC under a name that is unique in the cluster. It is
// given a Virtual Network Interface, which it writes and the NIC reads, and
// a host page, which the NIC writes:
//
//   - Send and Receive Contexts, each of which describes one message, with a Context Region
//     for short data or for descriptors of longer ones;
//   - a Command Queue, in which Post puts "send context 3";
//   - for each context a doorbell, which says when and how the operation ended, and the
//     Doorbell Ring, which says which doorbells have rung.
//
// From the post until its doorbell rings, a context, its region and the memory that it
// names are the NIC's. A receive names its sender and its tag: a message goes to the receive
// that was posted first for both. A message for which no receive is posted waits: short
// of the limits, in the NIC's memory, else at the sender.
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
// Longer data lie in memory that Translate makes known to the NIC; descriptors name it
// by the handle that Translate gives.
//
// # Threads
//
// All methods may be called from any goroutine, but Rung with one reader for each variable that
// it counts in, and a context is posted by one goroutine at a time (the second gets ErrInUse, if
// the first asked for a doorbell). Post, Kick, Rung and the doorbell calls neither block nor allocate.
// One goroutine for each softnic handle notices its end.
//
// # Trust
//
// The kernel is trusted. A softnic is a process like others: everything that it writes is checked before it is used,
// its memory is sealed so that it cannot vanish, and nonsense gives errors or the state Garbled. It can of course lose,
// change and invent messages, and reaches all memory of this process that the kernel lets processes of one user reach.
// Where Yama restricts that (kernel.yama.ptrace_scope 1), opening a softnic lifts the restriction for this process
// (PR_SET_PTRACER_ANY).
//
// # Errors
//
// Errors are in one line and name the remedy. They wrap the errors of this package, or unix.Errno.
//
// # Kernel
//
// A softnic takes Linux 3.17 (memfd_create); futex_waitv (5.16) is used where it is there.
package nic
