//go:build linux

package softnic

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

// Config configures a softnic. Zero values take defaults.
type Config struct {
	// Sockets are the paths at which the NICs listen, one each, in order; by
	// default nic.SocketPath of 0, 1, ….
	Sockets []string

	// NICs is the number of NICs; default 1. First is the number of the first NIC, from 1; NIC numbers are unique in the
	// cluster.
	NICs  int
	First int

	// Listen is the UDP address, "host:port", for frames of other hosts; if it is empty, other hosts are not reached.
	// Peers are the addresses of other hosts' softnics; it is enough that one side knows the other. Key is the cluster's
	// key: datagrams without it are dropped.
	Listen string
	Peers  []string
	Key    *Key

	// AllowUIDs are user ids that may connect besides this process's own. The NIC does not reach their private memory:
	// they must translate memory of memfds.
	AllowUIDs []int

	MaxProcesses    int // of each NIC; 1024
	MaxPerUser      int // of each NIC; 512
	MaxTranslations int // of a process, at a time; 1024
	LocalMemory     int // bytes for messages that came before their receive; 16 MiB
	PacketSize      int // bytes of payload in a packet, a multiple of 8, the same in the whole cluster; 16384

	// DeadTime is the time after which a silent host counts as dead; default 5 s.
	DeadTime time.Duration

	// Idle, if not 0, is the time after which a softnic without clients ends.
	Idle time.Duration
}

// Limits of Config.
const (
	maxNICs    = 64
	maxCluster = 64
	defaultUDP = "24911" // the wire's port
)

// ErrConfig means that Start does not take a value of the Config.
var ErrConfig = errors.New("wrong configuration")

func (c *Config) defaults() error {
	c.NICs = cmp.Or(c.NICs, max(1, len(c.Sockets)))
	c.First = cmp.Or(c.First, 1)
	for i := len(c.Sockets); i < c.NICs; i++ {
		c.Sockets = append(c.Sockets, nic.SocketPath(i))
	}
	c.MaxProcesses = cmp.Or(c.MaxProcesses, 1024)
	c.MaxPerUser = cmp.Or(c.MaxPerUser, 512)
	c.MaxTranslations = cmp.Or(c.MaxTranslations, 1024)
	c.LocalMemory = cmp.Or(c.LocalMemory, 16<<20)
	c.PacketSize = cmp.Or(c.PacketSize, 16384)
	for _, x := range []struct {
		name           string
		v, least, most int
	}{
		{"NICs", c.NICs, 1, maxNICs},
		{"the first NIC's number", c.First, 1, 65536 - c.NICs},
		{"processes", c.MaxProcesses, 1, 32768},
		{"processes of a user", c.MaxPerUser, 1, 32768},
		{"translations", c.MaxTranslations, 1, 65535},
		{"local memory", c.LocalMemory, 0, 1 << 30},
		{"the packet size", c.PacketSize, 1024, 65536},
	} {
		if x.v < x.least || x.v > x.most {
			return fmt.Errorf("%w: %s: %d is not from %d to %d", ErrConfig, x.name, x.v, x.least, x.most)
		}
	}
	switch {
	case c.PacketSize%8 != 0:
		return fmt.Errorf("%w: the packet size: %d is no multiple of 8", ErrConfig, c.PacketSize)
	case len(c.Sockets) != c.NICs:
		return fmt.Errorf("%w: %d NICs with %d sockets", ErrConfig, c.NICs, len(c.Sockets))
	case c.Listen == "" && len(c.Peers) > 0:
		return fmt.Errorf("%w: peers, but no local UDP address (option listen)", ErrConfig)
	case c.Listen != "" && c.Key == nil:
		return fmt.Errorf("%w: no cluster key (option key file)", ErrConfig)
	}
	return nil
}

// Key is the secret that all hosts of a cluster share: each datagram of the
// wire carries a keyed checksum. The data are not encrypted.
type Key [16]byte

// ReadKey reads a key file, which holds 32 hexadecimal digits. The file must belong to this user or root, and no other
// user may be able to read it.
func ReadKey(path string) (*Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w (make one: (umask 077; od -An -N16 -tx1 /dev/urandom | tr -d ' \\n' > FILE))", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	if st.Mode&0o077 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("key file %s: others can read it, or it is not yours (chmod 600)", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, 128))
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	k := new(Key)
	if n, err := hex.Decode(make([]byte, 128), []byte(strings.TrimSpace(string(b)))); err != nil || n != len(k) {
		return nil, fmt.Errorf("key file %s: it must hold %d hexadecimal digits", path, 2*len(k))
	}
	_, _ = hex.Decode(k[:], []byte(strings.TrimSpace(string(b))))
	return k, nil
}

// resolve parses a UDP address, whose port may be left out.
func resolve(addr string) (netip.AddrPort, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), defaultUDP)
	}
	a, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return a.AddrPort(), nil
}
