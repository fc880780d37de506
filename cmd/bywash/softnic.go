//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/bywash/bywash/qnix/softnic"
)

const softnicLong = `Softnic runs the QNIX network interface in user space, for machines that cannot
load the kernel module. Programs find it at a Unix socket, as they find the
module at /dev/qnix0; programs of this user may connect.

It serves until Ctrl-C; with --idle it ends when no program has been connected
for that time. An idle softnic uses no processor time. Programs that use the
driver qnix start a softnic when there is none; that one ends ten seconds after
its last program.

With --listen its NICs and those of other hosts, in user space or of the module,
form a cluster over UDP (port 24911 unless --listen names another). All hosts
have the same key. Make it once, with

    (umask 077; od -An -N16 -tx1 /dev/urandom | tr -d ' \n' > qnix.key)

and copy it to the others. Datagrams are authenticated, not encrypted. The NICs'
numbers must be unique in the cluster: see --first. Of each two hosts one must
name the other by --peer.`

const softnicExample = `  bywash softnic                        one NIC, for this user
  bywash softnic --nics 2               two of them: …/qnix0.sock and …/qnix1.sock
  bywash softnic --listen :24911 --key-file qnix.key            a host of a cluster
  bywash softnic --listen :24911 --key-file qnix.key --first 2 --peer otherhost`

type softnicFlags struct {
	config  softnic.Config
	keyFile string
	stat    time.Duration
}

func softnicCommand() *cobra.Command {
	var f softnicFlags
	cmd := &cobra.Command{
		Use:     "softnic [flags]",
		Short:   "Run the QNIX network interface in user space",
		Long:    softnicLong,
		Example: softnicExample,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	c := &f.config
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringSliceVar(&c.Sockets, "socket", nil, "`path` of a NIC's socket; once for each NIC (default qnix0.sock, … in $XDG_RUNTIME_DIR/bywash, else bywash-UID in the directory for temporary files)")
	fl.IntVar(&c.NICs, "nics", 0, "`count` of NICs (default 1, or as many as sockets)")
	fl.IntVar(&c.First, "first", 1, "`number` of the first NIC in the cluster; the others follow")
	fl.StringVar(&c.Listen, "listen", "", "UDP `address` for other hosts' NICs, as host:port or :port")
	fl.StringSliceVar(&c.Peers, "peer", nil, "another `host` of the cluster, as host or host:port; repeat the flag, or separate hosts by commas")
	fl.StringVar(&f.keyFile, "key-file", "", "`file` with the cluster's key, 32 hexadecimal digits, readable by its owner only")
	fl.IntSliceVar(&c.AllowUIDs, "allow-uids", nil, "`ids` of other users who may connect, separated by commas")
	fl.IntVar(&c.MaxPerUser, "max-per-user", 0, "processes of one user, on each NIC (default 512)")
	fl.IntVar(&c.PacketSize, "packet-size", 0, "payload of a packet in `bytes`, the same in the whole cluster (default 16384)")
	fl.DurationVar(&c.DeadTime, "dead-time", 0, "`time` that another host may be silent (default 5s)")
	fl.DurationVar(&c.Idle, "idle", 0, "end when no program has been connected for this `time`")
	fl.DurationVar(&f.stat, "stat", 0, "print counters at this `interval`, to standard error")
	return cmd
}

func (f *softnicFlags) run(cmd *cobra.Command) error {
	c := &f.config
	switch {
	case cmd.Flags().Changed("nics") && c.NICs < 1:
		return usagef("--nics %d: it is at least 1", c.NICs)
	case cmd.Flags().Changed("first") && c.First < 1:
		return usagef("--first %d: it is at least 1", c.First)
	case len(c.Sockets) > 0 && c.NICs > 0 && len(c.Sockets) != c.NICs:
		return usagef("--nics %d with %d sockets: name as many, or none", c.NICs, len(c.Sockets))
	case c.Listen == "" && (len(c.Peers) > 0 || f.keyFile != ""):
		return usagef("--peer and --key-file need --listen: other hosts' datagrams come there")
	case c.Listen != "" && f.keyFile == "":
		return usagef("--listen needs --key-file: only hosts that have the key are listened to")
	case c.Idle < 0, c.DeadTime < 0, f.stat < 0:
		return usagef("times are more than 0")
	}
	for _, a := range append([]string{c.Listen}, c.Peers...) {
		if _, port, err := net.SplitHostPort(a); err == nil && port != "" {
			if _, err := net.LookupPort("udp", port); err != nil {
				return usagef("address %q: its port is a number up to 65535", a)
			}
		}
	}
	if f.keyFile != "" {
		key, err := softnic.ReadKey(f.keyFile)
		if err != nil {
			return err
		}
		c.Key = key
	}
	s, err := softnic.Start(*c)
	if errors.Is(err, softnic.ErrConfig) {
		return &usageError{err}
	}
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	for i, p := range s.Sockets() {
		fmt.Fprintf(out, "NIC %d: %s\n", c.First+i, p)
	}
	if a := s.Addr(); a != nil {
		fmt.Fprintf(out, "other hosts: udp %s\n", a)
	}
	if f.stat > 0 {
		go func() {
			for range time.Tick(f.stat) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%+v\n", s.Counters())
			}
		}()
	}
	return served(s.Wait(cmd.Context()))
}
