package nic

import "github.com/bywash/bywash/qnix/internal/abi"

// Config configures a registration. The zero value of each number means the default.
type Config struct {
	// Name is the name of the process in the cluster; see [MakeName]. It is required.
	Name string

	// Group, if not empty, is the name of a group to join. Register then returns when GroupSize processes have joined,
	// so that all of them know each other.
	Group     string
	GroupSize int

	Commands    int // entries of the Command Queue, a power of two; 256
	Sends       int // Send Contexts; 64
	Receives    int // Receive Contexts; 64
	RegionSize  int // bytes of each Context Region, a multiple of 64; 1024
	PoolEntries int // descriptors in the Buffer Pool; 0
}

// Handle names translated memory in descriptors. It is never 0.
type Handle uint32

// Access is what the NIC may do with translated memory.
type Access uint32

const (
	Read  Access = abi.AccessRead  // send from it
	Write Access = abi.AccessWrite // receive in it
)
