package nic

// Info describes a NIC.
type Info struct {
	Soft            bool // a NIC in user space
	NIC             int  // its coordinates, from 1 to 65535
	NICs            int  // NICs in the cluster, this one included, when it was asked
	PacketSize      int  // bytes of payload in a packet of the network
	LocalMemory     int  // bytes for messages without a receive
	MaxProcesses    int  // registered at a time
	MaxPerUser      int  // of one user
	MaxContexts     int  // of each kind, of one process
	MaxCommands     int  // entries of the Command Queue
	MaxRegion       int  // bytes of a Context Region
	MaxPool         int  // descriptors in the Buffer Pool
	MaxMessage      int  // bytes
	MaxTranslations int  // at a time, of one process
}

// Statistics are counters of a process or a NIC.
type Statistics struct {
	Commands           uint64 `json:"commands"`
	PacketsSent        uint64 `json:"packets_sent"` // to other NICs and to processes of this one
	PacketsReceived    uint64 `json:"packets_received"`
	BytesSent          uint64 `json:"bytes_sent"`
	BytesReceived      uint64 `json:"bytes_received"`
	Doorbells          uint64 `json:"doorbells"`
	RequestsSent       uint64 `json:"requests_sent"`       // Permission_Request
	RequestsRemembered uint64 `json:"requests_remembered"` // not granted when they arrived
	RequestsBuffered   uint64 `json:"requests_buffered"`   // granted with a local buffer
	Failures           uint64 `json:"failures"`            // doorbells that reported a failure
	Misuse             uint64 `json:"misuse"`
	SystemMessages     uint64 `json:"system_messages"`
	BadFrames          uint64 `json:"bad_frames"`   // from other NICs, dropped
	LateFrames         uint64 `json:"late_frames"`  // for a process that is gone, dropped
	Processes          uint64 `json:"processes"`    // now
	LocalMemory        uint64 `json:"local_memory"` // bytes in use, now
}
