package xsk

// LinkState is the present state of a device's link.
type LinkState int32

const (
	LinkUp        LinkState = iota // set up, with a carrier
	LinkNoCarrier                  // set up, but without a carrier
	LinkDown                       // set down
	LinkGone                       // deleted, or moved to another namespace
)

func (l LinkState) String() string {
	switch l {
	case LinkUp:
		return "up"
	case LinkNoCarrier:
		return "no carrier"
	case LinkDown:
		return "down"
	}
	return "gone"
}

// Queues are the numbers of queues that a device uses, and can use at most.
type Queues struct {
	Rx, Tx       int
	MaxRx, MaxTx int
}

// Features are the capabilities that the driver of a device announces.
type Features struct {
	Native      bool // XDP programs in the driver, with redirection to sockets
	ZeroCopy    bool
	MultiBuffer bool // frames over several buffers, received by native programs

	// ZeroCopySegments is the most descriptors of a frame in zero-copy mode; 0 means 1.
	ZeroCopySegments int

	// Requests of [TxMetadata] that the device fulfils in zero-copy mode.
	TxTimestamp, TxChecksum, TxLaunchTime bool
}

// A Feature is a capability that some kernels with AF_XDP lack.
type Feature int

const (
	FeatureSocket      Feature = iota // AF_XDP itself
	FeatureBusyPoll                   // [SocketConfig.BusyPoll]
	FeatureMultiBuffer                // [SocketConfig.MultiBuffer]
	FeatureTxMetadata                 // [UMEMConfig.TxMetadata]
	FeatureTxBudget                   // [SocketConfig.TxBudget]
	numFeatures
)

// An Event is a reason for which a wait ended.
type Event uint

const (
	EventRx   Event = 1 << iota // Receive has a frame
	EventTx                     // at least half of the transmit ring is free
	EventWake                   // Wake was called
	EventLink                   // the state of the link has changed since the last wait: see Link
)

// Stats are the kernel's counters of a socket.
type Stats struct {
	RxDropped     uint64 // frames dropped for other reasons, for example because they are too long
	RxInvalid     uint64 // always 0 up to 6.18: bad addresses in the fill ring are skipped uncounted
	TxInvalid     uint64 // descriptors of the transmit ring that leave their chunk or the UMEM
	RxRingFull    uint64 // frames dropped because Receive was not called in time (Linux 5.9)
	FillRingEmpty uint64 // frames for which there was no chunk (Linux 5.9)
	TxRingEmpty   uint64 // times that there was nothing to send (Linux 5.9)
}
