package abi

import (
	"errors"
	"unsafe"
)

// The messages of a softnic's socket (SOCK_SEQPACKET). A request is a Header
// and the structure that the ioctl of the same number takes; an answer is an
// Answer and, if its error is 0, that structure as the ioctl leaves it. Answers may
// come in another order than requests, as some wait for other processes.
//
// Descriptors that go along: with the answer to ReqRegister the memfds of the
// Virtual Network Interface and the host page, and the eventfd to write to when
// the NIC sleeps; with a ReqTranslate possibly a memfd, in which the address is
// an offset then.
const (
	ReqInfo = iota
	ReqRegister
	ReqDeregister
	ReqTranslate
	ReqUntranslate
	ReqJoin
	ReqLeave
	ReqDoorbell
	ReqWait // not over a socket: ring_tail is a futex word
	ReqStatistics

	// ReqAbandon ends the wait of the request with the same id. It has no answer of its own.
	ReqAbandon = 64
)

// Header begins a request.
type Header struct {
	Request uint32
	ID      uint32 // chosen by the client, given back in the answer
}

// Answer begins an answer.
type Answer struct {
	Errno int32
	ID    uint32
}

// Largest numbers of descriptors with a message.
const (
	RegisterFDs  = 3
	TranslateFDs = 1
	MaxFDs       = 3
)

// HeaderSize is the size of a Header and of an Answer in bytes.
const HeaderSize = int(unsafe.Sizeof(Header{}))

// MaxMessageSize is the size of the longest message in bytes.
const MaxMessageSize = HeaderSize + int(max(unsafe.Sizeof(Info{}), unsafe.Sizeof(Register{}), unsafe.Sizeof(Statistics{})))

// RequestSize returns the size in bytes of the structure that comes with a request, or -1 for an unknown request.
func RequestSize(request uint32) int {
	switch request {
	case ReqInfo, ReqDeregister, ReqDoorbell, ReqStatistics, ReqAbandon:
		return 0
	case ReqRegister:
		return int(unsafe.Sizeof(Register{}))
	case ReqTranslate:
		return int(unsafe.Sizeof(Translate{}))
	case ReqUntranslate:
		return int(unsafe.Sizeof(Untranslate{}))
	case ReqJoin, ReqLeave:
		return int(unsafe.Sizeof(Group{}))
	}
	return -1
}

// errMalformed means that a message is malformed.
var errMalformed = errors.New("malformed message")

// ParseRequest splits a request into header and body. It returns errMalformed if there is no header. The caller must
// check the size of the body.
func ParseRequest(b []byte) (h Header, body []byte, err error) {
	if len(b) < HeaderSize {
		return h, nil, errMalformed
	}
	copy(Bytes(&h), b)
	return h, b[HeaderSize:], nil
}

// ParseAnswer splits an answer into header and body.
func ParseAnswer(b []byte) (a Answer, body []byte, err error) {
	if len(b) < HeaderSize {
		return a, nil, errMalformed
	}
	copy(Bytes(&a), b)
	if a.Errno < 0 {
		return a, nil, errMalformed
	}
	return a, b[HeaderSize:], nil
}

// plain lists the structures that are sent over the socket or passed to an ioctl. They have no pointers and only
// explicit padding.
type plain interface {
	Header | Answer | Info | Register | Translate | Untranslate | Group | Wait | Statistics | MemoryInfo
}

// Bytes returns the memory of v.
func Bytes[T plain](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// Decode copies b into v. It returns errMalformed if the sizes differ.
func Decode[T plain](v *T, b []byte) error {
	if len(b) != int(unsafe.Sizeof(*v)) {
		return errMalformed
	}
	copy(Bytes(v), b)
	return nil
}
