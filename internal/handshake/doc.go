// Package handshake proves that both ends of a byte stream know a session's secret, and seals the frames that
// follow. It also computes a keyed MAC for datagrams, which have no stream to shake hands over.
//
// # Walk through one handshake
//
// Both sides make a [Key] from the secret. The dialer calls [Dial] and the listener [Accept], each over a connection
// whose deadline the caller has set:
//
//	dialer                               listener
//	hello     →                                    version, key id, first Noise message
//	                   ←                 answer    second Noise message
//	claim     →                                    the first sealed frame
//	frames   ←→                                    sealed, numbered, in both directions
//
// 1. The dialer sends hello: a version, the key id (eight bytes that HKDF derives from the secret) and a fresh public
// key with a tag. The tag can be computed from the secret alone. Hello carries nothing else: an unauthenticated peer
// that answers learns which key the dialer has, and no more.
//
// 2. The listener looks up the key id among the secrets that it serves and checks the tag. It answers with a fresh
// public key of its own and a tag that only the secret and both public keys give. It sends a refusal instead if it
// speaks another version or has no such key. A refusal is not authenticated: it can do no more than silence could.
//
// 3. The dialer checks the tag: the listener knows the secret and has seen this hello. It sends its caller's claim
// (the sender's and the wanted peer's identity), sealed.
//
// 4. The listener opens the claim. Only now it knows that the dialer is no replay of an old hello: the keys of frames
// come from both fresh public keys. Accept returns the claim, and the callers communicate by [Conn.Send] and
// [Conn.Receive].
//
// The pattern is Noise_NNpsk0_25519_ChaChaPoly_SHA256 (noiseprotocol.org). Frames are encrypted and authenticated, each
// with its number, under one key for each direction: a frame that is changed, left out, repeated, swapped or sent back
// fails to open. An attacker that learns the secret later cannot read old frames, as their keys need a private key that
// is gone.
//
// Both sides mix a prologue into the handshake: the name of the protocol that uses it ([Config].Protocol) and values
// that its callers know of each other beforehand ([Config].bind). A handshake for another protocol, or with other bound
// values, fails. What only the dialer knows (its rank, its incarnation) must be part of the claim.
//
// # Without a stream
//
// [Key.MAC] authenticates a datagram, or proves the secret over the exported keying material of a TLS connection.
// A datagram can be recorded and sent again: the caller puts into it what makes a repetition harmless. A [Signer]
// computes many MACs without allocating. Drivers whose set-up travels in datagrams prove the secret by two MACs, one
// for each role, over the messages of both sides, nonces included.
//
// A protocol that has a handshake of its own derives its session keys by [Key.Subkey], from nonces of both sides.
//
// # Limits
//
// A secret has at least 16 bytes ([NewKey]); [OptionalKey] is for callers that may have none. A claim has at
// most 1024 bytes, a frame at most [Config].Limit. The package sets no deadline and starts no goroutine: a peer
// that sends its bytes slowly is bounded by the deadline of the caller's connection. The bytes are described in
// docs/wire.md.
package handshake
