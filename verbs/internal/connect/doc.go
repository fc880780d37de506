// Package connect connects RC queue pairs. It chooses a way for two ports to exchange the attributes of their queue
// pairs, authenticates the exchange, moves both ends through INIT, RTR and RTS, and notices when the peer goes away.
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
// A [Manager] carries bytes between hosts before queue pairs are connected. The package has two:
//
//	oob      TCP between addresses of the hosts, authenticated by the session secret
//	rdmacm   the kernel's RDMA connection manager: needs an IP address on the
//	         RDMA port, no TCP between the hosts
//
// The life of a manager: [Manager.Register] declares its options, Init starts it, Query gives a [Module] for a port
// that it can serve, with a priority of 0 to 100 and a blob of at most 255 bytes for the peers' managers of the same
// name; the module makes endpoints; Finalize of the module, then of the manager, end both. Include and exclude lists
// name managers: an unknown name is an error, and no method but Name of an excluded manager is ever called.
//
// The choice of the manager for two ports depends on both cards alone, so that both sides choose alike. Among the
// managers that both cards have, the one whose lower priority is highest wins; then the one whose higher priority is
// highest; then the one whose name comes first.
//
// # Identities
//
// A context is known by its incarnation, a random number. Each endpoint has an id, unique in its context. Of two
// contexts the one with the lower incarnation always asks and the other answers, whichever side started, so that
// simultaneous starts cannot collide. The nth unfinished endpoint of one side is matched with the nth of the other;
// both ids name the pair from then on. An endpoint whose peer has its own incarnation connects its queue pairs to
// themselves.
//
// # One connection
//
// Two contexts have one link: a stream of bytes (TCP, or a queue pair of rdmacm's own) that begins with the handshake
// of internal/handshake. Either side dials when one of its endpoints needs the peer. A link delivers each message once
// and in order. The messages of one connection:
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
// The asker asks for one end after the other: it sends a request when the request before was replied to or given up.
// The answerer keeps at most one request that it cannot match yet. Until the confirm it does not change its queue
// pairs, so that a request whose sender has given up uses up no endpoint. An end that is finalized sends gone, and an
// end that has failed sends reject.
//
// # A link is lost
//
// Both sides dial again as long as an endpoint needs the peer. Each dial has an attempt number, one higher than any
// that its side knows. The link with the highest attempt stays; if both sides dial at the same time, the link that the
// lower incarnation dialed stays. Messages of the old link may or may not have arrived. So each side repeats over the
// new link the state of each of its ends: its request, reply, confirm or reject. A receiver may therefore get them
// twice. An end that does not exist any more is answered by gone. Queue pairs need not be reset: completed steps remain
// valid, and the other side may already be connected and have sent data.
//
// # Time
//
// No method of an endpoint blocks. Steps of queue pairs run in goroutines of this package, since RTR towards an
// unreachable address takes a second. While an end waits for the peer, pings check that the peer's process is alive. An
// end waits without limit for a peer that is alive but has not made its endpoint (Finalize gives up). A peer that is
// silent for Config.Timeout, in any state, causes [driver.ErrBroken]; a peer whose process has died causes it at once.
//
// # CTS
//
// A module, or an endpoint whose receives are posted late, uses CTS: the endpoint becomes Ready when the peer has sent
// that its receives are posted. Without CTS an endpoint is Ready as soon as the peer's Prepare has returned, which must
// have posted its receives.
//
// # Losing the peer
//
// The link stays after its endpoints are connected. When it ends and the peer cannot be reached again, the endpoint is
// [Lost]; after the peer's process was killed this happens at once. Finalize of the peer's endpoint, or its Close,
// makes the endpoint Lost with [driver.ErrClosed].
//
// # Security
//
// Both sides prove that they have the session secret before either reads anything else, and messages are encrypted and
// authenticated: see internal/handshake. A context without a secret must ask for that (Config.NoSecret). A connection
// has 5 s to prove the secret, and at most 256 unproven connections are kept.
package connect
