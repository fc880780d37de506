//go:build linux

package hostile

import (
	"net/url"
	"strings"

	"github.com/bywash/bywash/internal/lab/attack"
)

// containsPath reports whether a card names a socket.
func containsPath(card, name string) bool {
	return strings.Contains(card, name) || strings.Contains(card, url.PathEscape(name))
}

// envOf gives a program further variables.
func envOf(vars []string) func(*attack.Program) {
	return func(p *attack.Program) { p.Cmd.Env = append(p.Cmd.Env, vars...) }
}
