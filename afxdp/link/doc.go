// Package link gives reliable, ordered messages over anything that carries
// frames most of the time: Ethernet, UDP, a wire in a test.
//
// It is a state machine. Packets that arrived and the time go in, packets to be
// sent come out through a [Carrier]; there is no goroutine, no clock and no I/O
// in it, so that thousands of networks with a seed each are simulated in a
// minute, and a failing one replays exactly.
//
// # Use
//
// An [Endpoint] is all connections over one carrier. Its owner calls, one at a time,
//
//	Input   for each packet that arrived,
//	Flush   after each batch of inputs, posts and releases,
//	Tick    when the time that Next names has come,
//
// and the endpoint calls its [Handler]. A [Conn] carries two kinds of messages: ordered ones, in fragments
// that the program writes into frames and reads out of them ([Conn.Post], [Handler.Deliver]), and
// placed ones, which go from the sender's memory to the receiver's ([Conn.Start], [Handler.Place]),
// in whatever order their fragments come.
//
// # Memory
//
// A frame belongs to whoever holds it: Carrier.Get lends it to the connection until Carrier.Put. A
// fragment that was posted stays in its frame until the peer has it, so that it can be
// sent again without a copy; one that was delivered stays in its frame until [Conn.Release].
//
// # What holds
//
//   - Each message arrives exactly once, in order, or the connection is reported as broken.
//   - A peer sends at most what it has credit for, and for each credit a frame is kept ready.
//   - Nobody is answered with more bytes than he sent before his address is proven.
//   - Who does not have the session secret gets no connection. With encryption, he can
//     neither read nor change nor repeat packets; without it, who sees the packets can forge them.
//   - A peer that is silent for the dead time is broken; one that was stopped for less loses nothing.
//   - Nothing is allocated for a message.
package link
