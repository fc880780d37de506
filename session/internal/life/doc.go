// Package life is the life of a gate's connections, from the first wish to connect to the last Bye. It is a state
// machine without I/O, locks, clocks or allocations: it takes an event and answers with the actions that the gate has
// to carry out. Its test explores two machines that a slow network joins.
//
// # States
//
// Package session does not use the machine yet. The last column names the fields of its Gate that a state replaces.
//
//	without a connection
//	  Idle           nothing is wanted                                          gateIdle
//	  Paused         the last connection ended by a pause: nothing was lost     gateIdle, pausing == paused
//	  Waiting        to dial, until drivers let go of the last connection       gateConnecting, dialLater
//	  Dialing        a connection is being made                                 gateConnecting
//	  Abandoned      a dial that a pause has given up has not returned yet      gateConnecting, abandoned
//	  WaitingAgain, DialingAgain, AbandonedAgain: the same after a pause        … and pausing == paused
//	  Withdrawn      a dial of a forgotten gate has not returned yet            gateConnecting, forgotten
//	  Broken         everything failed; Disconnect makes the gate usable        gateBroken
//	  Gone           the gate was forgotten                                     gateBroken, forgotten
//	a connection that carries messages
//	  Up             nobody closes it                                           gateUp
//	  Hinted         the peer will leave once its messages are matched          gateUp, soonSeen
//	  Leaving        Disconnect was called; messages are still on their way     gateUp, leaving
//	  LeavingHinted  both of these                                              gateUp, leaving, soonSeen
//	  Announced      this side will leave once its messages are matched         gateUp, leaving, soonSent
//	a connection that is closed
//	  Left           Leave was said                                             gateClosing, leaveSent
//	  Dismissed      Leave was heard                                            gateClosing, leaveSeen
//	  Parted         Leave was said and heard                                   gateClosing, leaveSent, leaveSeen
//	  ByeSaid        and Bye was said                                           … and byeSent
//	  ByeHeard       and Bye was heard                                          … and byeSeen
//	  Ended          and both; drivers still have something of it               … and byeSent, byeSeen
//	  Finishing      the gate drops what is left; Cleared follows at once       finishing
//	a connection that is paused
//	  PauseSaid      Pause was said                                             gateClosing, pausing
//	  PauseMet       Pause was said and heard                                   … and pauseHeard
//	  PauseByeSaid   and Bye was said                                           … and byeSent
//	  PauseByeHeard  and Bye was heard                                          … and byeSeen
//	  PauseEnded     and both; drivers still have something of it               … and byeSent, byeSeen
//	  Resting        the gate puts aside what is left; Cleared follows at once  (in rest)
//
// Beside the state stands the wish for what follows ([Wish]): to leave the next connection as well, for which the gate has
// leaveNext, and leaving while it is connecting, or to be forgotten.
//
// # The difficult cases
//
// Both leave at once: each says Leave, is Left, hears the other's and is Parted. Nobody answers a Leave twice.
//
// A message is sent while the gate leaves: it waits for the next connection. Cleared begins that connection if it
// still waits, whatever order the Byes had. A Disconnect after such a message is kept as a wish for the next connection.
//
// Pause and Leave cross: Leave wins. The side that has said Pause hears Leave and is Dismissed; the side that has said
// Leave ignores the Pause, which the other has withdrawn by then or will.
//
// Pause and a wish to leave that was not said yet: the pause wins, and the wish is kept for the next connection. A side
// that pauses matches nothing, so a peer that waits until its messages are matched (Announced) would wait for ever, and
// the pause with it. For the same reason a Disconnect during a pause is kept as a wish.
//
// The peer dies between Leave and Bye: everything that is left fails and the gate is Broken. After both Byes (Ended,
// PauseEnded) the loss of the connection is its end in order: the peer was faster.
//
// A pause ends, and the next dial fails at the side that has nothing to send: it is Paused again and forgets nothing, as
// the peer may have given up only this attempt, and still waits for an answer to what it sent before the pause.
//
// A pause begins while drivers hold the last connection: the gate does not wait any more, so that no dial begins when
// they let go.
//
// A late wish: a request to connect that a network delivers after the connection that answered it was closed. Requests
// and the first message of a connection have the number of the sender's dial, so the gate does not pass on a request
// whose dial it has seen stand. Without numbers the two gates connect again without need; the test shows that.
//
// Forget while connecting: the dial is given up and the gate is Withdrawn until it has returned. A connection that came
// about meanwhile is discarded.
//
// A new incarnation of the peer: its requests name the new incarnation and those of the old one are not passed on, so
// the machine sees PeerGone for the old connection and Asked for the new one, in either order. Asked changes nothing
// while the old connection stands: the peer repeats it. A gate that stands with another incarnation than before a pause
// has to fail what the old one has not matched; the machine does not know incarnations.
package life
