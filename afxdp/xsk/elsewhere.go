//go:build !linux

package xsk

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// errElsewhere is the error of every call on systems other than Linux. The API is there, so that programs compile.
var errElsewhere = fmt.Errorf("AF_XDP needs Linux: %w", errors.ErrUnsupported)

func DeviceFeatures(name string) (Features, error) { return Features{}, errElsewhere }

func (f Feature) String() string { return "feature " + strconv.Itoa(int(f)) }
func Probe(f Feature) error      { return errElsewhere }
func (*Socket) Kick() error      { return errElsewhere }
func (*Socket) WakeRx() error    { return errElsewhere }

const TxMetadataLen int = 24

type TxMetadata struct{}

func (*UMEM) TxMetadata(addr uint64) *TxMetadata         { return nil }
func (*TxMetadata) Reset()                               {}
func (*TxMetadata) Checksum(start uint16, offset uint16) {}
func (*TxMetadata) LaunchTime(ns uint64)                 {}
func (*TxMetadata) RequestTimestamp()                    {}
func (*TxMetadata) Timestamp() uint64                    { return 0 }

func DeviceQueues(name string) (Queues, error) { return Queues{}, errElsewhere }

type Device struct {
	UMEM    *UMEM
	Program *Program
	Sockets []*Socket
}

func Open(cfg Config) (*Device, error) { return nil, errElsewhere }
func (*Device) Mode() string           { return "" }
func (*Device) Close() error           { return errElsewhere }

type Program struct{}

func Attach(cfg ProgramConfig) (*Program, error) { return nil, errElsewhere }
func (*Program) Attached() (Attachment, error)   { return 0, errElsewhere }
func (*Program) Add(s *Socket) error             { return errElsewhere }
func (*Program) Remove(queue int) error          { return errElsewhere }
func (*Program) Close() error                    { return errElsewhere }

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

func (*Socket) Stats() (Stats, error) { return Stats{}, errElsewhere }

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

func (*Socket) Wake()                                                 {}
func (*Socket) Wait(want Event, timeout time.Duration) (Event, error) { return 0, errElsewhere }
func (*Socket) Link() LinkState                                       { return 0 }
