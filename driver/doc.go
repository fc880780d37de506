// Package driver is the contract between network drivers and the software
// above them: open a NIC, connect to a peer, move bytes at the speed of the
// hardware, and survive the peer's death. It imports no driver; drivers
// register themselves, as in database/sql, and programs import the ones they
// want, or all:
//
//	import _ "github.com/bywash/bywash/driver/all"
//
// # From a driver to a message
//
//	d, _ := driver.Lookup("shm")               // a Driver
//	nic, _ := d.Query(driver.Hints{})          // properties first, then
//	c, _ := nic.Open(driver.Attributes{})      // a Context, which has a URL
//	i, _ := c.Connect(peerURL)                 // an Instance, on both sides
//	_ = i.ConnectWait(ctx)
//	p := driver.Packet{IOV: [][]byte{data}}
//	_ = i.SendPost(&p)                         // down through post,
//	done, err := i.SendPoll(&p)                // up through poll
//
// # The contract
//
// It carries over the minidriver interface of NewMadeleine, in Go's manner: a
// small required core, optional interfaces for the rest, and capabilities that
// state which of them hold. What a driver lacks is [ErrUnsupported], found by a
// type assertion or in [Capabilities].
//
//	minidriver             here
//	getprops               Driver.Query, NIC.Properties: Hints in, Capabilities and Profile out
//	init                   NIC.Open, then Context.URL; hints of the context are Attributes
//	close                  Context.Close
//	connect_async          Context.Connect
//	connect_wait           Instance.ConnectWait
//	disconnect             Instance.Disconnect
//	send_buf_get           BufferSender.SendBufGet
//	send_buf_post          BufferSender.SendBufPost
//	send_pkt_post          Instance.SendPost, with Packet.IOV or Packet.Data
//	send_poll              Instance.SendPoll
//	send_wait              SendWaiter.SendWait
//	send_prefetch          Prefetcher.SendPrefetch
//	send_unfetch           Prefetcher.SendUnfetch
//	recv_probe_any         Prober.RecvProbeAny
//	recv_wait_any          Prober.RecvWaitAny
//	recv_cancel_any        Prober.RecvCancelAny
//	recv_pkt_post          Instance.RecvPost
//	recv_poll              Instance.RecvPoll; without a post it is a buffer receive
//	recv_wait              RecvWaiter.RecvWait
//	recv_buf_release       BufferReceiver.RecvBufRelease
//	recv_cancel            Instance.RecvCancel
//	recv_prefetch          Prefetcher.RecvPrefetch
//	recv_unfetch           Prefetcher.RecvUnfetch
//	rdv_data               Packet.RdvData; RdvUpdater for updates in the middle
//	nm_pkt_s               Packet; nm_data_s is Layout
//	EBROKEN, ECLOSED,      ErrBroken, ErrClosed,
//	ENOTIMPL, EINVAL       ErrUnsupported, ErrInvalid
//	put, get, atomics      Registrar, OneSided
//	counters               Context.Counters
//
// # Tracks
//
// A context is opened for one [Track]. On the small track messages arrive as
// they come: the receiver probes, or posts. On the large track the receive is
// posted first; RecvPost fills [Packet.RdvData], the layer above carries it to
// the sender (over a small track), which sets it in its packet and posts.
//
// # Concurrency
//
// An instance, with its packets, is used by one goroutine at a time; different
// instances, and the methods of the context, by many at once.
//
// # Memory
//
// A packet and the memory it names belong to the driver from a successful post
// until it is done. Go heap memory may be used everywhere: a driver pins it
// while hardware or another process can reach it. Memory in an [Arena] is the
// fast way: it is registered, or mapped by the peer, once.
//
// Memory comes back once, and for good. From the moment that a poll or a wait
// reports that a packet is done, or that [Region.Deregister] returns nil or
// ErrClosed, no device and no peer reads or writes the memory by that packet or
// registration any more. It does not matter what became of the connection: one
// that was disconnected, that has broken, that was never established, or whose
// context was closed counts for as long as its peer may be inside the memory or
// may enter it, and a peer that is stopped may be inside for long. It counts no
// more once the peer is known to be outside for good, or dead. Until then the
// packet stays posted, Deregister returns ErrBusy ([Counters].DeregisterBusy counts
// that), and the memory stays pinned and its [Arena] held. Disconnect and
// [Context].Close do not wait for it. Drivers over a device need not wait, because the
// device revokes access at once.
//
// Nothing on a data path allocates.
//
// # Errors
//
// ErrBusy and ErrAgain mean "not now". [ErrBroken] means that the peer is gone
// without a close message; [ErrClosed] that one side disconnected in order. Everything
// else leaves the connection as it is. Errors are *[Error] values that name
// driver, peer, operation and cause.
//
// # Writing a driver
//
// docs/driver.md shows how a driver is written; package driver/drivertest tests it.
package driver
