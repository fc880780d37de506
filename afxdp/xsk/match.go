//go:build linux

package xsk

import (
	"encoding/binary"
	"errors"

	"github.com/cilium/ebpf/asm"
)

func (m Match) check() error {
	if m.EtherType == 0 && m.UDPPort == 0 && !m.All {
		return errors.New("nothing is matched: set EtherType, UDPPort or All")
	}
	if m.EtherType != 0 && m.EtherType < 0x0600 {
		return errors.New("an EtherType is at least 0x0600: smaller numbers are lengths")
	}
	return nil
}

// XDP verdicts, and offsets in struct xdp_md, of linux/bpf.h.
const (
	xdpDrop = 1
	xdpPass = 2

	ctxData     = 0
	ctxDataEnd  = 4
	ctxRxQueue  = 16
	ethHeader   = 14
	vlanTag     = 4
	protocolUDP = 17
)

// wire returns the number that a load of two bytes in network order yields.
func wire(v uint16) int32 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return int32(binary.NativeEndian.Uint16(b[:]))
}

// Registers of the program.
const (
	rCtx    = asm.R6
	rData   = asm.R2 // start of the header at hand
	rEnd    = asm.R3
	rType   = asm.R5
	rBound  = asm.R4
	rOffset = asm.R7
)

// need jumps to "pass" unless n bytes lie behind rData. The verifier requires such a comparison before each access.
func need(n int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(rBound, rData),
		asm.Add.Imm(rBound, n),
		asm.JGT.Reg(rBound, rEnd, "pass"),
	}
}

// instructions returns the program: matching frames go to the socket of the queue on which they arrived, or are dropped
// if it has none; all others pass to the kernel.
func (m Match) instructions(sockets int) asm.Instructions {
	var p asm.Instructions
	add := func(more ...asm.Instruction) { p = append(p, more...) }
	add(asm.Mov.Reg(rCtx, asm.R1))
	if !m.All {
		add(asm.LoadMem(rData, rCtx, ctxData, asm.Word), asm.LoadMem(rEnd, rCtx, ctxDataEnd, asm.Word))
		add(need(ethHeader)...)
		add(asm.LoadMem(rType, rData, 12, asm.Half))
		add(asm.JEq.Imm(rType, wire(0x8100), "tagged"), asm.JEq.Imm(rType, wire(0x88a8), "tagged"), asm.Ja.Label("plain"))
		vlan := need(ethHeader + vlanTag)
		vlan[0] = vlan[0].WithSymbol("tagged")
		add(vlan...)
		if !m.VLANs {
			add(asm.LoadMem(rType, rData, 14, asm.Half), asm.And.Imm(rType, wire(0x0fff)), asm.JNE.Imm(rType, 0, "pass"))
		}
		add(asm.LoadMem(rType, rData, 16, asm.Half), asm.Add.Imm(rData, vlanTag))
		add(asm.Mov.Reg(rType, rType).WithSymbol("plain"))
		if m.EtherType != 0 {
			add(asm.JEq.Imm(rType, wire(m.EtherType), "ours"))
		}
		if m.UDPPort != 0 {
			add(m.udp()...)
		}
		add(asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"), asm.Return())
	}
	add(
		// bpf_redirect_map returns its last argument if the map has no socket.
		asm.LoadMem(asm.R2, rCtx, ctxRxQueue, asm.Word).WithSymbol("ours"),
		asm.LoadMapPtr(asm.R1, sockets),
		asm.Mov.Imm(asm.R3, xdpDrop),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	)
	return p
}

// udp jumps to "ours" for datagrams to the port.
func (m Match) udp() asm.Instructions {
	var p asm.Instructions
	add := func(more ...asm.Instruction) { p = append(p, more...) }
	add(asm.JEq.Imm(rType, wire(0x86dd), "ipv6"), asm.JNE.Imm(rType, wire(0x0800), "pass"))

	// IPv4: the frame must not be a fragment, neither the first (more fragments) nor a later one (offset); options are
	// skipped.
	add(need(ethHeader + 20)...)
	add(
		asm.LoadMem(rOffset, rData, ethHeader+9, asm.Byte), asm.JNE.Imm(rOffset, protocolUDP, "pass"),
		asm.LoadMem(rOffset, rData, ethHeader+6, asm.Half), asm.And.Imm(rOffset, wire(0x3fff)),
		asm.JNE.Imm(rOffset, 0, "pass"),
		asm.LoadMem(rOffset, rData, ethHeader, asm.Byte),
		asm.And.Imm(rOffset, 15), asm.LSh.Imm(rOffset, 2), asm.JLT.Imm(rOffset, 20, "pass"),
		asm.Add.Reg(rData, rOffset), asm.Ja.Label("port"),
	)
	// IPv6: UDP must be the first next header.
	ipv6 := need(ethHeader + 40)
	ipv6[0] = ipv6[0].WithSymbol("ipv6")
	add(ipv6...)
	add(
		asm.LoadMem(rOffset, rData, ethHeader+6, asm.Byte), asm.JNE.Imm(rOffset, protocolUDP, "pass"),
		asm.Add.Imm(rData, 40),
	)
	port := need(ethHeader + 4)
	port[0] = port[0].WithSymbol("port")
	add(port...)
	add(asm.LoadMem(rType, rData, ethHeader+2, asm.Half), asm.JEq.Imm(rType, wire(m.UDPPort), "ours"))
	return p
}
