// Package kit holds what drivers share. Package driver is the contract that a
// program uses; kit is for the drivers that keep it. Everything here is
// optional: a driver may implement the contract without it.
//
// # The parts
//
//	Life                     the states of one connection, and who may touch it now
//	Connections, ReadySet    all connections of a context: their numbers, and which have something to receive
//	Receives, PacketQueue    receives posted on the small track, and the message that the user reads in place
//	SendBuffer               the buffer that the user of a small track fills in place
//	Watch, AnyWaits          goroutines that sleep until the device has something
//	Tally, Tallies           counters that cost a plain addition
//	OpenOnce                 NIC.Open
//	NewIncarnation, ParseURL what identifies a context, and a peer's
//	Prove                    the proof that a peer knows the session's secret
//	Staging                  memory for what a device cannot reach
//	Tap                      shows frames to "bywash capture"
//
// # Terms
//
// The owner of a connection is the goroutine that is inside one of its calls:
// between Enter and Leave of its [Life], or after Exclude. The receive queue,
// the send buffer and most counters belong to the owner.
//
// To drain a device is to take completions or messages from it, for whatever
// connection. One goroutine drains at a time, under a try-lock; it tells each
// connection what has come for it.
//
// The keeper is a goroutine of the driver that looks after connections whose
// users make no call: it watches for dead peers and wakes sleepers.
//
// # A message on the small track
//
//  1. The sender's SendPost enters the connection ([Life.Enter]), checks the
//     packet ([SendBuffer.Admit]), hands the bytes to the device, counts them
//     ([Life.Sent]), and leaves. If the device has no room, it returns
//     [Life.Busy].
//  2. At the receiver, somebody drains the device: a poll, a probe or a
//     sleeping waiter. It finds the connection by its number
//     ([Connections.At]) and calls [Life.Arrived], which makes the connection
//     ready for probes; then it wakes who sleeps ([Watch.Wake] and
//     [AnyWaits.Tell]).
//  3. A probe takes a ready connection ([Connections.TakeReady]) and returns it.
//  4. RecvPoll enters. If a receive is posted ([Receives.Want]) it copies the
//     message there ([Receives.Fill]), else it lends the message where it
//     is ([Receives.Lend]) until RecvBufRelease ([Receives.Return]).
//     [Life.Taken] counts it, and the driver gives the slot back to its device.
//  5. [Life.Leave] makes the connection ready again if another message waits.
//
// # The end of a connection
//
// A peer that says goodbye moves the connection to [StatePeerClosed], a device
// error, a dead peer or a violation of the protocol to [StateBroken]
// ([Life.Finish]): messages that came before can still be received. This side's
// Disconnect and Close move it to [StateClosed] ([Life.Close]) and call
// [Life.Exclude], after which no call gets inside any more and the driver frees
// what the connection held.
package kit
