//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Exit statuses that are not the command's own.
const (
	statusUsage   = 2   // wrong usage
	statusFault   = 123 // the guest's kernel reported a fault
	statusTimeout = 124 // the time limit was over
	statusBroken  = 125 // no machine, or it died
)

const usage = `usage: vm [flags] -- COMMAND [ARG...]
       vm [flags] -shell
       vm [-kernel VERSION] [-debug] -headers

Boots a virtual machine with a stock Debian kernel and Soft-RoCE (rxe0 on eth0) in a few seconds and runs COMMAND in it
as root, in the current directory. The machine sees this machine's files: programs, libraries and data are where they
are here. What it writes goes to memory and is gone afterwards, except in the directory that -out names.

  vm ibv_devinfo
  vm -out results -- sh -c 'ib_send_lat & sleep 1; ib_send_lat localhost >results/lat'
  vm -two -netem 'delay 1ms loss 2% reorder 5%' -- sh -c '[ $VM_RANK = 0 ] || sleep 1; ibv_rc_pingpong -g 1 $VM_PEER'
  go test -exec 'vm --' ./verbs

Flags:
  -two              two machines on a private link; COMMAND runs in both, lines are prefixed with the rank
  -netem "ARGS"     what tc's netem does to the packets on the link (needs -two)
  -siw              software iWARP (siw0) instead of Soft-RoCE; its module is built once from Debian's source (not
                    with -debug)
  -mtu BYTES        of eth0 (default 1500; at most 9000)
  -kernel VERSION   6.1 (Debian 12's) or 6.12 (its backports') (default 6.1)
  -debug            a 6.1 built to find mistakes: KASAN, lockdep, kmemleak, failslab (some 40 times slower)
  -mem MIB          memory of each machine (default 2048)
  -cpus N           of each machine (default 2)
  -modules A,B      more kernel modules; one with a / in it is a file of this machine
  -env NAME=VALUE   for the command; may be repeated. BYWASH_* and GO* pass by themselves
  -out DIR          writable in the machine, under the same path
  -timeout LIMIT    for booting and the command (default 8m)
  -shell            an interactive shell instead of a command; Ctrl-] ends it
  -headers          print the folder that modules of the kernel are built against (KDIR), fetched if need be
  -accel WHAT       kvm, tcg, or auto: KVM where a short trial works, else TCG (default auto)
  -skip             where no machine can be had, be a Go test that was skipped, for go test -exec (status 0, not 125)
  -mirror URL       Debian archive for kernels (default $BYWASH_MIRROR, then the one among this machine's apt sources)
  -v                show the kernel's console

The command finds VM_RANK (0 or 1), VM_ADDR (the address of eth0), VM_OUT and, with -two, VM_PEER (the other's address).

Exit status: the command's; with -two the first that is not 0, and then the other machine has 20 s to end. 123 when the
guest's kernel reported a fault (oops, warning, lockdep, leak), or a signal did not end the command and the kernel
printed what the processors were at, 124 when the time was over, 125 when the machine could not be had or died, 2 for
wrong usage.

Kernels are downloaded once, by apt, into ${XDG_CACHE_HOME:-~/.cache}/bywash/vm; delete that whenever you like.
`

type options struct {
	kernel  string
	debug   bool
	memory  int // MiB
	cpus    int
	mtu     int
	netem   string
	modules []string
	two     bool
	siw     bool
	shell   bool
	headers bool
	timeout time.Duration
	env     []string
	out     string
	accel   string
	mirror  string
	skip    bool
	verbose bool
	command []string
}

// parseOptions returns flag.ErrHelp when help was asked for and printed.
func parseOptions(args []string, help io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("vm", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.kernel, "kernel", "6.1", "")
	f.BoolVar(&o.debug, "debug", false, "")
	f.IntVar(&o.memory, "mem", 2048, "")
	f.IntVar(&o.cpus, "cpus", 2, "")
	f.IntVar(&o.mtu, "mtu", 1500, "")
	f.StringVar(&o.netem, "netem", "", "")
	f.Func("modules", "", func(list string) error {
		o.modules = append(o.modules, strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })...)
		return nil
	})
	f.BoolVar(&o.two, "two", false, "")
	f.BoolVar(&o.siw, "siw", false, "")
	f.BoolVar(&o.shell, "shell", false, "")
	f.BoolVar(&o.headers, "headers", false, "")
	f.DurationVar(&o.timeout, "timeout", 8*time.Minute, "")
	f.Func("env", "", func(setting string) error {
		o.env = append(o.env, setting)
		return checkSetting(setting)
	})
	f.StringVar(&o.out, "out", "", "")
	f.StringVar(&o.accel, "accel", "auto", "")
	f.BoolVar(&o.skip, "skip", false, "")
	f.StringVar(&o.mirror, "mirror", os.Getenv("BYWASH_MIRROR"), "")
	f.BoolVar(&o.verbose, "v", false, "")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			io.WriteString(help, usage)
		}
		return nil, err
	}
	o.command = f.Args()
	if o.shell && !isSet(f, "timeout") {
		o.timeout = 0
	}
	return o, o.check()
}

func isSet(f *flag.FlagSet, name string) (set bool) {
	f.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// checkSetting wants NAME=VALUE with a name that a shell takes.
func checkSetting(setting string) error {
	name, value, ok := strings.Cut(setting, "=")
	if !ok || name == "" || strings.ContainsRune(value, 0) {
		return errors.New("want NAME=VALUE")
	}
	for i, r := range name {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return fmt.Errorf("%q is no name of a variable", name)
		}
	}
	return nil
}

func (o *options) check() error {
	switch {
	case o.kernel != "6.1" && o.kernel != "6.12":
		return fmt.Errorf("-kernel %s: want 6.1 or 6.12", o.kernel)
	case o.debug && o.kernel != "6.1":
		return fmt.Errorf("-debug is for -kernel 6.1 only, not %s", o.kernel)
	case o.siw && o.debug:
		return errors.New("-siw is for stock kernels only, not for -debug")
	case o.siw && o.headers:
		return errors.New("-siw and -headers do not go together")
	case o.memory < 256:
		return fmt.Errorf("-mem %d: want at least 256 MiB", o.memory)
	case o.cpus < 1 || o.cpus > 64:
		return fmt.Errorf("-cpus %d: want 1 to 64", o.cpus)
	case o.mtu < 1280 || o.mtu > 9000:
		return fmt.Errorf("-mtu %d: want 1280 to 9000", o.mtu)
	case o.accel != "auto" && o.accel != "kvm" && o.accel != "tcg":
		return fmt.Errorf("-accel %s: want auto, kvm or tcg", o.accel)
	case o.netem != "" && !o.two:
		return errors.New("-netem needs -two: in one machine, packets to itself never reach the link")
	case o.shell && o.two:
		return errors.New("-shell and -two do not go together: start a command in both, or a shell in one")
	case o.timeout < 0:
		return fmt.Errorf("-timeout %v: want a positive time, or 0 for no limit", o.timeout)
	case o.headers && (o.shell || o.two || len(o.command) > 0):
		return errors.New("-headers takes no command and no machines")
	case len(o.command) == 0 && !o.shell && !o.headers:
		return errors.New("no command to run, and no -shell")
	case len(o.command) > 0 && o.shell:
		return errors.New("-shell takes no command")
	}
	if o.out == "" {
		return nil
	}
	out, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}
	o.out = out
	return nil
}
