// Package link provides reliable, ordered messages over a carrier that may lose, repeat, reorder and damage frames:
// Ethernet, UDP, or a simulated wire in a test.
//
// The package is a state machine. The caller hands in the time and the packets that arrived; the package sends packets
// through a [Carrier]. The package has no goroutine, no clock and no I/O, so that tests simulate thousands of networks,
// each with its own seed, in a minute, and a failure can be replayed exactly.
//
// # Use
//
// An [Endpoint] holds all connections over one carrier. Its owner calls these methods, one at a time:
//
//	Input   for each packet that arrived (InputPieces, where it lies in several frames),
//	Flush   after each batch of inputs, posts and releases,
//	Tick    when the time that Next names has come,
//
// The endpoint calls its [Handler]. A [Conn] carries two kinds of messages. Ordered messages go in fragments, which the
// program writes into frames and reads out of frames ([Conn.Post], [Handler.Deliver]). Placed messages go from the
// sender's memory to the receiver's ([Conn.Start], [Handler.Place]); their fragments are handed over in the order of
// arrival.
//
// # Memory
//
// Carrier.Get lends a frame to the connection until Carrier.Put. A posted fragment stays in its frame until the peer
// has acknowledged it, so that it can be sent again without a copy. A delivered fragment stays in its frame until
// [Conn.Release].
//
// If frames are smaller than the path's largest packet ([Config].Unit), placed fragments take several frames. The
// sender builds such a fragment in one long frame (Carrier.GetLong); the receiver gets it in pieces and keeps none of
// them. Ordered fragments, sealed packets and packets without data occupy one frame.
//
// # What holds
//
//   - Each message arrives exactly once, in order, or the connection is reported as broken.
//   - A peer sends at most what it has credit for, and for each unit of credit a frame is kept ready.
//   - Until a peer has proven its address, no answer has more bytes than the packet that it answers.
//   - A peer without the session secret gets no connection. With encryption, an attacker can neither read nor change
//     nor replay packets; without it, an attacker on the path can forge them.
//   - A connection whose peer is silent for the dead time breaks, and so does one whose oldest fragment does not arrive
//     for that time although the peer answers: on a path that takes no packets of 1200 bytes, for example. A peer
//     that was stopped or cut off for up to seven eighths of it loses nothing, whatever others answer in its place: an
//     idle peer is pinged every sixteenth. A peer that was started again is noticed at once.
//   - If the path stops taking long packets, messages go on in shorter ones, as long as it takes 1200 bytes.
//   - No message allocates memory.
//
// # Wire format
//
// All numbers are little-endian. Every packet begins with its kind, its flags (a greeting: the version), its size, and
// a CRC-32C over what follows it, whose initial value are the four bytes before it. Bytes beyond the size are the
// carrier's padding. A packet of a connection (data, ack, ping, close, closed):
//
//	 0  kind u8, flags u8, size u16, checksum u32 (zero where the packet is encrypted)
//	 8  connection u64, as the receiver calls it: 16 bits of place, 48 random bits
//	16  packet number u64, from 1, never used again
//	24  cumulative point u64: all fragments below it have arrived
//	32  credit u32: units from here on may not be sent; the low half of the 64-bit number that
//	    is nearest to the last one
//	36  time stamp u32 of sending, in units of 1024 ns
//	40  echo u32 of the newest packet's time stamp; 0: none
//	44  delay u16 since that packet arrived, in units of 1024 ns, at most 65535
//	46  words u8 of the bitmap, at most 64; repetitions u8 that arrived, modulo 256
//	48  sequence number u64 (data; close: of the next fragment)
//	56  payload of an ordered fragment; or tag u64, offset u64, length u64 and payload of a placed one. A part of a
//	    fragment has 8 bytes before these: length u16 of the fragment's payload, number u8 of the part, 5 bytes of 0
//	at the end, bitmap: bit k is the fragment (cumulative point + 1 + k)
//
// Flags are: 1 another fragment of the message follows, 2 placed, 4 key phase, 8 encrypted, 16 not in order (close), 32
// acknowledge at once, 64 part of a fragment. An encrypted packet is AES-256-GCM over everything from byte 48 on. Its first 48 bytes are the
// additional data, the nonce contains the packet number, and the 16 bytes of tag are at the end.
//
// Greetings (init, accept) have 176 bytes, so that no answer is longer than what it answers:
//
//	 0  kind u8, version u8, size u16, checksum u32
//	 8  to u64 (init: the endpoint; accept: the dialer's connection), from u64 (endpoint)
//	24  connection u64, nonce of 16 bytes
//	48  MTU u32: largest packet in one frame, bytes of a unit; credit u32 (units)
//	56  options u32 (1: encrypt, 2: takes parts of fragments); longest u16: placed packet; window u16 (fragments)
//	64  length u8 and up to 63 bytes of hello
//	128 cookie of 24 bytes: when it was made u64, and 16 bytes of mac (accept: zero)
//	152 sent u64: when, by the dialer's clock (accept: zero)
//	160 mac of 16 bytes, of all of it without the checksum; an accept's also of nonce and connection of the init
//	    that it answers
//
// Cookie (40 bytes): to u64, cookie. Reject (40 bytes): to u64, from u64, code u8 at 32. Reset (40 bytes): the
// connection as its sender got it. Notes (connect request, here, query, gone; 56 bytes): to u64, from u64, connection
// u64, sent u64, mac; the mac of query and gone also covers the address of the endpoint that is asked.
//
// MACs, cookies and the keys of encrypted connections come from package internal/handshake, under labels of this
// package. The handshake of that package would promise less than this one in what matters here: it computes a key
// agreement for every dialer, and remembers the dialer before it has shown where it receives; and it needs an ordered
// stream, while greetings are lost, repeated and overtaken. What it has and this one lacks is forward secrecy.
//
// # Credit
//
// A unit is one frame of the receiver, as large as the MTU in its greeting. A fragment takes as many units as its
// packet, without the bitmap, occupies frames: 1 for up to MTU bytes, 2 for one byte more. Both sides count the units
// of all fragments so far. The receiver breaks the connection if a fragment exceeds the credit, or lies a window or
// more above the cumulative point.
//
// A packet that is longer than the receiver's MTU is a placed fragment without a bitmap and without encryption.
//
// # Connecting
//
//	dialer                    listener
//	   <---------------- connect request   repeated: send me your init
//	init ---------------------->           without cookie: nothing is remembered
//	   <------------------------ cookie    40 bytes for 168
//	init, cookie -------------->           the address is proven; the mac shows the secret
//	   <------------------------ accept
//	ping ---------------------->           both are established
//
// A listener without a call for the init answers here, and so does a dialer without one to a connect request. While a
// call waits, two packets are signs of life of the peer: an init with cookie and mac, and a here, which counts for the
// time at which it was asked for.
//
// A reject means that the secret, the version or the endpoint is another one. Anyone could have sent it, so an accept
// within the next 50 ms overrides it.
//
// # Resets
//
// An endpoint answers a packet of an unknown connection with a reset: the endpoint was started again, or gave the
// connection up, or an attacker sent it a packet that was meant for another endpoint. Anyone could have sent a reset,
// so its receiver does not believe it but asks the peer with a query. Only a gone ends the connection, and only two
// endpoints can send it: the peer, and the endpoint that now lives alone at the peer's address. A peer that is stopped
// answers nothing (see note.go). An endpoint also sends a query if another endpoint connects from a peer's address.
//
// # Recovery
//
// Each packet has a number of its own and echoes the newest time stamp, so that every packet yields a round trip, also
// after fragments were sent again. A fragment is lost when a fragment that was sent later by more than a quarter of the
// least round trip has arrived (RFC 8985). Each needless repetition widens that margin by a quarter, up to the round
// trip. If nothing arrives for a while, one fragment is sent again whatever window and pace allow (RFC 8985's tail loss
// probe). That while is a round trip, the longest delay of an acknowledgement (50 µs), and the greater of four times the
// round trip's variance and another round trip (at most 100 µs). It then doubles five times, with a different jitter for
// each connection. A sender without credit asks for it at the same times.
//
// # Congestion
//
// See the comment in pacer.go. The queueing delay is held near 75 µs, and up to 300 µs higher while windows are small;
// delay alone does not lower a window below four fragments. Losses do, if they exceed the usual losses of the path by
// three percent. A host that does not run for a moment costs its peers little more than that moment.
//
// # Parts
//
// Packets that are too long for a path are lost without a word. A fragment that was lost three times, each time while
// the peer answered later packets, is sent again in parts of 1024 bytes, under its own number; a receiver counts it as
// arrived once it has all of them. So a repetition never places bytes twice. If the parts arrive, and no whole packet
// that is as long, packets have at most 1200 bytes from then on. Single fragments of other lengths then search for the
// longest packet that arrives. After ten minutes the longest packets are tried again (RFC 8899).
//
// # Limits
//
//   - 65536 connections, each with 64 to 4096 fragments under way. A connection carries at most its window times the
//     MTU in a round trip, and less on a path that loses packets.
//   - MTU 256 to 65535 bytes, of which the header takes 56, 80 in placed fragments, and encryption 16 more. A long
//     packet that loses one of its pieces is lost and is sent again as a whole.
//   - Flows whose windows are far below one fragment share the path unequally: 100 flows of 9000 bytes on 10 Gbit/s.
//     With longer packets this begins at fewer flows: use those on paths as fast as memory.
//   - Flows with longer round trips get less: a third, if the round trip is ten times as long.
//   - Sequence and packet numbers have 64 bits. Time stamps repeat after 73 minutes; the dead time ends a silence long
//     before.
//
// # Sources
//
// RFC 8985 (RACK and probes), RFC 9000 (cookies, resets, anti-amplification), RFC 9001 (key phases), RFC 9002 (probe
// time-outs), RFC 8899 (path MTU discovery), RFC 6479 (replay window), Swift (Kumar et al., SIGCOMM 2020), LEDBAT++
// (draft-irtf-iccrg-ledbat-plus-plus).
package link
