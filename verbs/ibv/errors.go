package ibv

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// ErrUnavailable means that verbs cannot be used on this machine or in this binary at all. It matches
// errors.ErrUnsupported.
var ErrUnavailable = fmt.Errorf("RDMA verbs are not available: %w", errors.ErrUnsupported)

// Error is the type of all errors of this package. It matches its Errno with errors.Is; EBADF, a call on a closed
// object, also matches os.ErrClosed.
type Error struct {
	Verb   string        // the library's name of the call that failed, such as "reg_mr"
	Device string        // such as "mlx5_0"; empty before one is known
	Errno  syscall.Errno // the cause; 0 if only Detail knows it
	Detail string        // the cause in words, with the remedy where there is one
}

// Error returns "ibv: VERB DEVICE: detail: errno".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("ibv: ")
	b.WriteString(e.Verb)
	if e.Device != "" {
		b.WriteString(" " + e.Device)
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Errno != 0 {
		b.WriteString(": " + e.Errno.Error())
	}
	return b.String()
}

// Unwrap returns the errno, or nil.
func (e *Error) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// Is reports closed objects as os.ErrClosed.
func (e *Error) Is(target error) bool {
	return target == os.ErrClosed && e.Errno == syscall.EBADF
}

// fail makes an Error of the shim's result r, which is -errno.
func fail(verb, device string, r int, detail string) error {
	errno := syscall.Errno(-r)
	if detail == "" {
		detail = remedy(verb, errno)
	}
	return &Error{Verb: verb, Device: device, Errno: errno, Detail: detail}
}

// invalid makes the Error of an argument that was refused here.
func invalid(verb, device, format string, args ...any) error {
	return &Error{Verb: verb, Device: device, Errno: syscall.EINVAL, Detail: fmt.Sprintf(format, args...)}
}

// remedy returns the usual cause of errno for a verb, and the remedy.
func remedy(verb string, errno syscall.Errno) string {
	switch errno {
	case syscall.ENOMEM:
		switch verb {
		case "reg_mr":
			return "too little lockable memory; raise the limit (ulimit -l unlimited, or LimitMEMLOCK= of the service)"
		case "post_send", "post_recv", "post_srq_recv":
			return "the queue is full; poll completions first"
		}
		return "too little lockable memory or the device is out of resources (ulimit -l; rdma resource show)"
	case syscall.EACCES, syscall.EPERM:
		switch verb {
		case "open_device", "create_event_channel":
			return "no access to /dev/infiniband; give this user read and write access to it"
		case "reg_mr":
			return "the memory may not be accessed so; writable registrations need writable memory"
		}
	case syscall.EFAULT:
		return "the address range is not (completely) mapped, or not with the access asked for"
	case syscall.EOPNOTSUPP, syscall.ENOSYS:
		return "the device, its kernel driver or the installed rdma-core does not offer this"
	case syscall.ENODEV, syscall.EIO:
		return "the device is gone or broken; close everything on it and open it again"
	case syscall.ETIMEDOUT:
		if verb == "modify_qp" {
			return "the peer's address cannot be resolved; check GID, route and link"
		}
	case syscall.ENOTCONN:
		return "the id has no device yet: ResolveAddr, ResolveRoute or a connect request come first"
	case syscall.ENOENT:
		if verb == "create_event_channel" {
			return "no connection manager in the kernel; load it (modprobe rdma_ucm)"
		}
	}
	return ""
}
