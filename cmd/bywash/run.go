//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/bywash/bywash/cmd/bywash/internal/run"
	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// maxRun is the largest job of one machine: more processes than that share a core with too many others.
const maxRun = 65536

func runCommand() *cobra.Command {
	c := run.Config{Guard: []string{"/proc/self/exe", run.GuardCommand}}
	cmd := &cobra.Command{
		Use:   "run -n N [flags] PROG [ARG…]",
		Short: "Run a program as a job of N processes on this machine",
		Long: `Run starts N processes of a program. In each, package session (or
session/launch) finds its rank, the number of ranks and a way to the others.
Other programs simply run N times.

Output is passed through; --tag-output puts the rank in front of each line.
Standard input goes to rank 0. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1,
SIGUSR2, SIGTSTP and SIGCONT go to all ranks. SIGINT, SIGTERM, SIGHUP and SIGQUIT
end the job: ranks that still run after --grace are killed, or at once if one of
these signals, except SIGHUP, comes half a second or more after the job began to
end. Ranks are in the background of the terminal: they may write to it, and a
read from it fails.

When a rank fails, aborts the job, or is killed, run names it and ends the
others: SIGTERM first, SIGKILL after --grace. With --keep-going it lets the
others go on unless the job is aborted: their operations with that rank fail
and name its exit status. No process that a rank started is left behind, not even
when run itself is killed, except processes that moved to a process group of
their own.

Jobs larger than one machine run under MPICH's mpiexec, Open MPI's mpirun or
Slurm's srun: the same program works under these, too.

The exit status is 0 if all ranks ended with status 0. Otherwise it comes from
the first rank that failed: its exit status, the code that it gave to Abort, or 128
plus the number of the signal that killed it. It is 128 plus the number of the
signal if a signal ended run (130 after Ctrl-C), 127 if PROG is not found, 126
if PROG cannot be executed, 2 if the command line is wrong, and 1 if something
else could not be done here.

Each process finds in its environment:

  ` + launch.EnvRendezvous + `  address of the job's rendezvous, HOST:PORT
  ` + launch.EnvRank + `        its rank, from 0
  ` + launch.EnvSize + `        the number of ranks
  ` + launch.EnvSecret + `      the job's secret, which admits a process to the job: do not show it
  ` + launch.EnvLauncher + `    embedded
  ` + launch.EnvLocalRank + `  its rank again, as all ranks are on this machine
  ` + launch.EnvLocalSize + `  the number of ranks again
  ` + softnic.EnvProgram + `     the path of bywash, which a rank starts if qnix needs a NIC in user space
  ` + launch.EnvExplain + `     1 with --explain
  ` + launch.EnvDrivers + `     the list of --drivers`,
		Example: `  bywash run -n 4 ./prog
  bywash run -n 2 --explain ./prog -v      report which driver carries what, and why
  bywash run -n 4 --drivers shm ./prog     shared memory and nothing else
  bywash run -n 8 --tag-output sh -c 'echo I am $BYWASH_RANK of $BYWASH_SIZE'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !cmd.Flags().Changed("ranks"):
				return usagef("run needs -n N, the number of processes (see %s --help)", cmd.CommandPath())
			case c.Ranks < 1 || c.Ranks > maxRun:
				return usagef("-n %d: want 1 to %d processes", c.Ranks, maxRun)
			case c.Grace < 0:
				return usagef("--grace %s: want a time from 0 on", c.Grace)
			case len(args) == 0:
				return usagef("run needs a program (see %s --help)", cmd.CommandPath())
			}
			if _, err := session.ParseRails(c.Drivers); c.Drivers != "" && err != nil {
				return usagef("--drivers: %v", err)
			}
			c.Program, c.Args = args[0], args[1:]
			err := run.Run(cmd.Context(), c)
			var x *run.ExitError
			if errors.As(err, &x) {
				return &statusError{x.Code, err}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // arguments after the program belong to it
	f.IntVarP(&c.Ranks, "ranks", "n", 0, "number of `processes`")
	f.BoolVar(&c.Explain, "explain", false, "let sessions report which rails they chose, and why")
	f.StringVar(&c.Drivers, "drivers", "", "`list` of the drivers that sessions use, as shm,tcp (default $BYWASH_DRIVERS, else those that the ranks need)")
	f.BoolVar(&c.Tag, "tag-output", false, "put the rank in front of each line of output")
	f.BoolVar(&c.KeepGoing, "keep-going", false, "let the other ranks go on when one fails; they are told")
	f.DurationVar(&c.Grace, "grace", 5*time.Second, "`time` between asking processes to end and killing them")
	return cmd
}

func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    run.GuardCommand,
		Hidden: true,
		Args:   noArgs,
		RunE:   func(*cobra.Command, []string) error { return run.Guard() },
	}
}
