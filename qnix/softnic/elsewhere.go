//go:build !linux

package softnic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/bywash/bywash/kmod/ncp"
)

// errElsewhere is the error of every call on systems other than Linux. The API is there, so that programs compile.
var errElsewhere = fmt.Errorf("a softnic needs Linux: %w", errors.ErrUnsupported)

type Config struct {
	Sockets         []string
	NICs            int
	First           int
	Listen          string
	Peers           []string
	Key             *Key
	AllowUIDs       []int
	MaxProcesses    int
	MaxPerUser      int
	MaxTranslations int
	LocalMemory     int
	PacketSize      int
	DeadTime        time.Duration
	Idle            time.Duration
}

type Key [16]byte

func ReadKey(path string) (*Key, error)                { return nil, errElsewhere }
func RunIfStarted()                                    {}
func Ensure(ctx context.Context, path string) error    { return errElsewhere }
func EnsureConfig(ctx context.Context, c Config) error { return errElsewhere }

var (
	ErrConfig  = errors.New("wrong configuration")
	ErrRunning = errors.New("another softnic runs there")
)

type Server struct{}

func Supported() error                { return errElsewhere }
func Start(c Config) (*Server, error) { return nil, errElsewhere }
func (*Server) Addr() net.Addr        { return nil }
func (*Server) Sockets() []string     { return nil }
func (*Server) Counters() Counters    { return Counters{} }

type Counters = ncp.SoftCounters

func (*Server) Close() error                   { return errElsewhere }
func (*Server) Wait(ctx context.Context) error { return errElsewhere }
