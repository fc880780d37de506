// Package pmix is the client of PMIx that package launch needs: join a
// namespace, put, fence, get, abort. It opens libpmix.so.2 when it is first
// used, so that a program starts where the library is missing.
//
// The binding follows the ABI that the PMIx standard fixed with version 2, and
// needs no headers: a program built anywhere runs with every libpmix from 2.2
// on (Open MPI from 4, Slurm's mpi/pmix plugin). A test checks the layouts
// against the headers where those are installed.
//
// Calls block an operating-system thread until the PMIx server has answered,
// and cannot be interrupted.
package pmix

import "fmt"

// Status is PMIx's: 0 or a negative error.
type Status int

// The errors that a caller may want to distinguish.
const (
	ErrTimeout  Status = -24
	ErrNotFound Status = -46
)

// Those with which the server is gone.
const (
	errUnreach        Status = -25
	errCommFailure    Status = -49
	errLostConnection Status = -61
	errLostServer     Status = -101
)

// Error is a call that failed.
type Error struct {
	call   string // such as "PMIx_Get"
	Status Status
	text   string // the library's
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.call, e.text, int(e.Status)) }

// Lost reports whether the server is gone.
func (e *Error) Lost() bool {
	switch e.Status {
	case errUnreach, errCommFailure, errLostConnection, errLostServer:
		return true
	}
	return false
}
