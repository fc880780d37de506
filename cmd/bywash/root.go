//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError is wrong use: exit status 2.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// statusError ends with a status of its own.
type statusError struct {
	code int
	err  error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// served is the error of a command that runs until Ctrl-C.
func served(err error) error {
	if errors.Is(err, errInterrupt) {
		return nil
	}
	return err
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "bywash",
		Short: "Linux kernel-bypass networking: see what this machine can do",
		Long: `Bywash carries data around the kernel. This tool shows which network drivers
work on this machine, what prevents the others, and how fast they are.

The exit status is 0 after success, 1 when something could not be done here (the
message names the remedy), 2 when the command line is wrong and 130 after Ctrl-C;
it is 0 where Ctrl-C is the usual end: capture, softnic, stat -w and perf --listen.
Bywash run has the status of the program that it runs.`,
		Example: `  bywash perf -d all        every driver here beside the kernel's sockets
  bywash doctor             obstacles to drivers, each with its remedy
  bywash info -d shm        one driver's capabilities
  bywash run -n 4 ./prog    a job of four processes`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       programVersion(),
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w (see %s --help)", err, cmd.CommandPath())
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(infoCommand(), doctorCommand(), perfCommand(), peerCommand(), runCommand(), guardCommand(), statCommand(), captureCommand(),
		softnicCommand(),
		completionCommand(), manCommand(), versionCommand())
	root.SetHelpCommand(helpCommand())
	if len(os.Args) > 1 && os.Args[1] == cobra.ShellCompRequestCmd {
		plainUsage(root)
	}
	return root
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "help [COMMAND]",
		Short:  "Show help for a command",
		Hidden: true, // --help says the same
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || about == cmd.Root() {
				err = noArgs(cmd.Root(), rest)
			} else if len(rest) > 0 {
				err = usagef("help takes one command, not %q as well", rest[0])
			}
			if err != nil {
				return err
			}
			return about.Help()
		},
	}
}

// plainUsage removes the quotes that name a flag's argument in help texts:
// cobra shows them in completions as they are.
func plainUsage(root *cobra.Command) {
	for _, c := range append(root.Commands(), root) {
		c.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "`", "") })
	}
}

// completeList completes a flag that takes names with commas between.
func completeList(cmd *cobra.Command, flag string, names []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var out []string
		for _, n := range names {
			out = append(out, before+n)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // no such flag
	}
}

// noArgs refuses arguments; under the root command they are unknown commands.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasParent() {
		return usagef("%s takes no argument %q (see %s --help)", cmd.Name(), args[0], cmd.CommandPath())
	}
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return usagef("no command %q (commands: %s)", args[0], strings.Join(names, ", "))
}
