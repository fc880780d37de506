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
//	Input   for each packet that arrived (InputPieces, where it lies in several frames),
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
// Where frames are smaller than the path's largest packet ([Config].Unit), placed fragments take several of them: they are
// built in a long one (Carrier.GetLong), and come in pieces, of which none is kept. Ordered fragments, sealed packets
// and all others keep to one frame.
//
// # What holds
//
//   - Each message arrives exactly once, in order, or the connection is reported as broken.
//   - A peer sends at most what it has credit for, and for each unit of credit a frame is kept ready.
//   - Nobody is answered with more bytes than he sent before his address is proven.
//   - Who does not have the session secret gets no connection. With encryption, he can
//     neither read nor change nor repeat packets; without it, who sees the packets can forge them.
//   - A peer that is silent for the dead time is broken; one that was stopped for less loses nothing, whatever others answer
//     in its place. One that was started again is noticed at once.
//   - Nothing is allocated for a message.
//
// # Wire format
//
// All numbers are little-endian. Every packet begins with its kind, flags (or, of a greeting, the
// version), its size, and a CRC-32C over all of it but that field; what follows its size is padding of the carrier's.
// A packet of a connection (data, ack, ping, close, closed):
//
//	 0  kind u8, flags u8, size u16, checksum u32 (zero where the packet is encrypted)
//	 8  connection u64, as the receiver calls it: 16 bits of place, 48 that nobody can guess
//	16  packet number u64, from 1, never used again
//	24  cumulative point u64: all fragments below it have arrived
//	32  credit u32: units from here on may not be sent; the low half of 64 bits, as near as
//	    can be to what was told before
//	36  time stamp u32 of sending, in units of 1024 ns
//	40  echo u32 of the newest packet's time stamp; 0: none
//	44  delay u16 since that one arrived, in units of 1024 ns, at most 65535
//	46  words u8 of the bitmap, at most 16; repetitions u8 that arrived, modulo 256
//	48  sequence number u64 (data; close: of what would come next)
//	56  payload of an ordered fragment; or tag u64, offset u64, length u64 and payload of a placed one
//	at the end, bitmap: bit k is the fragment (cumulative point + 1 + k)
//
// Flags are: 1 another fragment of the message follows, 2 placed, 4 key phase, 8 encrypted,
// 16 not in order (close), 32 to be acknowledged at once. An encrypted packet is AES-256-GCM over all from byte 48 on,
// with the first 48 as additional data, the packet number in the nonce, and 16 bytes of tag at the end.
//
// Greetings (init, accept) have 176 bytes, so that no answer is longer than what it answers:
//
//	 0  kind u8, version u8, size u16, checksum u32
//	 8  to u64 (init: the endpoint; accept: the dialer's connection), from u64 (endpoint)
//	24  connection u64, nonce of 16 bytes
//	48  MTU u32: largest packet in one frame, bytes of a unit; credit u32 (units)
//	56  options u32 (1: encrypt); longest u16: placed packet; window u16 (fragments)
//	64  length u8 and up to 63 bytes of hello
//	128 cookie of 24 bytes: when it was made u64, and 16 bytes of mac (accept: zero)
//	152 sent u64: when, by the dialer's clock (accept: zero)
//	160 mac of 16 bytes, of all of it without the checksum; an accept's also of nonce and connection of the init
//	    that it answers
//
// Cookie (40 bytes): to u64, cookie. Reject (40 bytes): to u64, from u64, code u8 at 32. Reset (40 bytes): the
// connection as its sender got it. Notes (knock, here, query, gone; 56 bytes): to u64, from u64, connection u64, sent
// u64, mac; that of query and gone is also over the address of the endpoint that is asked.
//
// MACs, cookies and the keys of encrypted connections come from package internal/handshake, under labels of this
// package. The handshake of that package would promise less than this one in what matters here: it computes a key
// agreement for every dialer, and remembers the dialer before it has shown where it receives; and it needs an ordered
// stream, while greetings are lost, repeated and overtaken. What it has and this one lacks is forward secrecy.
//
// # Credit
//
// A unit is what a frame of the receiver holds: the MTU of its greeting. A fragment takes one for each MTU of bytes
// that its packet, without the bitmap, begins: 1 for up to MTU bytes, 2 for one more. Both sides count all units ever taken by
// that rule; the receiver breaks the connection where more arrives than it told, or a fragment that is
// a window above its cumulative point.
//
// A packet that is longer than the receiver's MTU has no bitmap, is placed, and not sealed. Where one side tells no longest packet
// (zero) there are none, each fragment is one unit, and the credit holds for the window as well.
//
// # Connecting
//
//	dialer                    listener
//	   <------------------------ knock     I wait for you (now and then)
//	init ---------------------->           without cookie: nothing is remembered
//	   <------------------------ cookie    40 bytes for 168
//	init, cookie -------------->           the address is proven; the mac shows the secret
//	   <------------------------ accept
//	ping ---------------------->           both stand
//
// A listener without a call for the init answers here, as does a dialer without one to a knock. Signs of life for who
// waits are an init with cookie and mac, and a here, for the time at which it was asked for.
//
// A reject says another secret, version or endpoint. As anyone might have sent it,
// an accept that comes within 50 ms counts for more.
//
// # Resets
//
// A packet of an unknown connection is answered by a reset: the endpoint was started again, or gave the connection up,
// or somebody brought it a packet that was meant for another. So a reset, which anyone could have sent, only makes the
// other side ask its peer with a query. The peer, or the endpoint that lives alone at the peer's address now, answers
// gone, and that is believed. Nobody else can, and a peer that is stopped does not: comment in note.go. A query is also
// sent where another endpoint connects from a peer's address.
//
// # Recovery
//
// Each packet has a number of its own and echoes the newest time stamp, so that the round trip is known from every
// packet, whatever was sent again. A fragment is lost when one that was sent later by more than a quarter of the least
// round trip has arrived (RFC 8985); each repetition that turns out to be in vain widens that by a quarter, up to
// the round trip. When nothing is heard for the round trip, four times its variance and the time that an acknowledgement may
// wait, at least 0.5 ms, one fragment is sent again (RFC 8985's tail loss probe), whatever window and pace say; the pause then
// doubles five times, a little differently for each connection. Who has no credit asks for it at the same times.
//
// # Congestion
//
// See the comment in pacer.go: delay is held near 75 µs, and up to 300 µs more where windows are small; it does not
// lower a window below four fragments. Losses do, where they go beyond what the path loses anyway by three percent.
//
// # Limits
//
//   - 65536 connections; 64 to 1024 fragments under way on each: the window times the MTU in a round trip is the most
//     that one carries, less where it loses packets.
//   - MTU 256 to 65535 bytes, of which 56 are the header, 80 for placed fragments, 16 more with encryption. A long packet that
//     loses one of its pieces is lost, and sent again as a whole.
//   - Windows far below one fragment are shared unequally: 100 flows of 9000 bytes into 10 Gbit/s. Longer packets do so
//     with fewer flows: they are for paths as fast as memory.
//   - Flows with longer round trips get less: a third when ten times as long.
//   - Sequence and packet numbers have 64 bits. Time stamps repeat after 73 minutes, which silence never lasts.
//
// # Sources
//
// RFC 8985 (RACK and probes), RFC 9000 (cookies, resets, anti-amplification), RFC 9001 (key phases), RFC 9002 (probe
// time-outs), RFC 6479 (replay window), Swift (Kumar et al., SIGCOMM 2020), LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus).
package link
