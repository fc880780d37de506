//go:build !linux

package regcache

import "syscall"

func totalMemory() int64 { return 0 }

func openUffd() (*uffd, error) { return nil, syscall.ENOSYS }

func (*uffd) wait() error                     { return syscall.ENOSYS }
func (*uffd) read([]byte) (int, error)        { return 0, syscall.ENOSYS }
func (*uffd) close()                          {}
func (*uffd) changing() bool                  { return false }
func (*uffd) register(lo, hi uintptr) error   { return syscall.ENOSYS }
func (*uffd) unregister(lo, hi uintptr) error { return syscall.ENOSYS }
