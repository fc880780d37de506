//go:build !linux || 386 || arm || mips || mipsle

package qnix

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func init() { driver.Register(kit.Elsewhere(Name)) }
