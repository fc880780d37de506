//go:build !linux

package driver

import "fmt"

func (a *Arena) create(int) error { return fmt.Errorf("it needs Linux: %w", ErrUnsupported) }

func (a *Arena) destroy() error { return nil }
