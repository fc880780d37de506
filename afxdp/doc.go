// Package afxdp is the driver for Ethernet devices. Frames bypass the kernel's network stack through AF_XDP sockets
// (package afxdp/xsk), and a reliable protocol (package afxdp/internal/link) makes messages of them. It works on any
// Ethernet device, and best if the device's driver supports XDP.
//
//	import _ "github.com/bywash/bywash/afxdp"
//
//	d, _ := driver.Lookup("afxdp")
//	nic, _ := d.Query(driver.Hints{Device: "eth1"})
//
// It needs Linux 5.9, or 5.10 for several queues, and root, or CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK.
// Instead of the last one, a limit of locked memory (RLIMIT_MEMLOCK) of 20 MiB does, and of 8 MiB more for each further
// queue, where the kernel copies (mode=skb, copy=always, veth) and the MTU is at most 1.7 KB; else twice that, and 8 MiB
// where frames have several chunks. Hints.Peers and the option frames add to it. All other traffic passes to the kernel as
// before. If the device has another XDP program, opening fails and leaves that program in place.
//
// # Options
//
// [driver.Hints].Options takes these options. The first value is the default, unless the text names another.
//
//	carrier     auto | udp4 | udp6 | ether: what frames are. auto takes udp4, else udp6,
//	            by the device's addresses, else ether: EtherType 0x88b5, on one segment.
//	            Both ends must have the same.
//	port        24249: of UDP, or in the header of ether. Both ends must have the same, as
//	            have contexts of one process and processes on disjoint queues of one device.
//	queues      numbers, as in 0,2-3: receive queues to open a socket on; without it all. Frames of
//	            ours that arrive on another queue are dropped: name all, or those that
//	            ntuple rules feed (ethtool -N DEV flow-type udp4 dst-port 24249 action 0).
//	mode        auto | native | skb: where the XDP program runs. auto is in the device's
//	            driver where that can, else, and on veth, where it is faster, in the stack.
//	copy        auto | always | never: never insists on zero-copy
//	netns       path of the network namespace that the device lies in, e.g. /run/netns/a; it needs
//	            CAP_SYS_ADMIN
//	encrypt     off | on: AES-256-GCM for all packets. It needs a session secret; one side's
//	            wish suffices.
//	checksum    off | on: UDP checksums over IPv4. Packets have a CRC-32C of their own.
//	frames      3072: chunks of each queue that peers may fill, the credit of all connections of
//	            the device; with Hints.Peers 64 for each peer, at least that
//	window      packets that one peer may have under way, a power of two, 64 to 4096: without it
//	            256 on the small track and 1024 on the large one; more than frames needs more
//	            frames, too
//	dead-time   5s: how long a silent peer is waited for, 100ms to 1h
//	busy-poll   0: how long a wait polls the device's driver, up to 10ms (SO_BUSY_POLL)
//	huge-pages  off | on: for the frames' memory
//	multi-buffer auto | off: frames of several chunks for the large track, where the MTU is
//	            longer than a chunk; both ends need Linux 6.6, and no encryption
//
// Contexts of one process on one device must have the same of these options, but for encrypt, window and dead-time:
// otherwise opening fails with driver.ErrInvalid.
//
// # Paths
//
// [driver.Instance].Path returns how frames get to and from the device: "native-zerocopy", "native-copy" or "skb-copy",
// or "copy" on a connection to oneself.
//
// The small track writes a message into frames, where it stays until the peer has acknowledged it, and the receiver
// reads it from the frames in which it arrived. Buffer sends and receives use these frames directly, so that only the
// kernel copies. A send is done when it is posted.
//
// The large track copies from the posted memory into frames and from frames into the posted memory, once at each end,
// in the order of arrival. A send is done when the peer has placed all of it.
//
// # Progress
//
// Any call moves frames for all instances of the device. There is one try-lock: its holder does what other goroutines
// have asked for, and no data path waits for it. One goroutine for each queue moves frames when
// no call does: once a millisecond while the program polls, otherwise when frames arrive. So a small message that is
// posted while others are under way may leave up to a millisecond later, if fewer than 16 fragments wait and the
// program polls nothing meanwhile.
//
// # Limits
//
// A message has at most 8 KiB on the small track and 256 GiB on the large one. An instance has at most 64 packets in
// flight on the small track and 16 on the large one. A packet is at most as long as the MTU and a chunk of 4 KiB allow:
// 3840 bytes of frame. On the large track it is at most as long as the MTU, up to 65535 bytes, and then takes several
// chunks at each end. If the path takes only shorter packets from some time on, messages go on in shorter ones.
//
// A device has room for 192 connections of the small track, or for Hints.Peers + 64 if that is more. Connections
// count that were closed here while their peers do not know yet. Each connection of either track takes 16 of the frames
// or, with long frames, as many as two packets of the MTU. Hints.Peers reserves frames for that many connections of
// each track; without it, busy connections may leave no more than a quarter for new ones. A connection for which there
// is no room is refused with ErrBusy, and the error names both options. The first context that is opened on a device
// sets them for all.
//
// A device takes 2 KiB, or 4 where it may write to memory itself or the MTU exceeds 1.7 KB, for each of its chunks:
// 5632 to send from (2560, and 16 for each connection of the small track) and, for each queue, 4/3 of the frames.
// Frames of several chunks take 8 MiB more, and a connection some 60 KiB on the small track and 150 KiB on the large
// one. Messages that a peer does not receive occupy chunks to send from. Each connection has 16 of its own; of 2048
// common ones a connection takes at most as many as it leaves. Posts beyond that fail with ErrBusy. At most 256
// contexts share a device. There is no one-sided access.
//
// docs/wire.md has the wire format, docs/security.md what a peer can and cannot do, docs/afxdp.md how to set up a
// machine.
package afxdp

// Name is the driver's name.
const Name = "afxdp"

// DefaultPort is the default UDP port, and the default port in the header of kind ether.
const DefaultPort = 24249
