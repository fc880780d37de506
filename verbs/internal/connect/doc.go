// Package connect gets RC queue pairs connected: it finds out how two ports can
// exchange what their queue pairs must know of each other, does it
// authenticated, moves both ends through INIT, RTR and RTS, and notices when
// the peer goes away.
//
// # From a port to a connection
//
//	set, err := connect.Open(connect.Config{Incarnation: inc, Secret: secret})
//	mods, err := set.Query(&port)        // asks each manager about this port
//	publish(mods.Card())                 // printable, goes into the url
//
//	ep, err := mods.NewEndpoint(&connect.EndpointConfig{   // on both sides
//		PeerIncarnation: theirs, PeerCard: card, QPs: qps, Wake: wake})
//	err = ep.Start()                     // on at least one side
//	for ep.State() < connect.Ready { … } // or sleep until wake
//	err = ep.Err()                       // once the state is Failed or Lost
//	ep.Finalize(); <-ep.Done()           // now the queue pairs may be destroyed
//	mods.Close(); set.Close()
//
// # Managers
//
// How bytes get across before there are queue pairs is the matter of a
// [Manager]. Two come with the package:
//
//	oob      TCP between addresses of the hosts, authenticated by the session secret
//	rdmacm   the kernel's RDMA connection manager: needs an IP address on the
//	         RDMA port, no TCP between the hosts
//
// The life of a manager: [Manager.Register] declares its options, Init starts
// it, Query gives a [Module] for a port that it can serve, with a priority of 0
// to 100 and a blob of at most 255 bytes for the peers' managers of the same
// name; the module makes endpoints; Finalize of the module, then of the manager,
// end both. Include and exclude lists name managers: an unknown name is an
// error, and of an excluded manager no method but Name is ever called.
//
// Which manager connects two ports is decided from both cards alone, hence
// alike on both sides: among the managers that both have, the one whose lower
// priority is highest; then the one whose higher priority is highest; then the
// one whose name comes first.
//
// # Who is who
//
// A context is known by its incarnation, a random number. Each endpoint has an
// id, unique in its context. Of two contexts the one with the lower incarnation
// always asks and the other answers, whoever started, so that simultaneous
// starts cannot collide. The nth unfinished endpoint of one side meets the nth of the
// other; from then on the pair is named by both ids. An endpoint whose peer has its own
// incarnation connects its queue pairs to themselves.
//
// # One connection
//
// Two contexts have one link: a stream of bytes (TCP, or a queue pair of rdmacm's own) that
// begins with the handshake of internal/handshake. Either side dials, when an endpoint wants the
// peer. A link delivers each message once and in order. The messages of one connection:
//
//	asker                       answerer
//	              ←  call       so many endpoints were started here and wait to be asked
//	request       →             what the asker's queue pairs are
//	              ←  reply      what the answerer's are; the asker's go to RTR
//	confirm       →             the answerer's go to RTS, it is Ready
//	              ←  confirm    the asker's go to RTS, it is Ready
//
// The asker's ends go through these states (machine.go):
//
//	idle → requesting → modifying → confirming → modifying to RTS → (waiting for clear-to-send) → ready
//
// and the answerer's:
//
//	idle → waiting to be asked → replying → modifying → (waiting for clear-to-send) → ready
//
// The asker asks for one end after the other: it sends a request when the one before was replied to or
// given up. The answerer keeps at most one request that it cannot meet yet. Until the confirm it
// leaves its queue pairs alone: a request whose maker has given up uses up no endpoint. Either end says gone
// when it is finalized, and reject when it has failed.
//
// # A link is lost
//
// Both sides dial again, as long as an endpoint wants the peer. Each dial has an attempt number, one
// higher than any that its side knows; the link with the highest attempt stays, of two dials at the same time
// that of the lower incarnation. What the old link carried may or may not have arrived. So each side says over the
// new one where each of its ends stands: its request, reply, confirm or reject. All of them may be heard twice. An
// end that is not there any more is answered by gone. Queue pairs need not be reset: the steps
// that were done are still right, and the other side may stand already, and have sent data.
//
// # Time
//
// Nothing here blocks a caller. Steps of queue pairs run in goroutines of this
// package, since RTR towards an address that nobody has takes a second. While an end waits for the peer,
// pings find out whether the peer's process is there. A peer that is alive but has not made its endpoint is waited for
// without limit (Finalize gives up); one that is silent for Config.Timeout, in any state, is
// [driver.ErrBroken], and one whose process has died is so at once.
//
// # CTS
//
// A module, or an endpoint whose receives are posted late, uses CTS: the
// endpoint becomes Ready when the peer has said that its receives are posted.
// Without it an endpoint is Ready as soon as the peer can receive, which is as
// soon as its Prepare has returned.
//
// # Losing the peer
//
// The link over which an endpoint was connected stays. When it ends, and the peer cannot
// be reached again, the endpoint is [Lost]: of a killed process one learns
// at once. Finalize of the peer's endpoint, or Close, shows as Lost with [driver.ErrClosed].
//
// # Security
//
// Both sides prove that they have the session secret before anything else is
// looked at, and messages are encrypted and authenticated: see internal/handshake. A
// context without a secret must say so (Config.NoSecret). Those who have not proven
// themselves get 5 s, and 256 of them are kept.
package connect
