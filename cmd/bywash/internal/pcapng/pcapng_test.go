package pcapng

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func TestBlocksAreAsTheFormatHasThem(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out, "bywash")
	id, err := w.Interface(Interface{Name: "eth0", Description: "x", LinkType: 1, Snap: 96})
	if err != nil || id != 0 {
		t.Fatal(id, err)
	}
	if err := w.Packet(Packet{Time: 0x0102030405060708, Sent: true, Length: 9, Data: []byte{1, 2, 3, 4, 5}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Statistics(0, Statistics{Start: 1, End: 2, Received: 3, Dropped: 4}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		// section: byte order, version, unknown length, os, application
		"0a0d0d0a 38000000 4d3c2b1a 01000000 ffffffff ffffffff",
		"03000500 4c696e75 78000000 04000600 62797761 73680000 00000000 38000000",
		// interface: Ethernet, 96 bytes, name, description, ns
		"01000000 30000000 01000000 60000000 02000400 65746830 03000100 78000000 09000100 09000000 00000000 30000000",
		// packet: interface, time, captured, length, bytes, outbound
		"06000000 34000000 00000000 04030201 08070605 05000000 09000000 01020304 05000000 02000400 02000000 00000000 34000000",
		// statistics: interface, time, start, end, received, dropped
		"05000000 4c000000 00000000 00000000 02000000 02000800 00000000 01000000 03000800 00000000 02000000",
		"04000800 03000000 00000000 05000800 04000000 00000000 00000000 4c000000",
	}, "")
	if got := hex.EncodeToString(out.Bytes()); got != strings.ReplaceAll(want, " ", "") {
		t.Errorf("got  %s\nwant %s", got, strings.ReplaceAll(want, " ", ""))
	}
}

func TestPacketsNeedTheirInterface(t *testing.T) {
	w := NewWriter(new(bytes.Buffer), "x")
	if err := w.Packet(Packet{Interface: 0}); err == nil {
		t.Error("a packet of an interface that was not announced was written")
	}
}

type full struct{}

var errFull = errors.New("no space")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteErrorsAreReported(t *testing.T) {
	w := NewWriter(full{}, "x")
	_, _ = w.Interface(Interface{})
	if err := w.Flush(); !errors.Is(err, errFull) {
		t.Errorf("Flush: %v", err)
	}
	if err := w.Packet(Packet{Length: 1, Data: []byte{1}}); !errors.Is(err, errFull) {
		t.Errorf("Packet after an error: %v", err)
	}
}
