// Package session makes messaging between the processes of a job out of drivers:
// tagged messages, active messages, one-sided access, long messages by
// rendezvous.
//
//	import _ "github.com/bywash/bywash/driver/all"
//
//	s, err := session.Join(ctx, session.Config{})   // finds its launcher
//	peer := s.Gate(1)                               // costs nothing yet
//	err = peer.Send(ctx, tag, buf)                  // connects, and sends
//	n, err := peer.Recv(ctx, tag, buf)
//
// # Words
//
// A gate is the way to one peer. It has rails: each is one driver's path, with
// a small track for short messages and a large track for long ones. A business card holds all
// urls of a process. A message that nobody has asked for is unexpected, and kept
// within a budget.
//
// # A short message
//
// Send makes a header of 16 bytes (package header) in a parcel, copies up to 256
// bytes of data behind it or points to the data, and posts one packet on the
// small track. If the driver has sent it at once, and shm has, the
// parcel is free again and no request was made. If the gate is not connected, or
// others wait already, the parcel queues at the gate, in order.
//
// Who receives polls, or is woken by the driver's wait; the packet is in the
// driver's buffer. Its header is parsed, package match finds the receive that was
// posted first, the data is copied to where it belongs, and the driver's buffer
// given back. Without a receive the packet is copied and kept.
//
// # A long message
//
//	sender                                   receiver
//	RTS (number, length, modes)       →      matched like any message, or kept
//	prefetch on the large track              cuts it into chunks, posts one on the large track
//	                                  ←      RTR (chunk, rdv data of the driver)
//	posts the chunk with the rdv data
//	  … the drivers move it; COOKIEs carry new rdv data …
//	its poll says done: sent                 its poll says done: received
//
// That is mode Cooperative. Package rdv has the others, and what is done when a
// chunk fails. Cooperative is taken from the length on from which the large track's bandwidth
// makes up for its latency, by the driver's profile; shorter ones go in fragments on
// the small track (Null). Config.Mode forces a mode.
//
// # An active message
//
// It is a short message that has no receive, but a handler. A long one goes by rendezvous into memory that counts against the
// budget; between two ranks one is under way at a time, and the next ones wait at the sender, unless they are urgent.
//
// # Connections
//
// The first message connects, whoever sends it. In the contract of drivers both
// sides call Connect; the other side learns of it by driver.Knocker: the driver says
// which incarnation wants a connection, the incarnation says which rank that is, and
// the card of that rank has to have that incarnation. For drivers that are no
// Knocker (all but shm) the session has a bell of its own: a socket, whose addresses stand in
// the card, for datagrams with a keyed checksum that only say who wants a connection.
//
// Who starts the ranks is asked for cards only. When it is gone, connections stand, and are made again with cards that
// are known; what names another rank fails, with the launcher's error.
//
// Join opens the drivers of the highest exclusivity that work here. The others are opened only if not all ranks are on this host, or
// not all have opened the same: launch.Agreer.
//
// Of the rails that both ends have, those of the highest exclusivity that reach
// the peer are taken; Gate.Explain says which and why, Config.Explain as it happens (bywash run --explain). Short messages, and those that control
// long ones, go over the first; chunks of long messages in mode Cooperative over all, in
// proportion to the profile's bandwidth at first, then each gets the next when it
// has done one.
//
// When a rail breaks, the others carry on, and OnError is told of a non-fatal error. Its chunks are
// asked for again once its driver has given the memory back. Short messages go on over
// the next rail, each once and in order (package relay): where there are several rails, which
// costs a copy of each, those that the peer may not have are kept. Puts and gets under way on it begin again, once the peer has given the rail up;
// atomics of the driver fail with ErrUnknown. Long messages in mode Put or Get, which use one rail, go on over another, in
// another mode if need be. Loss of the last rail ends the gate.
//
// Disconnect sends LEAVE when everything pending has left and is matched; the other side answers with its own. If something is not
// matched it only says that it wishes to leave: if the other side wishes so, too, both do. Long and
// synchronous messages that the receiver has not matched by then fail. When the others are done, each side says BYE; then both
// disconnect the drivers' instances. Messages sent meanwhile connect again.
//
// Quiesce takes all connections and registrations away and leaves the rest: each side of a gate says
// PAUSE, finishes what has begun, and says BYE, upon which nothing fails. Numbers of messages that are
// not matched, or not acknowledged, stay valid; Resume, or the peer, connects again. Keys of regions
// stay valid, too: those of before are served by messages.
//
// # Progress
//
// Every call makes progress; who waits polls for some ten microseconds and then
// sleeps. Behind it are one goroutine a rail that sleeps in the driver's wait, and one that
// polls what drivers only move when polled, with pauses up to a millisecond, and sleeps when there is
// nothing such. With Config.Progress Explicit both work only while a caller sleeps. An idle
// session uses no CPU.
//
// Callbacks (Out.Then, In.Then, OnError, OnClosed) and handlers run without any lock.
// Callbacks may do everything; handlers of active messages must not block.
//
// # Errors
//
// They are *Error values around the driver's: ErrBroken when the peer is gone
// without a word, noticed within the driver's dead time on every gate that is
// connected; ErrClosed when it closed in order. Everything pending with the peer
// fails with it; memory is given back only once the driver has let go of it. An atomic
// that was under way is ErrUnknown as well. ErrLimit besides: the peer wanted more to be kept for it than Config.PeerMemory or
// Config.PeersMemory allows. What an honest peer wants is far less; its messages wait at their sender when too many have no answer.
// docs/security.md lists everything that is kept for a peer, with its bound.
//
// # What Nemesis' network modules have
//
//	net_module_init, finalize         Join, Session.Close                 TestFirstMessageConnects, TestClosedSessionSaysSo
//	get_business_card                 Session.Card                        TestSessionsConnectByCard
//	connect_to_root                   Session.Connect                     TestSessionsConnectByCard
//	vc_init, vc_destroy               Session.Gate; Connect, Gate.Forget  TestGateIsUsedAgainAfterDisconnect, TestForgottenGatesLeaveNothing
//	vc_terminate                      Gate.Disconnect, Config.OnClosed    TestGateIsUsedAgainAfterDisconnect, TestCrossingDisconnectsLoseNothing
//	get_ordering                      always ordered                      TestOrderHoldsBetweenEachPair
//	iSendContig                       Gate.Isend                          TestOrderHoldsBetweenEachPair
//	iStartContigMsg                   Gate.Isend: nil request             TestSteadyStateAllocatesNothing
//	SendNoncontig                     Out.Layout                          TestLayoutsAndShortBuffers
//	OnDataAvail                       Out.Then, which may send more       TestCallbacksMaySendMore
//	handle_pkt                        link.handle                         FuzzHandle; FuzzParse (package header)
//	poll (in or out first)            Session.ProgressDir                 TestProgressLooksFirstWhereItIsTold
//	lmt Null, Put, Get, Cooperative   Config.Mode                         TestEveryModeCarriesEveryLength
//	lmt_initiate_lmt, RTS             long messages of Gate.Send          TestEveryModeCarriesEveryLength
//	lmt_start_recv, CTS               RTR                                 TestEveryOrderOfEventsEndsWell (package rdv)
//	lmt_handle_cookie                 COOKIE; Config.Section              TestEveryModeCarriesEveryLength
//	lmt_done_send, lmt_done_recv      DONE                                TestEveryModeCarriesEveryLength
//	ckpt_shutdown                     Session.Quiesce, Resume             TestQuiescedSessionsGoOnAsIfNothingHadBeen, TestWhatWaitsOutlastsThePause
//
// # What Open MPI's byte transfer layer has
//
//	add_procs, del_procs              Session.Gate, Gate.Connect, Gate.Disconnect   TestGateIsUsedAgainAfterDisconnect
//	exclusivity, reachability         Gate.Explain, Config.Explain        TestChoiceIsTheSameAtBothEnds, TestSessionTellsWhichRailsItTakesAndWhy
//	several modules for one peer      rails                               TestLongMessagesShareTheirRails, TestMessagesGoOnWhenARailIsLost, TestRanksSurviveTheDeathOfANIC
//	self peer                         Gate(Rank())                        TestEveryModeCarriesEveryLength
//	register (8-bit tag, callback)    Session.Handle                      TestActiveMessages
//	send                              Gate.AM                             TestActiveMessages
//	long fragments                    Gate.AM: by rendezvous              TestActiveMessagesOfAllLengthsKeepTheirOrder, TestLongActiveMessagesKeepToTheBudget
//	order tokens                      none: what begins after something is done comes after it; Gate.Fence   TestWhatIsDoneComesBeforeWhatBeginsLater, TestFenceOrders
//	sendi                             Gate.AMNow                          TestActiveMessages
//	alloc, free, prepare_src          Gate.Prepare, Prepared.AM, Send, Free     TestPreparedMessages
//	priority                          Out.Urgent, ActiveOut.Urgent        TestUrgentMessagesOvertakeWhatWaits, TestUrgentActiveMessagesOvertakeWhatWaits
//	signal                            always: who sleeps is woken         TestSleepingReceiverIsWoken
//	pipeline limits                   Config.Chunk, Section               TestChunksAreNoLongerThanAskedFor
//	register_mem, deregister_mem      Session.Register, Region.Deregister   TestOneSidedOperations
//	put, get                          Gate.Put, Gate.Get                  TestOneSidedOperations
//	put/get limits, alignment         messages carry what the driver cannot   TestOneSidedOperations
//	atomic_op, atomic_fop, cswap      Gate.Atomic, FetchAdd, CompareSwap  TestOneSidedOperations
//	ATOMIC_SUPPORTS_GLOB              Remote.AtomicWithCPU                TestOneSidedOperations, TestKeysSayWhetherAtomicsAreTheCPUsToo
//	flush, fence                      Gate.Flush, Gate.Fence              TestFenceOrders
//	register_error, (non)fatal        Config.OnError, Error.NonFatal      TestDeathOfAPeerFailsEverythingOfIt, TestRanksDieInEveryState, TestRanksOutliveTheirLauncherOrSayWhatIsWrong, TestRanksOutliveARank0ThatServes
//	component_progress                Session.Progress                    TestOrderHoldsBetweenEachPair
//	progress thread                   Config.Progress                     TestIdleSessionUsesNoCPU, TestSleepingReceiverIsWoken
//	dump                              Session.Dump                        TestDumpNamesWhatIsUnderWay
//	eager limit                       Config.Eager                        TestEagerLimit
//	ft_event                          Session.Quiesce, Resume             TestQuiescedSessionsGoOnAsIfNothingHadBeen
package session
