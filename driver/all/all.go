// Package all registers every driver that this module has:
//
//	import _ "github.com/bywash/bywash/driver/all"
package all

import (
	_ "github.com/bywash/bywash/afxdp"
	_ "github.com/bywash/bywash/qnix"
	_ "github.com/bywash/bywash/shm"
	_ "github.com/bywash/bywash/tcp"
	_ "github.com/bywash/bywash/verbs"
)
