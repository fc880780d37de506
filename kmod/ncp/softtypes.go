package ncp

import "time"

// SoftConfig configures a Soft.
type SoftConfig struct {
	NICs []uint16 // their coordinates, from 1

	// Limits of each NIC.
	Processes   int // entries of the NIC Process Table
	Names       int // processes of the whole cluster
	Groups      int
	Cluster     int // NICs in the cluster
	PacketSize  int // bytes of payload in a packet; the same in the whole cluster
	LocalMemory int // bytes for messages without a receive

	Translations int // of a process, at a time

	// Polls is how often the thread looks for work before it sleeps. It yields its processor between two polls.
	Polls int

	UDP      int           // a bound socket for the wire, which the caller owns; -1: none
	Key      [16]byte      // of the cluster
	DeadTime time.Duration // after which a silent host is dead; 0: 5 s
}

// SoftProcessConfig configures a process.
type SoftProcessConfig struct {
	Info     []byte // struct qnix_memory_info, of SoftLayout
	VNI, HPS []byte // mappings with the sizes in Info
	Wakeup   int    // an eventfd, to which the process writes when its NIC sleeps
	PID      int    // in this pid namespace, or 0
	PIDFD    int    // of the process, or -1
	Remote   bool   // whether the NIC may access its private memory
	User     uint64 // the process's user, for shares of tables; 0: root, who has no limit
}

// SoftCounters are counters since the start, over all NICs of the host.
type SoftCounters struct {
	Sleeps            uint64 `json:"sleeps"` // of the thread
	Rounds            uint64 `json:"rounds"` // of the thread over all NICs
	Cluster           int    `json:"nics"`   // in the cluster now
	DatagramsSent     uint64 `json:"datagrams_sent"`
	DatagramsReceived uint64 `json:"datagrams_received"`
	FramesSent        uint64 `json:"frames_sent"`
	FramesReceived    uint64 `json:"frames_received"`
	Retransmitted     uint64 `json:"retransmitted"`
	Unauthenticated   uint64 `json:"unauthenticated"` // datagrams dropped: another key, or damage
	WrongVersion      uint64 `json:"wrong_version"`
	WrongLimits       uint64 `json:"wrong_limits"` // hosts with another packet size
	Malformed         uint64 `json:"malformed"`
	LinksUp           uint64 `json:"links_up"`
	LinksDown         uint64 `json:"links_down"`
}

// SoftTaken is the result of SoftNew when a process of the cluster has the name.
const SoftTaken = 256

// SoftQuota is the result of SoftNew and SoftJoin when the user, or the NIC, holds its whole share of a table.
const SoftQuota = 257
