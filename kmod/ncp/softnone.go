//go:build !(cgo && linux)

package ncp

import (
	"errors"
	"fmt"
	"net/netip"
)

// Without cgo there is no NIC in user space. The types are there, so that programs build.
type (
	Soft        struct{}
	SoftProcess struct{}
	SoftCommand uint32
)

const (
	SoftNew SoftCommand = iota + 1
	SoftDelete
	SoftJoin
	SoftLeave
	SoftAbandon
)

var errNone = fmt.Errorf("%w: this program was built without cgo (CGO_ENABLED=1 and a C compiler are needed)", errors.ErrUnsupported)

func SoftSupported() error { return errNone }

func NewSoft(SoftConfig) (*Soft, error)      { return nil, errNone }
func SoftLayout(register, info []byte) error { return errNone }

func (*Soft) Close()                                                            {}
func (*Soft) Run(func(cookie uint64, result int))                               {}
func (*Soft) Stop()                                                             {}
func (*Soft) AddPeer(netip.AddrPort) error                                      { return errNone }
func (*Soft) NewProcess(int, int, SoftProcessConfig) (*SoftProcess, error)      { return nil, errNone }
func (*Soft) Statistics(int, []byte)                                            {}
func (*Soft) Counters() SoftCounters                                            { return SoftCounters{} }
func (*SoftProcess) Free()                                                      {}
func (*SoftProcess) Post(SoftCommand, uint64, [20]byte, [20]byte, uint32) error { return errNone }
func (*SoftProcess) PID() (pid, generation uint16)                              { return 0, 0 }
func (*SoftProcess) Translate([]byte, int) error                                { return errNone }
func (*SoftProcess) Untranslate(uint32) error                                   { return errNone }
func (*SoftProcess) Statistics([]byte)                                          {}
