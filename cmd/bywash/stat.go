//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/bywash/bywash/internal/stat"
)

func statCommand() *cobra.Command {
	var asJSON bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "stat [flags] [PID…]",
		Short: "Show live counters of running processes",
		Long: `Stat asks the running processes of this user (all processes, as root) in this
network namespace for the counters of their open contexts. Every program that has
joined a session answers, unless BYWASH_STAT=off is in its environment, and so
does one that calls Serve of package github.com/bywash/bywash/driver/stat. The
output leaves out counters that are 0; with --json it has all of them, one
process a line.`,
		Example: `  bywash stat
  bywash stat -w 1s 4711      every second`,
		RunE: func(cmd *cobra.Command, args []string) error {
			pids, err := parsePIDs(args)
			if err != nil {
				return err
			}
			if interval < 0 || interval > 0 && interval < 10*time.Millisecond {
				return usagef("-w %s: the interval is at least 10ms", interval)
			}
			err = watch(cmd.Context(), cmd.OutOrStdout(), pids, asJSON, interval)
			if interval > 0 {
				return served(err)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a process and line")
	cmd.Flags().DurationVarP(&interval, "watch", "w", 0, "repeat every `interval`, until Ctrl-C or the processes have ended")
	return cmd
}

// watch shows the counters once, or again and again until the processes that were named have ended. Each must have
// answered once.
func watch(ctx context.Context, w io.Writer, pids []int, asJSON bool, interval time.Duration) error {
	for first := true; ; first = false {
		answered, err := showStat(ctx, w, pids, asJSON)
		if err != nil {
			return err
		}
		var left []int
		for _, pid := range pids {
			ok, there := answered[pid]
			switch {
			case first && !ok:
				return noAnswer(pid)
			case there:
				left = append(left, pid)
			default:
				fmt.Fprintf(os.Stderr, "bywash: process %d has ended\n", pid)
			}
		}
		if interval == 0 || len(pids) > 0 && len(left) == 0 {
			return nil
		}
		pids = left
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(interval):
		}
	}
}

// answer is what a process says.
type answer struct {
	pid int
	p   *stat.Process
	err error
}

// ask asks the processes, 64 at a time: one that is stopped keeps the caller waiting for 2 s.
func ask(ctx context.Context, ends []stat.Endpoint) ([]answer, error) {
	answers := make([]answer, len(ends))
	var all sync.WaitGroup
	room := make(chan struct{}, 64)
	for i, e := range ends {
		room <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			p, err := stat.Read(e)
			answers[i] = answer{e.PID, p, err}
			<-room
		})
	}
	all.Wait()
	return answers, context.Cause(ctx)
}

// showStat prints the counters of the processes that answer. It returns the processes that there are, and whether each
// has answered.
func showStat(ctx context.Context, w io.Writer, pids []int, asJSON bool) (answered map[int]bool, err error) {
	ends, err := stat.List()
	if err != nil {
		return nil, err
	}
	if len(pids) > 0 {
		ends = slices.DeleteFunc(ends, func(e stat.Endpoint) bool { return !slices.Contains(pids, e.PID) })
	}
	answers, err := ask(ctx, ends)
	if err != nil {
		return nil, err
	}
	answered = map[int]bool{}
	none := true
	for _, a := range answers {
		p, err := a.p, a.err
		answered[a.pid] = answered[a.pid] || err == nil // another process may use a name with this id
		if err != nil {
			// It may have ended since, or belong to somebody else.
			if len(pids) > 0 {
				fmt.Fprintf(os.Stderr, "bywash: %v\n", err)
			}
			continue
		}
		none = false
		if asJSON {
			err = json.NewEncoder(w).Encode(p)
		} else {
			err = printProcess(w, p)
		}
		if err != nil {
			return nil, err
		}
	}
	if none && len(pids) == 0 && !asJSON {
		_, err = fmt.Fprintln(w, "no process here answers (programs that have joined a session do, unless BYWASH_STAT=off)")
	}
	return answered, err
}

func noAnswer(pid int) error {
	return fmt.Errorf("process %d does not answer: it must run as this user and have joined a session, without BYWASH_STAT=off, or have called Serve of driver/stat", pid)
}

func printProcess(w io.Writer, p *stat.Process) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "%d %s\n", p.PID, p.Command)
	for i := range p.Contexts {
		x := &p.Contexts[i]
		fmt.Fprintf(tw, "  %s %s %s\t%s\n", x.Driver, x.Device, x.Track, x.URL)
		// The names are those of the JSON form.
		b, err := json.Marshal(&x.Counters)
		if err != nil {
			return err
		}
		all := map[string]uint64{}
		if err := json.Unmarshal(b, &all); err != nil {
			return err
		}
		names := make([]string, 0, len(all))
		for n, v := range all {
			if v != 0 {
				names = append(names, n)
			}
		}
		slices.Sort(names)
		for _, n := range names {
			fmt.Fprintf(tw, "    %s\t%d\n", n, all[n])
		}
	}
	if p.Omitted > 0 {
		fmt.Fprintf(tw, "  and %d contexts more\n", p.Omitted)
	}
	return tw.Flush()
}
