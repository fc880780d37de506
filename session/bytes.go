package session

import "unsafe"

// Number is a type of which every value is bytes and nothing else.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint |
		~float32 | ~float64 | ~complex64 | ~complex128
}

// Bytes returns the memory of a slice of numbers, to send, receive, put or register it without a copy. It is as long
// as the slice, without what lies between its length and its capacity. The numbers have this machine's byte order:
// both ends need the same, and ints of the same size.
func Bytes[T Number](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}
