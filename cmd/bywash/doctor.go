package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bywash/bywash/cmd/bywash/internal/doctor"
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find obstacles to drivers and to their speed, each with its remedy",
		Long: `Doctor tests the properties of this machine that the drivers of this build need:
limits, shared memory, kernel features, cores. Each finding is ok, slow (it
works, at a cost) or blocked; slow and blocked ones name the remedy. The exit
status is 1 if something is blocked.`,
		Example: "  bywash doctor",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			blocked := 0
			for _, f := range doctor.Examine() {
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
			if blocked > 0 {
				return fmt.Errorf("%d blocked: see the remedies above", blocked)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a finding and line")
	return cmd
}
