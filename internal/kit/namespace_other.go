//go:build !linux

package kit

import (
	"errors"

	"github.com/bywash/bywash/driver"
)

// InNamespace runs f if path is empty: only Linux has network namespaces.
func InNamespace(path string, f func() error) error {
	if path != "" {
		return errors.Join(driver.ErrInvalid, driver.ErrUnsupported)
	}
	return f()
}

// Namespace returns 0: only Linux has namespaces.
func Namespace(string) uint64 { return 0 }
