//go:build !linux

package xsk

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// errElsewhere is the error of every call on systems other than Linux. The API is there, so that programs compile.
var errElsewhere = fmt.Errorf("AF_XDP needs Linux: %w", errors.ErrUnsupported)

func AttachedProgram(name string) (uint32, error) { return 0, errElsewhere }

var (
	ErrAgain      = errors.New("xsk: transmit: the device or the completion ring is full")
	ErrLinkDown   = fmt.Errorf("xsk: the device is down (ip link set DEV up): %w", syscall.ENETDOWN)
	ErrDeviceGone = fmt.Errorf("xsk: the device is gone: %w", syscall.ENXIO)
	ErrNoTxQueue  = fmt.Errorf("xsk: the device has no transmit queue of this number (ethtool -l DEV): %w", syscall.EINVAL)
	ErrClosed     = fmt.Errorf("xsk: the socket is closed: %w", os.ErrClosed)
)

var (
	ErrQueueBusy       = fmt.Errorf("another socket has the queue: %w", syscall.EBUSY)
	ErrProgramAttached = fmt.Errorf("another XDP program is attached: %w", syscall.EBUSY)
)

type Features struct {
	Native                                bool
	ZeroCopy                              bool
	MultiBuffer                           bool
	ZeroCopySegments                      int
	TxTimestamp, TxChecksum, TxLaunchTime bool
}

func DeviceFeatures(name string) (Features, error) { return Features{}, errElsewhere }

type Feature int

const (
	FeatureSocket      Feature = 0
	FeatureNeedWakeup  Feature = 1
	FeatureBusyPoll    Feature = 2
	FeatureMultiBuffer Feature = 3
	FeatureTxMetadata  Feature = 4
	FeatureTxBudget    Feature = 5
)

func (f Feature) String() string { return "feature " + strconv.Itoa(int(f)) }
func Probe(f Feature) error      { return errElsewhere }
func (*Socket) Kick() error      { return errElsewhere }
func (*Socket) WakeRx() error    { return errElsewhere }

type Match struct {
	EtherType uint16
	UDPPort   uint16
	All       bool
	VLANs     bool
}

const TxMetadataLen int = 24

type TxMetadata struct{}

func (*UMEM) TxMetadata(addr uint64) *TxMetadata         { return nil }
func (*TxMetadata) Reset()                               {}
func (*TxMetadata) Checksum(start uint16, offset uint16) {}
func (*TxMetadata) LaunchTime(ns uint64)                 {}
func (*TxMetadata) RequestTimestamp()                    {}
func (*TxMetadata) Timestamp() uint64                    { return 0 }

type LinkState int32

const (
	LinkUp        LinkState = 0
	LinkNoCarrier LinkState = 1
	LinkDown      LinkState = 2
	LinkGone      LinkState = 3
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

type Queues struct {
	Rx, Tx       int
	MaxRx, MaxTx int
}

func DeviceQueues(name string) (Queues, error) { return Queues{}, errElsewhere }

type Config struct {
	Device string
	Match  Match
	Attach Attachment
	Queues []int
	UMEM   *UMEM
	Memory UMEMConfig
	Socket SocketConfig
}

type Device struct {
	UMEM    *UMEM
	Program *Program
	Sockets []*Socket
}

func Open(cfg Config) (*Device, error) { return nil, errElsewhere }
func (*Device) Mode() string           { return "" }
func (*Device) Close() error           { return errElsewhere }

type Attachment int

const (
	AttachAuto    Attachment = 0
	AttachNative  Attachment = 1
	AttachGeneric Attachment = 2
)

func (a Attachment) String() string {
	switch a {
	case AttachNative:
		return "native"
	case AttachGeneric:
		return "skb"
	}
	return "auto"
}

type ProgramConfig struct {
	Device      string
	Match       Match
	Attach      Attachment
	MultiBuffer bool
}

type Program struct{}

func Attach(cfg ProgramConfig) (*Program, error) { return nil, errElsewhere }
func (*Program) Attached() (Attachment, error)   { return 0, errElsewhere }
func (*Program) Add(s *Socket) error             { return errElsewhere }
func (*Program) Remove(queue int) error          { return errElsewhere }
func (*Program) Close() error                    { return errElsewhere }

type Desc struct {
	Addr    uint64
	Len     uint32
	Options uint32
}

const (
	DescContinued = 1
	DescMetadata  = 2
)

type Copying int

const (
	CopyAuto   Copying = 0
	CopyAlways Copying = 1
	CopyNever  Copying = 2
)

type BusyPoll struct {
	Time   time.Duration
	Budget int
}

type SocketConfig struct {
	Device                   string
	Queue                    int
	Rx, Tx, Fill, Completion int
	Copying                  Copying
	NoNeedWakeup             bool
	MultiBuffer              bool
	BusyPoll                 BusyPoll
	TxBudget                 int
	BindTimeout              time.Duration
}

type Socket struct{}

func NewSocket(umem *UMEM, cfg SocketConfig) (*Socket, error) { return nil, errElsewhere }
func (*Socket) Fill(addrs []uint64) int                       { return 0 }
func (*Socket) FillFree() int                                 { return 0 }
func (*Socket) Receive(descs []Desc) int                      { return 0 }
func (*Socket) RxPending() int                                { return 0 }
func (*Socket) Transmit(descs []Desc) int                     { return 0 }
func (*Socket) TxFree() int                                   { return 0 }
func (*Socket) TxPending() int                                { return 0 }
func (*Socket) Complete(addrs []uint64) int                   { return 0 }
func (*Socket) UMEM() *UMEM                                   { return nil }
func (*Socket) Queue() int                                    { return 0 }
func (*Socket) ZeroCopy() bool                                { return false }
func (*Socket) FD() int                                       { return -1 }
func (*Socket) Close() error                                  { return errElsewhere }

type Stats struct {
	RxDropped     uint64
	RxInvalid     uint64
	TxInvalid     uint64
	RxRingFull    uint64
	FillRingEmpty uint64
	TxRingEmpty   uint64
}

func (*Socket) Stats() (Stats, error) { return Stats{}, errElsewhere }

const RxReserve = 256

type UMEMConfig struct {
	Chunks           int
	ChunkSize        int
	Headroom         int
	HugePages        bool
	Memory           []byte
	TxMetadata       bool
	SoftwareChecksum bool
}

type UMEM struct{}

func NewUMEM(cfg UMEMConfig) (*UMEM, error)  { return nil, errElsewhere }
func (*UMEM) HugePages() error               { return errElsewhere }
func (*UMEM) Chunks() int                    { return 0 }
func (*UMEM) ChunkSize() int                 { return 0 }
func (*UMEM) MaxRx() int                     { return 0 }
func (*UMEM) Addr(chunk int) uint64          { return 0 }
func (*UMEM) Chunk(addr uint64) int          { return 0 }
func (*UMEM) Frame(addr uint64) []byte       { return nil }
func (*UMEM) Span(addr uint64, n int) []byte { return nil }
func (*UMEM) Data(d Desc) []byte             { return nil }
func (*UMEM) Close() error                   { return errElsewhere }

type Event uint

const (
	EventRx   Event = 1
	EventTx   Event = 2
	EventWake Event = 4
	EventLink Event = 8
)

func (*Socket) Wake()                                                 {}
func (*Socket) Wait(want Event, timeout time.Duration) (Event, error) { return 0, errElsewhere }
func (*Socket) Link() LinkState                                       { return 0 }
