//go:build !linux

package ibv

import "syscall"

func duplicate(int) (uintptr, error) { return 0, syscall.ENOSYS }

func mapMemory(int) ([]byte, error) { return nil, syscall.ENOSYS }

func unmapMemory([]byte) error { return nil }
