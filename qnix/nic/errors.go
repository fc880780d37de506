package nic

import "errors"

// Errors that calls return as they are, or wrapped; test with errors.Is.
// Errors of the kernel and of the NIC wrap their unix.Errno: EADDRINUSE for a
// name that is taken, EUSERS for too many processes of this user, EDQUOT for his share of a table, ENOMEM, ….
var (
	// ErrBusy means that the Command Queue is full. Nothing was posted; try again after the NIC has read commands.
	ErrBusy = errors.New("the command queue is full")

	// ErrInUse means that the context belongs to the NIC until its doorbell has rung. It is not detected for contexts
	// that were posted without the flag Doorbell.
	ErrInUse = errors.New("an operation on this context is in progress")

	// ErrInvalid means that an argument is out of range. Nothing was posted.
	ErrInvalid = errors.New("invalid argument")

	// ErrGone means that the NIC, or this process's registration, has ended.
	ErrGone = errors.New("the network interface is gone")

	// ErrClosed means that the program has closed the NIC or deregistered the process.
	ErrClosed = errors.New("closed")

	// ErrVersion means that the NIC has another version of the interface.
	ErrVersion = errors.New("other version of the interface")

	// ErrUntrusted means that the NIC's memory or answer is invalid.
	ErrUntrusted = errors.New("invalid data from the network interface")
)
