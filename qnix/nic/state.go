package nic

import "github.com/bywash/bywash/qnix/internal/abi"

// State is the state of a context's doorbell.
type State uint8

const (
	Free      State = abi.DBFree      // nothing was posted
	Pending   State = abi.DBPending   // posted, and not rung yet
	Done      State = abi.DBDone      // succeeded
	Truncated State = abi.DBTruncated // received, but the message was longer than the room for it
	Unknown   State = abi.DBUnknown   // no process or group has that name
	Gone      State = abi.DBGone      // the other process, or its NIC, is gone
	Canceled  State = abi.DBCanceled  // by CancelSend or CancelReceive
	Invalid   State = abi.DBInvalid   // the context has an invalid value
	Fault     State = abi.DBFault     // a descriptor names memory that is not translated
	NoMemory  State = abi.DBNoMemory  // a table of a NIC is full, or it has no memory
	Garbled   State = 0xff            // the NIC wrote an invalid value
)

var stateNames = [...]string{"free", "pending", "done", "truncated", "unknown", "gone", "canceled", "invalid", "fault", "no memory"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "garbled"
}

// Rung reports whether the operation has ended, well or not.
func (s State) Rung() bool { return s > Pending }

// Ring names a doorbell that has rung.
type Ring struct {
	Receive bool // of a Receive Context
	Index   int

	// Overrun means that the reader was so slow that entries were lost: check every doorbell. The other fields mean
	// nothing then. It cannot happen if the entry of each context is read before the context is posted again.
	Overrun bool
}
