//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/bywash/bywash/cmd/bywash/internal/doctor"
	"github.com/bywash/bywash/driver"
)

func doctorCommand() *cobra.Command {
	var asJSON, report bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find obstacles to drivers and to their speed, each with its remedy",
		Long: `Doctor tests the properties of this machine that the drivers of this build
need: limits, shared memory, kernel features, cores. Each finding is ok, slow (it
works, at a cost), absent (this machine has no such hardware) or blocked; slow
and blocked ones name the remedy. The exit status is 1 if something is blocked.

With --report it prints all that somebody needs who looks for a fault from
elsewhere: the machine, the findings, RDMA devices with what they grant, kernel
modules, libraries, and what info shows. It contains network addresses, and
neither the host's name nor a user's; the exit status is 0.`,
		Example: `  bywash doctor
  bywash doctor --report > report.txt`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			switch {
			case report && asJSON:
				return usagef("--report is a text: leave out --json")
			case report:
				return writeReport(cmd.Context(), w)
			}
			blocked := 0
			for f := range doctor.Examine(cmd.Context()) {
				if f.Level == doctor.Blocked {
					blocked++
				}
				var err error
				if asJSON {
					err = json.NewEncoder(w).Encode(f)
				} else {
					_, err = fmt.Fprint(w, f)
				}
				if err != nil {
					return err
				}
			}
			if err := context.Cause(cmd.Context()); err != nil {
				return err
			}
			if blocked > 0 {
				return fmt.Errorf("%d blocked: see the remedies above", blocked)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a finding and line")
	cmd.Flags().BoolVar(&report, "report", false, "print a report to send to somebody")
	return cmd
}

func writeReport(ctx context.Context, w io.Writer) error {
	return doctor.Report(ctx, w, programVersion(), func(w io.Writer) error {
		return showInfo(ctx, w, driver.Names(), false, "", false)
	})
}
