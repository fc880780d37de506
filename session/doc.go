// Package session lets the processes of a job exchange messages and access each other's memory. It chooses drivers
// (package driver), connects processes as they need it, matches messages by tag, moves long messages by rendezvous, and
// survives the death of peers and of network interfaces.
//
//	import _ "github.com/bywash/bywash/driver/all"   // registers every driver
//
//	s, err := session.Join(ctx, session.Config{})    // finds the launcher that started this process
//	defer s.Close(ctx)
//	peer := s.Gate(1)                                // the gate to rank 1; not connected yet
//	err = peer.Send(ctx, tag, buf)                   // connects, then sends
//	n, err := peer.Recv(ctx, tag, buf)               // blocks until a message with that tag has arrived
//
// # Terms
//
// A rank is the number of a process in its job, from 0.
//
// A gate is the way to one peer. [Session.Gate] returns the gate to a rank; [Session.Connect] makes a gate to a process
// of another session from its business card, which holds the urls at which that process can be reached. The first
// message connects a gate.
//
// A rail is one driver's path to a peer. A gate has one or more rails, and each rail two tracks: the small track
// carries short messages, the large track long ones, straight from memory to memory. Of the rails that both ends have,
// a gate takes those that reach the peer and have the highest exclusivity (a number that a driver gives itself: the
// more specialised, the higher). [Gate.Explain] lists the choice with its reasons.
//
// A tag is a number of 64 bits that a message carries. A receive or a probe selects messages by source and tag; bits of
// the tag can be ignored ([Match]). Messages from one peer match in the order in which they were sent, also over
// several rails.
//
// A request is an operation under way. Isend, Irecv, Iput, Iget and Iatomic return one, and never block. A nil request
// means that the operation is already done; Wait on it returns at once. [Request.Wait], or a [Request.Test] that
// reports done, gives the request back to the session: it must not be used afterwards. [WaitAny], [WaitSome] and
// [WaitAll] wait for several.
//
// A message is unexpected if it arrives before a receive matches it. The session keeps unexpected messages within a
// budget (Config.Unexpected): it grants each peer credit. A sender without credit keeps its messages, even one for
// which a receive is posted, and all later ones, so that order is kept. Long messages that are being transferred go on
// meanwhile, and so does one-sided access that a driver carries out. Config.OnError reports when that lasts
// ([ErrUnreceived]); [Session.Drop] throws unwanted messages away.
//
// An active message has a number instead of a tag, and calls the handler that [Session.Handle] has registered for it.
//
// A region is memory that peers read, write or change by atomics, without a call of the process that owns it. The owner
// registers it and sends its key to peers, which import the key ([Session.Register], [Gate.Import]).
//
// # Ownership
//
// A buffer belongs to the session from the call until the request is done, or, for calls that block, until they return.
// The buffer of a send may then be reused; the peer has not necessarily received the message. Headers are copied. The
// memory of an active message is valid until its handler returns. Registered memory must stay allocated until
// [Region.Deregister] has returned nil.
//
// # Blocking and progress
//
// Calls that take a context block until they are done or the context ends. All others return at once. A call that waits
// polls for 100 microseconds (500 for a long send), then sleeps. Calls that wait, Test, Progress, Iprobe, Improbe and Drop
// make progress for the whole session; others hand over their own work. By default goroutines of the session make
// progress as well while no caller does, and sleep when there is nothing to do: an idle session uses no CPU. With
// Config.Progress set to [Explicit] they work only while a caller sleeps.
//
// All methods may be called from any goroutine. Callbacks (Out.Then, In.Then, Config.OnError, Config.OnClosed) and
// handlers of active messages may call the session; callbacks run without a lock. None may block, because messages may
// wait for it (start a goroutine instead), and none may call [Session.Close], which waits for them.
//
// # Errors
//
// Operations fail with an *[Error] that names operation and peer and wraps the driver's error; test for the cause with
// [errors.Is]. [ErrBroken] means that the peer is gone without notice: every connected gate finds that out within the
// driver's dead time (1 s with shm, and with qnix where there is one NIC; 5 s with the others, unless configured).
// [ErrClosed] means that this side or the peer has closed in order. Either ends everything pending with the peer; a
// buffer is given back only once the driver no longer uses it. [ErrUnknown] marks an atomic that may or may not have
// been executed. [ErrLimit] means that a peer needed more memory of this process than the Config allows;
// docs/security.md lists each limit.
//
// When a rank ends, launchers that can report it do ([launch.Client.WatchEnds]): once no connection to the rank is left,
// operations with it fail and name its exit status, also those that never had a connection. A receive from any source
// fails when all other ranks have ended.
//
// When one of several rails breaks, the gate continues on the others, no message is lost or duplicated, and
// Config.OnError receives an error whose NonFatal is set. Losing the last rail breaks the gate; [Gate.Disconnect] makes
// a broken gate usable again. When the launcher is gone, connections stay, and gates whose cards are known can connect
// again.
//
// # See also
//
// docs/session.md describes how the session layer works, and what it covers of MPICH's Nemesis and Open MPI's byte
// transfer layer, docs/wire.md its messages byte by byte, docs/launch.md the launchers.
package session
