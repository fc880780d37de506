// Package verbs is the driver for RDMA devices: InfiniBand, RoCE, and Soft-RoCE
// on any network interface. It adapts package verbs/ibv to the contract of
// package driver; package verbs/internal/connect makes the connections.
//
//	import _ "github.com/bywash/bywash/verbs"
//
//	d, _ := driver.Lookup("verbs")
//	nic, _ := d.Query(driver.Hints{Device: "mlx5_0"})
//
// It needs cgo and rdma-core's headers when the program is built, and rdma-core's libraries and a device when it runs.
// If one of them is missing, the error of Query names it and the remedy. A device's name may have a port: "mlx5_0:2".
//
// # Tracks
//
// The small track sends messages of up to one buffer (option buffer) into receives that the peer has posted ahead.
// Credits make sure that a receive is always posted. Messages of up to 220 bytes travel inside the work request, or as
// many as the device has room for there; longer ones are copied once at each end.
//
// The large track moves messages of up to 256 GiB without a copy. RecvPost registers the memory through package
// driver/regcache, its rdv data holds address and key, and the sender writes there. Memory of a mebibyte and more whose
// registration cannot be cached is registered in parts, while earlier parts are transferred. The keys of the later
// parts come as updates ([driver.RdvUpdater]), which the program must carry. A packet with more than 8 pieces goes
// through staging memory, and a short one in memory outside of an arena is copied. If the device has memory windows of
// type 2, the peer gets the key of a window, which is invalidated before the receive is given back. Otherwise it gets
// the key of the registration, which stays valid as long as the registration is cached.
//
// # Cost
//
// A message costs at most one call into C at each end and allocates nothing. A connection of the small track has 2 ·
// window buffers of its own: 512 KiB by default. With shared receives (option srq) it has 64 KiB of its own and 64 KiB
// of receives that all peers share; the number of messages that a peer may send ahead then depends on how many peers
// send.
//
// # Devices
//
// Devices differ in what they have beyond reliable connections. The driver goes on with fewer inline bytes, none
// included; with completion queues that cannot be made larger, or are full, by further ones, which cost each poll a
// call into C; without shared receives, memory windows or atomics. A device without reliable connections is
// unavailable.
//
// # One-sided access
//
// A context offers puts, gets, and the 64-bit additions and compare-and-swaps that the device has. Local memory outside
// of a region is registered for the operation, except for short puts and gets. A put is done when the peer's device has
// acknowledged it. An access with a revoked key fails with [driver.ErrRemoteKey] and breaks the connection, because the
// device puts a queue pair into the error state after an access that is not allowed.
//
// # Death
//
// The connection manager's link reports a peer's death at once. Otherwise the device reports it when it gives up
// retransmitting: every idle connection sends a sign of life each ninth of the dead time. A peer that is stopped stays
// connected, because its device answers for it. If a link of the connection manager is cut while the peer lives, its
// network must work again within two dead times, and from then on a peer that is stopped for longer is lost.
//
// # Options
//
//	gid               index or address of the GID to use; default: the one that reaches farthest
//	pkey-index        index of the partition key; default: the first of a full member
//	buffer            bytes of a buffer of the small track, 256 to 1048576; default 4096
//	window            messages of the small track a peer may send ahead, 2 to 512; default 64
//	srq               auto: receives of the small track are shared by all peers in sessions of more than 32
//	                  processes; off; or how many there may be, 64 to 65536: then they are shared
//	service-level     0 to 15
//	traffic-class     0 to 255
//	ack-timeout       n, when the device repeats after 4.096 µs · 2^n; default: the largest with which seven tries, each
//	                  four times as long, end within the dead time: 15 (134 ms) for 5 s
//	windows           auto: keys of receives are revoked when they end, where the device has memory windows of type 2; off
//	relaxed-ordering  off; on: the device may write and read the bytes of long messages in another order than it got them
//	managers          connection managers to use: oob, rdmacm; default all
//	exclude-managers  the ones not to use
//	dead-time         how long a peer that died can go unnoticed; default 5s
//
// and those of the connection managers, such as oob-port.
package verbs

// Name is the driver's name.
const Name = "verbs"
