// Package qnix is the driver for the QNIX network interface: the kernel module's (/dev/qnix0), or one in user space (bywash softnic),
// which is started where there is no module. It adapts package qnix/nic to the contract of package driver.
//
//	import _ "github.com/bywash/bywash/qnix"
//
//	d, _ := driver.Lookup("qnix")
//	nic, _ := d.Query(driver.Hints{Device: "/dev/qnix0"})
//
// # Options
//
// [driver.Hints].Options takes these; the first value is what holds without it.
//
//	buffer     4096: bytes of the longest message of the small track, 64 to 16376
//	window     32: messages of the small track that a peer may send ahead, 2 to 64
//	contexts   1024: Send and Receive Contexts of the process, 64 to 4096; with Hints.Peers, or in a session,
//	           as many as so many peers need
//	start      on | off: whether a softnic is started where there is neither a device nor a softnic
//	dead-time  5s: how long a peer on another host that died can go unnoticed, 100ms to 1h. It is at least what the
//	           NICs wait for each other; on the same NIC a death is known at once.
//
// The device is the path of a NIC. Without one it is what the environment variable BYWASH_QNIX says, else /dev/qnix0 where that exists,
// else this user's softnic.
//
// # Contexts and tags
//
// A context registers one process, under a name made of its incarnation. Each connection takes a range of its Send and its
// Receive Contexts, and of context tags: these are chosen by who receives, and unlike for all connections with the same
// peer process. Tag 0 of each pair of processes carries control messages: calls, which pair the nth Connect of one side with the nth of the
// other, proofs of the session secret, and goodbyes. As the NIC keeps what nobody receives yet, either side may call first.
//
// Many connections leave each with a shorter window: it is at most a sixteenth of the contexts that are left.
//
// # A short message
//
// SendPost (smallsend.go) copies it into the Context Region of the next Send Context, behind 8 bytes of head, and posts
// Send_Short; the memory is the program's again. The NIC moves it to the Context Region of the receive that has
// the message's tag, which is there as the sender has credit, and rings. Whoever polls drains the Doorbell Ring (drain.go), puts
// messages in order, takes credit from their heads, and makes the instance ready to be named by probes; RecvPoll (smallrecv.go)
// copies the message out, or gives the region itself away (buffer receives), posts the context again, and owes the peer
// credit. So a process copies once at each end, or not at all with buffers.
//
//   - If the peer dies, all receives that name it ring, and the connection breaks; what came before can still be
//     received. A send under way rings too; one that is posted later finds no such name, which breaks as well.
//   - The context of a send is used again when credit says that its message was received, or, after a death, when a later
//     command of the same queue has rung (part.go).
//
// # A long message
//
// RecvPost (largepost.go) has the memory translated through package driver/regcache, which keeps what is in arenas or declared, and posts a
// Receive under a tag of its own; rdv data names the tag. SendPost translates and posts a Send to that tag; the NIC copies
// from memory to memory. Both ends wait for their own doorbell. Memory of up to 16 KiB (with a softnic 256 KiB) that is not cached is copied instead, as are packets
// of more than 16 pieces. A receive can be cancelled without the peer's program (revoke.go).
//
//   - A post never waits, but for translating memory that is not known yet, which takes microseconds and more; prefetch does it
//     ahead, in the background.
//   - The memory is the NIC's until the doorbell rings, and stays mapped and pinned until then, also after Disconnect: polls say so.
//   - If the peer dies in the middle, the doorbell rings, and the packet ends with the connection. Nothing writes to it any more.
//
// # Progress
//
// Any call moves what has rung for all instances of the context: there is one try-lock, whom nobody waits for. One goroutine
// of the context makes and ends connections, and watches the ring when nobody polls (keeper.go). Who waits sleeps until the ring has more.
//
// # Limits
//
// A message has at most 4 KiB on the small track (option buffer), 2 GiB - 1 on the large one; 64 packets and 16 are in
// flight. There is no one-sided access: the NIC has none, and to feign it would take the peer's processor.
//
// docs/wire.md has what this driver puts into messages, docs/security.md what a peer can and cannot do, docs/qnix.md how to
// set up a machine.
package qnix
