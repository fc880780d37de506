// Package connect connects RC queue pairs. It chooses a way for two ports to exchange the attributes of their queue
// pairs, authenticates the exchange, moves both ends through INIT, RTR and RTS, and notices when the peer goes away.
//
// # From a port to a connection
//
//	m, err := connect.Open(connect.Config{Incarnation: inc, Secret: secret}, &port)
//	publish(m.Card())                    // printable, goes into the url
//
//	ep, err := m.NewEndpoint(&connect.EndpointConfig{   // on both sides
//		PeerIncarnation: theirs, PeerCard: card, QPs: qps, Wake: wake})
//	for ep.State() < connect.Ready { … } // or sleep until wake
//	err = ep.Err()                       // once the state is Failed or Lost
//	ep.Finalize(); <-ep.Done()           // now the queue pairs may be destroyed
//	m.Close()
//
// # Managers
//
// A manager carries bytes between hosts before queue pairs are connected. There are two:
//
//	oob      TCP between addresses of the hosts, authenticated by the session secret
//	rdmacm   the kernel's RDMA connection manager: needs an IP address on the
//	         RDMA port, no TCP between the hosts
//
// Each has a priority of 0 to 100, and on a port a blob of at most 255 bytes, which is its address for the peers'
// managers of the same name. Include and exclude lists name managers: an unknown name is an error, and an excluded
// manager does not listen anywhere.
//
// The choice of the manager for two ports depends on both cards alone, so that both sides choose alike. Among the
// managers that both cards have, the one whose lower priority is highest wins; then the one whose higher priority is
// highest; then the one whose name comes first.
//
// # Pairing
//
// A context is known by its incarnation, a random number. Of two contexts the one with the lower incarnation asks and
// the other answers. The asker dials the answerer for one of its endpoints after the other, so that its nth endpoint
// meets the answerer's nth. An endpoint whose peer has its own incarnation connects its queue pairs to themselves.
//
// # Links
//
// A link is a stream of bytes (TCP, or a queue pair of rdmacm's own) that begins with the handshake of
// internal/handshake. Each endpoint has a link of its own, with these messages:
//
//	asker                       answerer
//	request       →             what the asker's queue pairs are
//	              ←  reply      what the answerer's are; the asker's go to RTR
//	confirm       →             the answerer's go to RTS, it is Ready
//	              ←  confirm    the asker's go to RTS, it is Ready
//
// A request waits until the answerer has an endpoint for it. Until the confirm the answerer does not change its queue
// pairs: an endpoint whose asker has given up waits for the next request. An endpoint that ends for a reason of its own
// sends reject, otherwise gone, and a context that closes sends bye over all its links.
//
// An endpoint of the answerer that waits for a request would not notice the death of the asker's process. After 0.1 s
// its context therefore dials the asker to watch it: that link carries nothing but alive and bye.
//
// # Time
//
// No method of an endpoint blocks. Steps of queue pairs run in goroutines of this package, since RTR towards an
// unreachable address takes a second. While either side waits for the other, each sends alive. An endpoint waits without
// limit for a peer that is alive but has not made its endpoint (Finalize gives up). A peer that is silent for
// Config.Timeout causes [driver.ErrBroken]; a peer whose process has died causes it at once. From request and reply to
// Ready a pair may take three time-outs.
//
// # Losing the peer
//
// The link stays while its endpoint is connected. When it is cut, each side dials the other to watch it, and the
// connection goes on as long as the peer's process can be reached; the device then reports the end of its queue pairs. If
// it cannot, the endpoint is [Lost]: at once if the peer's process was killed, with [driver.ErrClosed] after Finalize of
// the peer's endpoint or its Close. A link that is cut before its endpoint is Ready fails the endpoint.
//
// # Security
//
// Both sides prove that they have the session secret before either reads anything else, and messages are encrypted and
// authenticated: see internal/handshake. A connection has 5 s to prove the secret, and at most 256 unproven connections
// are kept.
package connect
