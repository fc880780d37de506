//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/bywash/bywash/driver"
)

// Network is what of a port decides which other ports it can be connected to. Its text is
//
//	layer,type,partition,prefix
//
// with layer and type as in an offer, decimal, the partition key as 4 and the prefix as 16 hexadecimal digits. The
// prefix is the subnet's on InfiniBand. On Ethernet it is only the kind of addresses: 0 for IPv4, that of fe80:: for
// link-local ones, that of 2000:: for others.
type Network struct {
	linkLayer LinkLayer
	gidType   GIDType
	pkey      uint16
	prefix    [8]byte
}

// Network returns the network of a port.
func (p *Port) Network() Network {
	n := Network{linkLayer: p.LinkLayer, gidType: p.GIDType, pkey: p.PKey}
	if n.pkey == 0 {
		n.pkey = defaultPKey
	}
	switch {
	case p.LinkLayer == InfiniBand:
		n.prefix = [8]byte(p.GID[:8])
	case isIPv4(p.GID):
	case isLocal(p.GID):
		n.prefix = [8]byte{0xfe, 0x80}
	default:
		n.prefix = [8]byte{0x20}
	}
	return n
}

// String formats the network.
func (n Network) String() string {
	return fmt.Sprintf("%d,%d,%04x,%016x", n.linkLayer, n.gidType, n.pkey, n.prefix)
}

// ParseNetwork parses the network of a peer. Its error wraps ErrInvalid.
func ParseNetwork(s string) (n Network, err error) {
	f := strings.Split(s, ",")
	bad := fmt.Errorf("%w: %.80q is no network of a port: layer,type,partition,prefix", driver.ErrInvalid, s)
	if len(f) != 4 {
		return n, bad
	}
	layer, err1 := strconv.ParseUint(f[0], 10, 8)
	kind, err2 := strconv.ParseUint(f[1], 10, 8)
	key, err3 := strconv.ParseUint(f[2], 16, 16)
	prefix, err4 := hex.DecodeString(f[3])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || len(prefix) != len(n.prefix) {
		return n, bad
	}
	n = Network{linkLayer: LinkLayer(layer), gidType: GIDType(kind), pkey: uint16(key), prefix: [8]byte(prefix)}
	p := Port{LinkLayer: n.linkLayer, GIDType: n.gidType, MTU: 256}
	if p.check() != nil || n.String() != s {
		return Network{}, bad
	}
	return n, nil
}

// offer is an offer of some endpoint of a port on the network.
func (n Network) offer() offer {
	o := offer{linkLayer: n.linkLayer, gidType: n.gidType, pkey: n.pkey}
	if copy(o.gid[:], n.prefix[:]); n.linkLayer == Ethernet && n.prefix == [8]byte{} {
		o.gid[10], o.gid[11] = 0xff, 0xff
	}
	return o
}

// Apart returns why ports on two networks cannot be connected, or "": a request from one to the other would be
// rejected.
func (n Network) Apart(m Network) string {
	a, b := n.offer(), m.offer()
	if code := a.fits(&b); code != 0 {
		return code.String()
	}
	return ""
}

// Apart returns why the port cannot be connected to one with another card, or "". Its error is ErrInvalid for a
// malformed card.
func (m *Managers) Apart(card string) (string, error) {
	theirs, err := parseCard(card)
	if err != nil {
		return "", err
	}
	if i, _ := match(m.entries(), theirs); i < 0 {
		return m.noCommon(theirs), nil
	}
	return "", nil
}

func (m *Managers) noCommon(theirs []entry) string {
	var names []string
	for _, e := range theirs {
		names = append(names, e.name)
	}
	return fmt.Sprintf("no connection manager in common: %s has %s, the peer has %s", m.port, strings.Join(m.Names(), ", "),
		strings.Join(names, ", "))
}
