// Package xsk is a binding to AF_XDP: sockets that exchange Ethernet frames with a network device through memory shared
// with the kernel, bypassing its network stack. It depends on nothing else in Bywash.
//
// # From a device to a frame
//
//	dev, err := xsk.Open(xsk.Config{Device: "eth1", Match: xsk.Match{EtherType: 0x88b5}})
//	s := dev.Sockets[0]
//
//	s.Fill(addrs)                  // chunks to receive into
//	n := s.Receive(descs)          // frames that have arrived
//	frame := dev.UMEM.Data(descs[0])
//
//	s.Transmit(descs)              // frames to be sent
//	err = s.Kick()
//	n = s.Complete(addrs)          // chunks of frames that were sent
//
// A [UMEM] is the memory of frames. A [Socket] is bound to one queue of a device. A [Program] passes matching frames to
// the sockets and leaves all others to the kernel. [Open] makes all three. All calls work on batches in slices of the
// caller; none of them allocates or copies.
//
// # Ownership of chunks
//
// A frame lies in a chunk of 2048 or 4096 bytes, named by an address, its offset in the UMEM. A chunk is in exactly one
// place: with the user, which got it from Receive or Complete or has not used it yet; in the fill and receive rings; or
// in the transmit and completion rings. The package keeps no list of free chunks, since only the user knows when a
// chunk is no longer needed. Built with -race or the tag xskdebug, it checks each step.
//
// Frames are lost while the fill ring is empty. A protocol with credits must not grant a peer more credit than there
// are chunks in the fill ring.
//
// # Concurrency
//
// A socket has a receiving and a sending side, each used by one goroutine at a
// time; see [Socket]. Any number of sockets may share a UMEM.
//
// # What is needed
//
// Linux 5.9, or 5.10 for several queues, and CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, or root, and locked memory for the
// UMEM (RLIMIT_MEMLOCK, or CAP_IPC_LOCK). [Probe] and [DeviceFeatures] report the features that only later kernels or
// some drivers have. A request for a missing feature fails with an error that matches
// errors.ErrUnsupported and names the kernel that has it.
//
// The rules of the interface are those of
// https://docs.kernel.org/networking/af_xdp.html and, for metadata,
// https://docs.kernel.org/networking/xsk-tx-metadata.html.
package xsk
