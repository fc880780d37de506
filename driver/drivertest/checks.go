package drivertest

import "github.com/bywash/bywash/driver"

// check is one promise.
type check struct {
	name    string
	promise string
	need    func(*driver.Properties) bool // nil: always
	run     func(*end)
}

// checks is the suite.
var checks = []check{
	{"OpenOnce", "properties come before open, and a NIC opens exactly once", nil, checkOpenOnce},
	{"Properties", "capabilities and profile make sense, unknown options are refused", nil, checkProperties},
	{"URL", "the url is printable, short, and names an incarnation", nil, checkURL},
	{"Reaches", "both ends of a connection report that they reach each other, by their urls alone", nil, checkReaches},
	{"AbsentFeatures", "instances and context have optional parts exactly when announced", nil, checkAbsent},

	{"ConnectInAnyOrder", "both sides call Connect, in any order or at the same moment", nil, checkConnectOrder},
	{"ConnectMany", "many connections are under way at once, and the nth call meets the nth", nil, checkConnectMany},
	{"ConnectAbsentPeer", "Connect never blocks, ConnectWait is bounded by its context, Disconnect gives up", nil, checkConnectAbsent},
	{"ConnectForeignURL", "malformed, foreign and other-version urls are refused at once", nil, checkConnectForeign},
	{"ConnectSelf", "an instance to oneself receives what it sends", nil, checkConnectSelf},
	{"ConnectTwice", "two instances to one peer are separate", nil, checkConnectTwice},
	{"ConnectRestartedPeer", "the url of a dead incarnation never connects, that of the new one does", nil, checkConnectRestarted},
	{"ConnectSecret", "contexts with different secrets cannot connect", nil, checkConnectSecret},
	{"PostBeforeConnected", "posts return ErrInvalid until ConnectWait has returned nil", nil, checkEarlyPost},

	{"EveryForm", "every way to send reaches every way to receive", nil, checkForms},
	{"EverySize", "messages around every limit arrive whole, and nothing else is written", nil, checkSizes},
	{"Order", "messages arrive in the order of their posts", nil, checkOrder},
	{"Busy", "a full queue returns ErrBusy, takes nothing and loses nothing", nil, checkBusy},
	{"TooLong", "a send beyond MaxMessage is ErrTooLong and harms nothing", nil, checkTooLong},
	{"Truncation", "a message that is too long for its receive is *TruncatedError, and consumed", nil, checkTruncation},
	{"ManyInstances", "instances are used by many goroutines at once", nil, checkManyInstances},

	{"CancelBefore", "a cancelled receive is ErrCanceled, and the next message goes to the next receive", nil, checkCancelBefore},
	{"CancelRace", "cancel during and after arrival: the message or ErrCanceled, and the buffer is never written again", nil, checkCancelRace},

	{"ProbeFair", "probes are fair between peers", hasProbe, checkProbeFair},
	{"ProbeOnce", "a message is named once, and a receive then succeeds at once", hasProbe, checkProbeOnce},
	{"ProbeConcurrent", "each message is named to one of many callers", hasProbe, checkProbeConcurrent},
	{"ProbeRest", "what lies behind a message that was received is named to a caller that sleeps", hasProbe, checkProbeRest},
	{"ProbeEnd", "an instance that broke or was closed is named once for that", hasProbe, checkProbeEnd},

	{"WaitSleeps", "waits use no CPU, and the packet stays posted", hasAnyWait, checkWaitSleeps},
	{"WaitCancel", "waits end with their context, and by RecvCancelAny", hasAnyWait, checkWaitCancel},
	{"NoLostWakeup", "a message wakes the waiter, whenever it comes", hasAnyWait, checkWakeup},
	{"SendWait", "a send that is done wakes its waiter", hasSendWait, checkSendWait},

	{"RdvDataSize", "rdv data is within RdvSize", hasRdv, checkRdvSize},
	{"RdvDataDamaged", "damaged or foreign rdv data is ErrInvalid and harms nothing", hasRdv, checkRdvDamaged},
	{"RdvUpdateDamaged", "damaged updates are ErrInvalid and harm nothing", hasRdvUpdate, checkRdvUpdateDamaged},
	{"Prefetch", "prefetch, then post or unfetch", hasPrefetch, checkPrefetch},
	{"PrefetchOther", "a post with other memory than was prefetched is ErrInvalid until unfetched", hasPrefetch, checkPrefetchOther},

	{"PutGet", "puts and gets of every size, and nothing else is written", hasOneSided, checkPutGet},
	{"Atomics", "every atomic changes the memory as documented and returns the old value", hasAtomics, checkAtomics},
	{"AtomicSum", "atomics of several processes, and of the CPU, do not lose each other", hasAtomics, checkAtomicSum},
	{"Alignment", "misaligned atomics are ErrAlignment", hasAtomics, checkAlignment},
	{"Bounds", "operations that leave the region are ErrBounds", hasOneSided, checkBounds},
	{"KeyDamaged", "damaged and foreign keys are ErrRemoteKey", hasPut, checkKeyDamaged},
	{"KeyExpired", "keys end with their region", hasPut, checkKeyExpired},
	{"Access", "operations that the region does not allow are ErrAccess", hasOneSided, checkAccess},
	{"DeregisterWhileUsed", "memory is not written after Deregister has returned nil", hasPut, checkDeregisterBusy},
	{"StoppedInside", "a peer that is stopped inside a put writes nothing after Deregister has returned nil, whatever was closed here", hasPut, checkStoppedInside},
	{"Flush", "after a flush all operations are done", hasPut, checkFlush},
	{"Fence", "who sees what was put after a fence sees what was put before", hasPut, checkFence},
	{"OpDepth", "operations beyond the depth are ErrBusy, and none is lost", hasPut, checkOpDepth},

	{"DisconnectDelivers", "what was posted before Disconnect arrives, then ErrClosed", nil, checkDisconnectDelivers},
	{"Close", "closing a context ends everything in order", nil, checkClose},

	{"Death", "a peer killed in the middle of any operation is ErrBroken within the dead time", nil, checkDeath},
	{"DeathIsolated", "a death does not touch other connections", nil, checkDeathIsolated},
	{"Stopped", "a peer stopped for less than the dead time loses nothing", nil, checkStopped},

	{"CloseFrees", "close frees descriptors, mappings, goroutines and files", nil, checkCloseFrees},
	{"DeathFrees", "disconnecting from a dead peer frees everything", nil, checkDeathFrees},
	{"OpenSweeps", "what a killed process leaves is gone after the next open", nil, checkSweep},
	{"Counters", "counters count", nil, checkCounters},
	{"NoAllocations", "nothing on the data path allocates", notRace, checkAllocations},
}
