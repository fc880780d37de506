//go:build !linux

package nic

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errElsewhere is the error of every call on systems other than Linux. The API is there, so that programs compile.
var errElsewhere = fmt.Errorf("the QNIX network interface needs Linux: %w", errors.ErrUnsupported)

func (*Process) SendDoorbell(i int) (State, int)    { return 0, 0 }
func (*Process) ReceiveDoorbell(i int) (State, int) { return 0, 0 }
func (*Process) FreeSend(i int)                     {}

func (*Process) Rung(seen *uint32) (r Ring, ok bool) { return Ring{}, false }
func (*Process) RingTail() uint32                    { return 0 }

func Absent(err error) bool { return false }

func (*Process) Join(ctx context.Context, group Name, size int) error { return errElsewhere }
func (*Process) Leave(group Name) error                               { return errElsewhere }

func (*Process) Translate(b []byte, access Access) (Handle, error) { return 0, errElsewhere }
func (*Process) TranslateFile(b []byte, fd int, offset int64, access Access) (Handle, error) {
	return 0, errElsewhere
}
func (*Process) TranslatePool(b []byte, access Access, pool int, stride int) (Handle, error) {
	return 0, errElsewhere
}
func (*Process) Untranslate(h Handle) error { return errElsewhere }

type NIC struct{}

func Open(path string) (*NIC, error) { return nil, errElsewhere }
func (*NIC) Info() Info              { return Info{} }
func (*NIC) Close() error            { return errElsewhere }

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

type Process struct{}

func (*NIC) Register(ctx context.Context, c Config) (*Process, error) { return nil, errElsewhere }
func (*Process) NIC() uint16                                          { return 0 }
func (*Process) Sends() int                                           { return 0 }
func (*Process) Receives() int                                        { return 0 }
func (*Process) SendRegion(i int) []byte                              { return nil }
func (*Process) ReceiveRegion(i int) []byte                           { return nil }
func (*Process) Gone() bool                                           { return false }
func (*Process) Abandon()                                             {}
func (*Process) Abandoned() bool                                      { return false }
func (*Process) Outside() <-chan struct{}                             { return nil }
func (*Process) Deregister() error                                    { return errElsewhere }

func (*NIC) Statistics() (Statistics, error)                   { return Statistics{}, errElsewhere }
func (*Process) Statistics() (Statistics, error)               { return Statistics{}, errElsewhere }
func (*Process) Wait(seen uint32, timeout time.Duration) error { return errElsewhere }
func (*Process) Wake()                                         {}
func (*Process) Wakes() uint32                                 { return 0 }
func (*Process) WaitSince(seen, seenWakes uint32, timeout time.Duration) error {
	return errElsewhere
}
