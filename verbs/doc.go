// Package verbs is the driver for RDMA devices: InfiniBand, RoCE, and Soft-RoCE
// on any network interface. It adapts package verbs/ibv to the contract of
// package driver; package verbs/internal/connect makes the connections.
//
//	import _ "github.com/bywash/bywash/verbs"
//
//	d, _ := driver.Lookup("verbs")
//	nic, _ := d.Query(driver.Hints{Device: "mlx5_0"})
//
// It needs what package verbs/ibv needs: cgo and rdma-core's headers when the
// program is built, rdma-core's libraries and a device when it runs. Where one
// is missing, Query says which. A device's name may have a port: "mlx5_0:2".
//
// # Tracks
//
// The small track sends messages of up to one buffer (option buffer) into
// receives that the peer has posted ahead. Credits see to it that there always
// is one. Messages of up to 220 bytes travel inside the work request; longer
// ones are copied once at each end.
//
// The large track moves any length without a copy: RecvPost registers the memory,
// through package driver/regcache, and its rdv data holds address and key; the
// sender writes there. Memory of a mebibyte and more that is registered for one message
// only is registered in parts, while those before them travel: the keys of the later
// parts come as updates ([driver.RdvUpdater]), which the program must carry. A packet with more than 8 pieces goes through staging
// memory, and a short one in memory outside of an arena is copied. Where the device
// has memory windows of type 2, what the peer gets is the key of a window, which is
// invalidated before the receive is given back; else the key of the registration, which stays
// valid as long as that is cached.
//
// # Cost
//
// A message costs at most one crossing into C at each end; nothing allocates. A
// connection of the small track has two times window buffers of its own: 512 KiB
// by default. With many peers (option srq) it has 64 KiB, and 64 KiB of receives that all
// peers share; what a peer may send ahead then depends on how many do.
//
// # One-sided access
//
// Puts, gets, and what atomics the device has: 64-bit additions and compare-and-swaps.
// Local memory outside of a region is registered for the operation, except for
// short puts. A put is done when the peer's device has acknowledged it. A
// key that was revoked is [driver.ErrRemoteKey] and breaks the connection: the
// device ends a queue pair that touches what it may not.
//
// # Death
//
// A peer's death is seen at once through the connection manager's link, or when the
// device gives up sending: every connection that is idle sends a sign of life
// each quarter of the dead time. A peer that is stopped stays connected; its
// device answers for it.
//
// # Options
//
//	gid               index or address of the GID to use; default: the one that reaches farthest
//	pkey-index        index of the partition key; default 0
//	buffer            bytes of a buffer of the small track, 256 to 1048576; default 4096
//	window            messages of the small track a peer may send ahead, 2 to 512; default 64
//	srq               auto: receives of the small track are shared by all peers from 32 peers on, if the session's
//	                  size is told; off; or how many there may be, 64 to 65536: then they are shared
//	service-level     0 to 15
//	traffic-class     0 to 255
//	ack-timeout       n, when the device repeats after 4.096 µs · 2^n; default: the largest with which seven tries, each
//	                  four times as long, end within the dead time: 15 (134 ms) for 5 s
//	windows           auto: keys of receives are revoked when they end, where the device has memory windows of type 2; off
//	managers          connection managers to use: oob, rdmacm; default all
//	exclude-managers  the ones not to use
//	dead-time         how long a peer that died can go unnoticed; default 5s
//
// and those of the connection managers, such as oob-port.
package verbs
