package nic

import "github.com/bywash/bywash/qnix/internal/abi"

// Command is an operation for Post.
type Command uint8

const (
	// Send sends from translated memory, or with Inline from the Context Region,
	// when the receiver grants it.
	Send Command = abi.CmdSend

	// SendShort sends from the Context Region, ahead of all commands of the process that wait.
	SendShort Command = abi.CmdSendShort

	// Receive receives a message of one sender with one tag.
	Receive Command = abi.CmdReceive
)

// Flags of a Message.
type Flags uint16

const (
	// Doorbell makes the doorbell ring after success, too. Without it the doorbell rings only if the operation fails.
	Doorbell Flags = abi.CtxDoorbell

	// Inline means that the Context Region holds the data to send, or the room to receive in. SendShort and other short
	// operations do not need it.
	Inline Flags = abi.CtxInline

	// FromPool means that the descriptors are in the Buffer Pool.
	FromPool Flags = abi.CtxPool
)

// Descriptor is a piece of translated memory.
type Descriptor struct {
	Handle Handle
	Len    uint32 // bytes
	Offset uint64 // from the start of the translated memory
}

// Message describes the operation of a context.
type Message struct {
	Peer  Name   // the receiver of a send, the sender of a receive
	Tag   uint16 // at most MaxTag; a receive takes messages of its own tag only
	Len   int    // bytes to send, or room for receiving
	Flags Flags

	// Descriptors name the memory, unless the flags say Inline or FromPool. They are written into the Context Region, so
	// at most RegionSize/16 of them. The memory belongs to the NIC until the doorbell has rung.
	Descriptors []Descriptor

	// Pool is the first of PoolCount descriptors in the Buffer Pool, with
	// FromPool.
	Pool, PoolCount int
}

// Limits of a message.
const (
	MaxTag     = abi.MaxTag
	MaxMessage = abi.MaxMessage // bytes; a NIC may allow less
)
