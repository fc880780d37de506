//go:build !linux

package nic

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// errElsewhere is the error of every call on systems other than Linux. The API is there, so that programs compile.
var errElsewhere = fmt.Errorf("the QNIX network interface needs Linux: %w", errors.ErrUnsupported)

type State uint8

const (
	Free      State = 0
	Pending   State = 1
	Done      State = 2
	Truncated State = 3
	Unknown   State = 4
	Gone      State = 5
	Canceled  State = 6
	Invalid   State = 7
	Fault     State = 8
	NoMemory  State = 9
	Garbled   State = 255
)

func (s State) String() string { return "state " + strconv.Itoa(int(s)) }
func (s State) Rung() bool {
	return s > Pending
}
func (*Process) SendDoorbell(i int) (State, int)    { return 0, 0 }
func (*Process) ReceiveDoorbell(i int) (State, int) { return 0, 0 }
func (*Process) FreeSend(i int)                     {}
func (*Process) FreeReceive(i int)                  {}

type Ring struct {
	Receive bool
	Index   int
	Overrun bool
}

func (*Process) Rung(seen *uint32) (r Ring, ok bool) { return Ring{}, false }
func (*Process) RingTail() uint32                    { return 0 }

var (
	ErrBusy      = errors.New("the command queue is full")
	ErrInUse     = errors.New("an operation on this context is in progress")
	ErrInvalid   = errors.New("invalid argument")
	ErrGone      = errors.New("the network interface is gone")
	ErrClosed    = errors.New("closed")
	ErrVersion   = errors.New("other version of the interface")
	ErrUntrusted = errors.New("invalid data from the network interface")
)

func Absent(err error) bool { return false }

func (*Process) Join(ctx context.Context, group Name, size int) error { return errElsewhere }
func (*Process) Leave(group Name) error                               { return errElsewhere }

type Handle uint32

type Access uint32

const (
	Read  Access = 1
	Write Access = 2
)

func (*Process) Translate(b []byte, access Access) (Handle, error) { return 0, errElsewhere }
func (*Process) TranslateFile(b []byte, fd int, offset int64, access Access) (Handle, error) {
	return 0, errElsewhere
}
func (*Process) TranslatePool(b []byte, access Access, pool int, stride int) (Handle, error) {
	return 0, errElsewhere
}
func (*Process) Untranslate(h Handle) error { return errElsewhere }

type NIC struct{}

type Info struct {
	Soft            bool
	NIC             int
	NICs            int
	PacketSize      int
	LocalMemory     int
	MaxProcesses    int
	MaxPerUser      int
	MaxContexts     int
	MaxCommands     int
	MaxRegion       int
	MaxPool         int
	MaxMessage      int
	MaxTranslations int
}

func Open(path string) (*NIC, error) { return nil, errElsewhere }
func (*NIC) Info() Info              { return Info{} }
func (*NIC) Close() error            { return errElsewhere }

type Command uint8

const (
	Send      Command = 1
	SendShort Command = 2
	Receive   Command = 10
)

type Flags uint16

const (
	Doorbell Flags = 1
	Inline   Flags = 2
	FromPool Flags = 4
)

type Descriptor struct {
	Handle Handle
	Len    uint32
	Offset uint64
}

type Message struct {
	Peer            Name
	Tag             uint16
	Len             int
	Flags           Flags
	Descriptors     []Descriptor
	Pool, PoolCount int
}

const (
	MaxTag     = 65407
	MaxMessage = 2147483647
)

func (*Process) Post(c Command, i int, m *Message) error                   { return errElsewhere }
func (*Process) SendShort(i int, to Name, tag uint16, n int) error         { return errElsewhere }
func (*Process) ReceiveShort(i int, from Name, tag uint16, room int) error { return errElsewhere }
func (*Process) Broadcast(i int, group Name, m *Message, short bool) error { return errElsewhere }
func (*Process) Multicast(i int, to []Name, m *Message, short bool) error  { return errElsewhere }
func (*Process) JoinGroup(i int, group Name, size int) error               { return errElsewhere }
func (*Process) LeaveGroup(i int, group Name) error                        { return errElsewhere }
func (*Process) Barrier(i int, group Name, size int) error                 { return errElsewhere }
func (*Process) CancelSend(i int) error                                    { return errElsewhere }
func (*Process) CancelReceive(i int) error                                 { return errElsewhere }
func (*Process) Kick() error                                               { return errElsewhere }
func (*Process) SetPool(k int, d Descriptor) error                         { return errElsewhere }

type Config struct {
	Name        string
	Group       string
	GroupSize   int
	Commands    int
	Sends       int
	Receives    int
	RegionSize  int
	PoolEntries int
}

type Process struct{}

func (*NIC) Register(ctx context.Context, c Config) (*Process, error) { return nil, errElsewhere }
func (*Process) PID() (pid uint16, generation uint16)                 { return 0, 0 }
func (*Process) NIC() uint16                                          { return 0 }
func (*Process) Sends() int                                           { return 0 }
func (*Process) Receives() int                                        { return 0 }
func (*Process) RegionSize() int                                      { return 0 }
func (*Process) SendRegion(i int) []byte                              { return nil }
func (*Process) ReceiveRegion(i int) []byte                           { return nil }
func (*Process) Gone() bool                                           { return false }
func (*Process) Misuse() uint32                                       { return 0 }
func (*Process) Abandon()                                             {}
func (*Process) Abandoned() bool                                      { return false }
func (*Process) Outside() <-chan struct{}                             { return nil }
func (*Process) Deregister() error                                    { return errElsewhere }

type Statistics struct {
	Commands           uint64 `json:"commands"`
	PacketsSent        uint64 `json:"packets_sent"`
	PacketsReceived    uint64 `json:"packets_received"`
	BytesSent          uint64 `json:"bytes_sent"`
	BytesReceived      uint64 `json:"bytes_received"`
	Doorbells          uint64 `json:"doorbells"`
	RequestsSent       uint64 `json:"requests_sent"`
	RequestsRemembered uint64 `json:"requests_remembered"`
	RequestsBuffered   uint64 `json:"requests_buffered"`
	Failures           uint64 `json:"failures"`
	Misuse             uint64 `json:"misuse"`
	SystemMessages     uint64 `json:"system_messages"`
	BadFrames          uint64 `json:"bad_frames"`
	LateFrames         uint64 `json:"late_frames"`
	Processes          uint64 `json:"processes"`
	LocalMemory        uint64 `json:"local_memory"`
}

func (*NIC) Statistics() (Statistics, error)                   { return Statistics{}, errElsewhere }
func (*Process) Statistics() (Statistics, error)               { return Statistics{}, errElsewhere }
func (*Process) Wait(seen uint32, timeout time.Duration) error { return errElsewhere }
func (*Process) Wake()                                         {}
func (*Process) Wakes() uint32                                 { return 0 }
func (*Process) WaitSince(seen, seenWakes uint32, timeout time.Duration) error {
	return errElsewhere
}
