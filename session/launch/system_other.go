//go:build !linux

package launch

import "errors"

func inherit(int) error { return errors.ErrUnsupported }

func signalName(int) string { return "" }
