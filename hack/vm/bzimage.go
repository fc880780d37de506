//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
)

// unpackImage unpacks the kernel of a compressed image, which QEMU can start directly: emulated processors take seconds
// to unpack it. If that fails, the image is used unchanged.
func unpackImage(ctx context.Context, image, kernel string) {
	data, err := os.ReadFile(image)
	if err != nil {
		return
	}
	payload, tool, err := imagePayload(data)
	if err != nil {
		return
	}
	if tool, err = findTool(tool); err != nil {
		return
	}
	cmd := exec.CommandContext(ctx, tool, "-dc")
	cmd.Stdin = bytes.NewReader(payload)
	if data, err = cmd.Output(); err != nil || !bytes.HasPrefix(data, []byte("\x7fELF")) {
		return
	}
	writeFileAtomic(kernel, data)
}

// imagePayload finds the compressed kernel in an image that follows the x86 boot protocol, 2.08 or later, and the
// program that unpacks it.
func imagePayload(image []byte) (payload []byte, tool string, err error) {
	const setupSectors, magic, version, payloadOffset, end = 0x1f1, 0x202, 0x206, 0x248, 0x250
	if len(image) < end || string(image[magic:magic+4]) != "HdrS" || binary.LittleEndian.Uint16(image[version:]) < 0x208 {
		return nil, "", errors.New("not a Linux image")
	}
	sectors := uint64(image[setupSectors])
	if sectors == 0 {
		sectors = 4
	}
	// The setup code, its first sector not counted, precedes what the offset counts from.
	start := (sectors+1)*512 + uint64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	length := uint64(binary.LittleEndian.Uint32(image[payloadOffset+4:]))
	// Its last four bytes are the size when unpacked.
	if length < 8 || start+length > uint64(len(image)) {
		return nil, "", errors.New("the image ends before its kernel")
	}
	payload = image[start : start+length-4]
	switch {
	case bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")):
		return payload, "xz", nil
	case bytes.HasPrefix(payload, []byte("\x28\xb5\x2f\xfd")):
		return payload, "zstd", nil
	}
	return nil, "", errors.New("compressed in a way that is not known here")
}
