//go:build !linux || 386 || arm || mips || mipsle

package kit

import (
	"runtime"

	"github.com/bywash/bywash/driver"
)

// Elsewhere is the name of a driver, and stands for it on systems other than Linux on a 64-bit machine, so that programs
// which import the driver compile there. Its queries fail with a driver.UnavailableError.
type Elsewhere string

// Name returns the driver's name.
func (e Elsewhere) Name() string { return string(e) }

// Devices returns one device, whose error says what the driver needs.
func (e Elsewhere) Devices() []driver.Device {
	return []driver.Device{{Name: string(e), Description: "driver for Linux", Err: e.err()}}
}

// Query fails.
func (e Elsewhere) Query(driver.Hints) (driver.NIC, error) { return nil, e.err() }

func (e Elsewhere) err() error {
	return &driver.UnavailableError{
		Driver: string(e), Reason: "it needs Linux on a 64-bit machine, this is " + runtime.GOOS + "/" + runtime.GOARCH, Absent: true,
	}
}
