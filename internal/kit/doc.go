// Package kit has the parts that drivers are made of. Package driver is the contract that
// a program uses; kit has the part of it that is the same for every network,
// and asks the driver for the rest. It is optional: a driver may keep the
// contract without it.
//
// # How a driver is made
//
// A driver embeds four types of this package in its own, and gives each of them
// its hooks:
//
//	embedded  in the driver's       the kit has                      the hooks
//	Context   context of a NIC      Connect, Counters, Close, URL    Dial, Drain, Count, Release
//	Conn      connection to a peer  ConnectWait, Disconnect, waits   Pending, OnClose
//	Small     small-track instance  posts, polls, buffers, cancel    Settle, First, Consumed, Longest, Room, Filled
//	Large     large-track instance  posts, polls, cancel             StartRecv, StartSend, Progress, CancelRecv
//
//	type nic struct {
//		kit.Context[conn]
//		// the device
//	}
//
//	type conn struct { // of both tracks
//		kit.Conn
//		// the peer's address, queues
//	}
//
//	type small struct {
//		conn
//		kit.Small
//	}
//
// The context that users of the small track are given has [Prober] embedded as
// well. The example of this package is a whole driver.
//
// A call through a hook costs about a nanosecond, and on a fast network that is
// too much for what each message does. So a driver keeps the common case of
// SendPost, and of a RecvPoll that finds nothing, in its own code, and calls the
// kit for everything else: SendPost calls [Small.AdmitSend] and, if the message
// cannot leave now, [Small.Later]; RecvPoll ends with [Small.RecvPoll].
//
// # Terms
//
// The owner of a connection is the goroutine that is inside one of its calls:
// between Enter and Leave of its [Life], or after Exclude. Receives that are
// posted, buffers that are out and most counters belong to the owner.
//
// To drain a device is to take completions or messages from it, for whatever
// connection. One goroutine drains at a time, under a try-lock; it notifies
// each connection of what has come for it.
//
// The keep-alive goroutine of a driver serves connections whose users make no
// call: it detects dead peers and sends what has waited.
//
// # A message on the small track
//
//  1. SendPost enters the connection ([Life.Enter]) and checks the packet
//     ([Small.AdmitSend]). If there is credit the driver hands the bytes to the
//     device, counts them ([Life.Sent]) and finishes the packet. Else
//     [Small.Later] keeps it until Settle finds credit, and calls the hook
//     Start.
//  2. At the receiver, a goroutine drains the device (the hook Drain): a poll, a
//     probe or a sleeping waiter. It finds the connection, calls
//     [Conn.Announce], which makes it ready for probes, and wakes its waiter.
//  3. [Prober.RecvProbeAny] names the connection.
//  4. RecvPoll enters and calls the hook Settle. If a receive is posted, the kit
//     takes the message from the hook First and copies it; else it lends the
//     message where it is, until RecvBufRelease. The hook Consumed gives its
//     memory back to the device.
//  5. Leaving makes the connection ready again if another message waits.
//
// # A message on the large track
//
// RecvPost calls the hook StartRecv, which registers memory and describes it in
// the packet's RdvData. SendPost, at the other end, calls StartSend with that.
// Polls call Progress, which finishes the packet once no device and no peer
// reaches its memory any more.
//
// # The end of a connection
//
// A peer that sends its close message moves the connection to [StatePeerClosed], a device
// error, a dead peer or a violation of the protocol to [StateBroken]
// ([Conn.Finish], [Conn.Fail], [Conn.Misbehaved]): messages that came before can
// still be received. Disconnect and Close of this side move it to [StateClosed],
// wait until no call is inside, and call the hook OnClose.
//
// # Further parts
//
//	Life                     the states of a connection, and which goroutine may access it now
//	Gate                     a driver's own way into a connection, instead of the common compare-and-swap
//	Receiver, Starter        what the small track's hooks may have besides: copies by the kit, sends that wait for credit
//	Looker                   a context whose probe may overlook a connection: a waiter's last look before it sleeps
//	Connections, ReadySet    connections by number, and which have something to receive
//	Watch, AnyWaits          goroutines that sleep until the device has something
//	Tally, Tallies           counters that cost a plain addition
//	Options                  the table of a driver's options
//	NIC                      the NIC that a query returns
//	NewIncarnation, ParseURL what identifies a context, and a peer's
//	Prefetcher               makes the memory of large messages reachable before their posts
//	Key                      proves that a peer knows the session's secret
//	Staging                  memory for what a device cannot reach
//	Tap                      shows frames to "bywash capture"
package kit
