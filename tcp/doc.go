// Package tcp is the driver over the kernel's TCP. It needs no device, no privilege and no configuration, works between
// all hosts, containers and namespaces that IP connects, and has the lowest exclusivity: a session uses it if nothing
// better reaches the peer.
//
// A context listens on one port. Its url has the port and all addresses of the host (or of one interface, the device);
// a peer dials them in turn, each a moment after the one before, and takes the first on which the peer proves the
// session's secret and its incarnation. Each connection has one socket; small and large track are contexts of their
// own, so that no short message waits behind a long one.
//
// # A message on the small track
//
//  1. SendPost (small.go) copies the message behind a head of 4 bytes into the ring of what leaves. Launch hands the
//     ring to the socket (wire.go): at once for the first few after a poll; further messages of a program that only
//     sends are held back to go together, until 16 KiB are there, the program polls this driver, or the keep-alive
//     goroutine polls (keepalive.go), which takes some 100 µs if it gets a processor.
//  2. At the receiver, the owner's poll, a probe, a sleeping waiter or the keep-alive goroutine reads the socket into
//     the ring of what comes (conn.receive); a probe learns from one epoll_wait which sockets have something
//     (poller.go). Sockets are in the epoll instance from the context's first probe or sleep on. parse checks the
//     heads, and announces each message that is complete.
//  3. RecvPoll copies the message to the posted receive, or lends it in the ring.
//  4. Memory that was freed is granted to the peer in steps of a quarter of the window (112 KiB): what a peer may send
//     ahead of its receiver has its place in the ring, so that signs of life and the end are always read.
//
// # A message on the large track
//
// RecvPost describes the receive in 32 bytes of rdv data. The sender writes a head and the user's memory with sendmsg,
// the receiver reads into the memory of the receive that the head names: no copy besides the kernel's. Bytes for a
// receive that was cancelled are read and dropped. What a socket takes at once bounds a call; later calls, or the
// keep-alive goroutine, go on.
//
// # Connecting
//
// Both sides dial, so that one direction that works is enough if both call Connect within the dead time, unless
// dialing in the other one is refused at once, as by a process that is gone (dial.go, listen.go). The side with the
// lower incarnation leads: it takes one proven link for each of its calls of Connect, in their order, and the other
// side matches it with its own calls (pendingpeer.go). The leader confirms each match, because its instance may have
// been given up meanwhile. Links without an instance are closed by the side that dialed them. Those that wait for the
// other side's call end after 30 s, or when there are too many (pending.go): they are dialed again as long as their
// user waits.
//
// # When the peer dies
//
// The kernel closes the sockets of a process that dies: the reader sees the stream end without the frame bye, and the
// connection is broken. A host that is gone is noticed by silence: each side sends a sign of life if it has sent
// nothing for a twelfth of the lesser dead time of both, and breaks the connection when it has received nothing for
// eleven twelfths of its own, or somewhat more. A process that was stopped for at most four fifths of the dead time
// loses nothing. Disconnect and Close send the frame bye and wait, Disconnect in the keep-alive goroutine, until the
// peer's kernel has everything, at most the dead time: what a peer has not made room for by then is lost. A context
// that is closed in the middle of a long message that it sends breaks the connection, because the rest of the message
// cannot follow.
//
// # Options
//
// [driver.Hints].Options takes these options.
//
//	port        a port, or a range as in 5000-5100: listen at the first that is free; without it any
//	address     IP addresses with commas: listen at these; without it all of the device
//	netns       the path of a network namespace: listen and dial in it; it needs CAP_SYS_ADMIN
//	dead-time   5s: a peer that is silent for this long counts as dead
//	encrypt     off | on: encrypt what is sent. Both ends must have the same
//	wait        sleep | spin: what a blocking call does while nothing comes
//
// # Limits
//
// Links that wait for this side's Connect take at most a quarter of the descriptors that the process may still open,
// and half of that for one host. Messages of the small track have at most 16 KiB. A connection of the small track
// takes 224 KiB of memory, one of the large track some 9 KiB; encrypt=on adds some 81 KiB, and a cancelled receive
// whose message still comes 32 KiB. Nothing allocates on the data path, but with encrypt=on, where the cipher
// allocates a nonce a record of at most 16 KiB. There is no one-sided access: sessions emulate it. Every kernel that
// Go supports will do.
package tcp

// Name is the driver's name.
const Name = "tcp"

// AllDevices is the device that represents all addresses of the host; see [driver.Hints].Device.
const AllDevices = "all"
