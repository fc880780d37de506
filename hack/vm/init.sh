#!/bin/sh
# The guest's process 1 (busybox): prepares the machine as /vm/config says, runs /vm/command, reports on the control
# port. That carries lines. To the host: "error TEXT", "ready", "exit STATUS TAINT". From it: "go", "signal NAME",
# "size ROWS COLUMNS". The host ends the machine.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# shellcheck source=/dev/null
. /vm/config
leaks=/sys/kernel/debug/kmemleak

unloaded=
while read -r module; do
	said=$(insmod "/vm/modules/$module" 2>&1) && continue
	case $module in
	crc32_pclmul.ko) ;; # an optimisation that not every processor has
	*) unloaded="$unloaded $said" ;;
	esac
done </vm/modules/list

tries=0
while [ ! -e /dev/vport0p3 ] && [ $tries -lt 100 ]; do
	sleep 0.05
	tries=$((tries + 1))
done
exec 3<>/dev/vport0p1

forever() {
	while :; do sleep 1000; done
}

fail() {
	echo "error $*" >&3
	forever
}

# try COMMAND...: runs it and gives up with what it said when it fails.
try() {
	said=$("$@" 2>&1) || fail "$*: $said"
}

[ -z "$unloaded" ] || fail "load modules:$unloaded"

if [ "$VM_PROBE" = 1 ]; then
	echo ready >&3
	forever
fi

# The root: the host's files, with a tmpfs over them that takes what is written.
mkdir -p /host /over /new
try mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host
try mount -t tmpfs -o "size=75%" tmpfs /over
mkdir -p /over/upper /over/work
try mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work overlay /new
mount -t debugfs debugfs /sys/kernel/debug
for dir in proc sys dev; do
	try mount --rbind /$dir /new/$dir
done
try mount -t tmpfs tmpfs /new/run
mkdir -p /dev/shm /dev/pts /new/run/vm /new/run/lock
try mount -t tmpfs tmpfs /new/dev/shm
try mount -t devpts devpts /new/dev/pts
ln -sf /proc/self/fd /dev/fd
ln -sf fd/0 /dev/stdin
ln -sf fd/1 /dev/stdout
ln -sf fd/2 /dev/stderr
cp /vm/command /new/run/vm/command
if [ -n "$VM_OUT" ]; then
	try mkdir -p "/new$VM_OUT"
	try mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 out "/new$VM_OUT"
fi
hostname "vm$VM_RANK"
printf '192.0.2.1 vm0\n192.0.2.2 vm1\n' >>/new/etc/hosts
# shellcheck disable=SC3045 # busybox has it
ulimit -l unlimited

# The network: eth0, alone or on the link to the other VM.
try ip link set lo up
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
try ip link set eth0 mtu "$VM_MTU"
try ip addr add "$VM_ADDR/24" dev eth0
try ip link set eth0 up
# With the first connection, each family chooses its secrets and patches the code that would do so again: now, while
# there is one processor.
for own in 127.0.0.1 ::1; do
	nc "$own" 1 </dev/null >/dev/null 2>&1 # nobody listens
done
try chroot /new /usr/bin/env rdma link add "${VM_RDMA}0" type "$VM_RDMA" netdev eth0
if [ -n "$VM_NETEM" ]; then
	# shellcheck disable=SC2086 # one word an argument
	try chroot /new /usr/bin/env tc qdisc add dev eth0 root netem $VM_NETEM
fi

# What has patched the kernel is done: the other processors.
for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
	[ ! -e "$cpu" ] || [ "$(cat "$cpu")" = 1 ] || echo 1 >"$cpu" || fail "take $cpu in"
done

if [ "$VM_LEAKS" = 1 ]; then
	# What the boot left behind is not the command's.
	echo scan=off >"$leaks"
	echo scan >"$leaks"
	echo clear >"$leaks"
fi

echo ready >&3
read -r word <&3
[ "$word" = go ] || fail "the host said '$word' instead of go"

# What the host says while the command runs.
while read -r word args; do
	case $word in
	signal) kill -s "$args" -- "-$(cat /new/run/vm/pid)" ;;
	size) chroot /new /usr/bin/env stty -F /dev/hvc0 rows "${args% *}" columns "${args#* }" ;;
	esac
done <&3 3>&- &

# In the foreground: a shell lets its background processes ignore SIGINT.
if [ "$VM_TTY" = 1 ]; then
	setsid -c chroot /new /bin/sh /run/vm/command 3>&- </dev/hvc0 >/dev/hvc0 2>&1
	status=$?
else
	# Through pipes: a port can be opened only once, and the command may open /dev/stdout again.
	mkfifo /run/out /run/err
	cat /run/out >/dev/vport0p2 3>&- &
	out=$!
	cat /run/err >/dev/vport0p3 3>&- &
	err=$!
	setsid chroot /new /bin/sh /run/vm/command 3>&- </dev/null >/run/out 2>/run/err
	status=$?
	# What the command left running may hold the pipes open: what it says after two seconds is lost.
	tries=0
	while [ $tries -lt 40 ] && { kill -0 $out || kill -0 $err; } 2>/dev/null; do
		sleep 0.05
		tries=$((tries + 1))
	done
fi
sync
if [ "$VM_LEAKS" = 1 ]; then
	# Only what has been lost for five seconds is reported; a second scan lets off what was on the move in the first.
	echo scan >"$leaks"
	sleep 6
	echo scan >"$leaks"
	# Linux 6.1 itself loses the name of a class that cannot be registered for lack of memory.
	awk 'function put() { if (object !~ /kobject_set_name\+[^\n]*\n[^\n]*__class_register\+/) printf "%s", object }
		/^unreferenced object/ { put(); object = "" }
		{ object = object $0 "\n" }
		END { put() }' "$leaks" >/run/leaks
	count=$(grep -c '^unreferenced object' /run/leaks)
	if [ "$count" -gt 0 ]; then
		echo "<3>kmemleak: $count new suspected memory leaks" >/dev/kmsg
		while IFS= read -r line; do
			echo "<3>$line" >/dev/kmsg
		done </run/leaks
	fi
fi
echo "exit $status $(cat /proc/sys/kernel/tainted)" >&3
forever
