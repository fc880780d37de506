// Package qnix is the driver for the QNIX network interface. The interface is a device of the kernel module
// (/dev/qnix0), or a process in user space (bywash softnic), which the driver starts if there is no module. The package
// adapts package qnix/nic to the contract of package driver.
//
//	import _ "github.com/bywash/bywash/qnix"
//
//	d, _ := driver.Lookup("qnix")
//	nic, _ := d.Query(driver.Hints{Device: "/dev/qnix0"})
//
// # Options
//
// [driver.Hints].Options takes these options. The first value is the default.
//
//	buffer     4096: bytes of the longest message of the small track, 64 to 16376
//	window     32: messages of the small track that a peer may send ahead, 2 to 64
//	contexts   1024: Send and Receive Contexts of the process, 64 to 4096; with Hints.Peers, or in a session,
//	           as many as so many peers need, up to those 4096
//	start      on | off: whether a softnic is started where there is neither a device nor a softnic
//	dead-time  5s: what the driver announces as the time in which it finds a death on another host, 100ms to 1h. The
//	           NICs find it, after dead_ms (kernel module) or --dead-time (softnic): give at least that. On the same
//	           NIC a death is known at once.
//
// The device is the path of a NIC. The default is the value of the environment variable BYWASH_QNIX, else /dev/qnix0 if
// it exists, else the socket of this user's softnic.
//
// # Contexts and tags
//
// A context registers one process, under a name made of its incarnation. Each connection takes a range of its Send
// Contexts, its Receive Contexts and its context tags. The receiver chooses the tags, so that all connections with the
// same peer process have different ones. Tag 0 of each pair of processes carries control messages: calls, which pair
// the nth Connect of one side with the nth of the other, proofs of the session secret, and the messages that end a
// connection. The NIC keeps messages that have no receive yet, so either side may call first. The tags of a connection
// whose peer was lost are used again when no message of that connection is left (tags.go).
//
// With many connections the window of each is shorter: one takes at most a sixteenth of the contexts that are left, and
// once half of them are used, its share of the rest, so that up to 819 peers of Hints.Peers, or of the session, fit. On
// the large track each takes 17 Receive Contexts: the 4096 of a process suffice for 240.
//
// # A short message
//
// SendPost (smallsend.go) copies the message into the Context Region of the next Send Context, behind 8 bytes of head,
// and posts Send_Short; the memory is the program's again. The NIC copies it to the Context Region of the receive with
// the message's tag, which is posted because the sender has credit, and rings the doorbell. A goroutine that polls
// drains the Doorbell Ring (drain.go), puts messages in order, takes credit from their heads, and makes the instance
// ready for probes. RecvPoll (smallrecv.go) copies the message out, or lends the region itself (buffer receives), posts
// the context again, and later sends credit to the peer. So a process copies once at each end, or not at all with
// buffers.
//
//   - If the peer dies, the doorbells of all receives that name it ring, and the connection breaks; earlier messages
//     can still be received. The doorbell of a send under way rings, too. A later send finds no process of that name,
//     which also breaks the connection.
//   - The context of a send is used again when credit shows that its message was received or, after a death, when the
//     doorbell of a later command of the same queue has rung (leave.go).
//
// # A long message
//
// RecvPost (largepost.go) translates the memory through package driver/regcache, which caches memory in arenas and
// declared memory, and posts a Receive with a tag of its own; the rdv data contains the tag. SendPost translates its
// memory and posts a Send to that tag, and the NIC copies from memory to memory. Both ends wait for their own doorbell.
// Memory of up to 16 KiB that is not cached is copied instead (with a softnic up to 16 MiB, as long as the copies of a
// context are less than 64 MiB), and so are packets of more than 16 pieces. A receive can be cancelled without the
// peer's program (revoke.go).
//
//   - A post never blocks, except to copy, or to translate memory that is not cached: microseconds or longer. Prefetch
//     does that ahead, in the background.
//   - The memory belongs to the NIC until the doorbell rings, and stays mapped and pinned until then, also after
//     Disconnect: a poll returns when that is over.
//   - If the peer dies in the middle of a transfer, the doorbell rings, and the packet ends with the connection. The
//     NIC does not write to its memory any more.
//
// # Progress
//
// Any call handles the doorbells of all instances of the context. There is one try-lock, for which no data path waits.
// The background goroutine of the context (background.go) makes and ends connections, and drains the ring when no other
// goroutine polls. A waiter sleeps until the ring has another entry.
//
// # Limits
//
// A message has at most 4 KiB on the small track (option buffer), 2 GiB - 1 on the large one; an instance has at most
// 64 packets in flight on the small track and 16 on the large one. There is no one-sided access: the NIC has none, and
// to emulate it would need the peer's processor.
//
// docs/wire.md has what this driver puts into messages, docs/security.md what a peer can and cannot do, docs/qnix.md
// how to set up a machine.
package qnix

// Name is the driver's name.
const Name = "qnix"
