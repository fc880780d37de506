//go:build linux

package xsk

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TxMetadataLen is the size of [TxMetadata] in bytes. A frame whose descriptor has DescMetadata starts at least that
// many bytes into its chunk.
const TxMetadataLen = int(unsafe.Sizeof(TxMetadata{}))

// TxMetadata lies before a frame that is sent and asks the device for work on it; see
// https://docs.kernel.org/networking/xsk-tx-metadata.html. [DeviceFeatures] reports whether a device supports it. In
// copy mode the kernel does the work, checksums in software with [UMEMConfig.SoftwareChecksum].
//
// It is the kernel's struct xsk_tx_metadata.
type TxMetadata struct {
	flags uint64

	// Two views of the same bytes: of the request, checksum start and offset,
	// and a launch time; of the completion, the time stamp.
	word [2]uint64
}

// TxMetadata returns the metadata of the frame that starts at addr, which is a
// multiple of 8 and at least [TxMetadataLen] into its chunk; it panics
// otherwise. It needs [UMEMConfig.TxMetadata].
func (u *UMEM) TxMetadata(addr uint64) *TxMetadata {
	if !u.cfg.TxMetadata {
		panic("xsk: the UMEM has no transmit metadata")
	}
	if addr%8 != 0 || addr&uint64(u.chunkSize-1) < uint64(TxMetadataLen) {
		panic(fmt.Sprintf("xsk: no room for metadata before address %#x", addr))
	}
	return (*TxMetadata)(unsafe.Pointer(&u.mem[addr-uint64(TxMetadataLen)]))
}

// Reset removes all requests.
func (m *TxMetadata) Reset() { *m = TxMetadata{} }

// Checksum asks for the Internet checksum of the bytes from start to the end
// of the frame, stored at start+offset, where the pseudo-header's sum lies.
func (m *TxMetadata) Checksum(start, offset uint16) {
	m.flags |= unix.XDP_TXMD_FLAGS_CHECKSUM
	request := (*[2]uint16)(unsafe.Pointer(&m.word[0]))
	request[0], request[1] = start, offset
}

// LaunchTime asks that the frame leaves at a time of the device's clock, in
// nanoseconds (Linux 6.14).
func (m *TxMetadata) LaunchTime(ns uint64) {
	m.flags |= unix.XDP_TXMD_FLAGS_LAUNCH_TIME
	m.word[1] = ns
}

// RequestTimestamp asks for the time at which the frame leaves.
func (m *TxMetadata) RequestTimestamp() { m.flags |= unix.XDP_TXMD_FLAGS_TIMESTAMP }

// Timestamp returns the time at which the frame left, once [Socket.Complete] has returned the frame: in nanoseconds of
// the device's clock, in copy mode of the kernel's monotonic clock.
func (m *TxMetadata) Timestamp() uint64 { return m.word[0] }
