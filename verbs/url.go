//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"fmt"
	"strings"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// place is the rest of a url:
//
//	network/card
//
// of the port and of its connection managers.
type place struct {
	network connect.Network
	card    string
}

func (p place) String() string { return p.network.String() + "/" + p.card }

// parsePlace reads the rest of a url that comes from elsewhere. The card is checked where it is used.
func parsePlace(s string) (p place, err error) {
	network, card, ok := strings.Cut(s, "/")
	if !ok {
		return p, fmt.Errorf("%w: url: %q is not network/card", driver.ErrInvalid, s)
	}
	p.card = card
	p.network, err = connect.ParseNetwork(network)
	return p, err
}

// domain names the contexts with the same port, addresses and managers, in one network namespace.
func (p place) domain(device string, managers []string) string {
	return fmt.Sprintf("%016x,%v", kit.Identity("port %x %x %s %q", kit.Host(), kit.Namespace("net"), device, managers), p.network)
}
