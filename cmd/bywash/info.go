//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// driverInfo is a driver in info --json, one object a line. It is a stable
// interface.
type driverInfo struct {
	Driver      string       `json:"driver"`
	Available   bool         `json:"available"`
	Unavailable *whyNot      `json:"unavailable"`
	Devices     []deviceInfo `json:"devices"`
	Tracks      []trackInfo  `json:"tracks"`
	Options     []optionInfo `json:"options"`
}

type whyNot struct {
	Reason string `json:"reason"`
	Remedy string `json:"remedy"`
}

type optionInfo struct {
	Name    string `json:"name"`
	Values  string `json:"values"`
	Default string `json:"default"`
	Help    string `json:"help"`
}

type deviceInfo struct {
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Unavailable *whyNot           `json:"unavailable"`
	Details     map[string]string `json:"details"`
}

type trackInfo struct {
	Track        string           `json:"track"`
	Device       string           `json:"device"`
	Capabilities capabilitiesInfo `json:"capabilities"`
	Profile      profileInfo      `json:"profile"`
}

type capabilitiesInfo struct {
	MaxMessage int           `json:"max_message"`
	BufferSize int           `json:"buffer_size"`
	IOVec      bool          `json:"iovec"`
	Data       bool          `json:"data"`
	BufferSend bool          `json:"buffer_send"`
	BufferRecv bool          `json:"buffer_recv"`
	Probe      bool          `json:"probe"`
	SendWait   bool          `json:"send_wait"`
	RecvWait   bool          `json:"recv_wait"`
	Prefetch   bool          `json:"prefetch"`
	RdvUpdate  bool          `json:"rdv_update"`
	WideURL    bool          `json:"wide_url"`
	RdvSize    int           `json:"rdv_size"`
	SendDepth  int           `json:"send_depth"`
	RecvDepth  int           `json:"recv_depth"`
	Ordered    bool          `json:"ordered"`
	DeadTimeMS int64         `json:"dead_time_ms"`
	OneSided   *oneSidedInfo `json:"one_sided"`
}

type oneSidedInfo struct {
	Put             bool     `json:"put"`
	Get             bool     `json:"get"`
	MaxPut          int      `json:"max_put"`
	MaxGet          int      `json:"max_get"`
	PutAlignment    int      `json:"put_alignment"`
	GetAlignment    int      `json:"get_alignment"`
	Atomics32       []string `json:"atomics32"`
	Atomics64       []string `json:"atomics64"`
	Fetch32         []string `json:"fetch32"`
	Fetch64         []string `json:"fetch64"`
	AtomicWithCPU   bool     `json:"atomic_with_cpu"`
	AtomicArenaOnly bool     `json:"atomic_arena_only"`
	KeySize         int      `json:"key_size"`
	Depth           int      `json:"depth"`
}

type profileInfo struct {
	LatencyNs   int64   `json:"latency_ns"`
	BytesPerS   float64 `json:"bytes_per_s"`
	CPUs        []int   `json:"cpus"`
	Exclusivity int     `json:"exclusivity"`
}

func infoCommand() *cobra.Command {
	var name, device string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show drivers, devices, capabilities and profile",
		Long: `Info shows the drivers of this build: their devices, what each track can do
(capabilities), its nominal performance (profile), and why a driver cannot be
used here. With -d or --json it lists the driver's options.

The exit status is 1 if the driver that -d names cannot be used, or if no driver
can use the device that --dev names.`,
		Example: `  bywash info
  bywash info -d shm --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names := driver.Names()
			if name != "" {
				if _, err := driver.Lookup(name); err != nil {
					return usagef("no driver %q in this build (there are: %s)", name, strings.Join(driver.Names(), ", "))
				}
				names = []string{name}
			}
			return showInfo(cmd.Context(), cmd.OutOrStdout(), names, name != "", device, asJSON)
		},
	}
	cmd.Flags().StringVarP(&name, "driver", "d", "", "`driver`; without it, all")
	cmd.Flags().StringVar(&device, "dev", "", "`device` whose capabilities are shown; without it, the driver's choice, or the first that works")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	completeList(cmd, "driver", driver.Names())
	return cmd
}

func showInfo(ctx context.Context, w io.Writer, names []string, one bool, device string, asJSON bool) error {
	var failed error
	available := 0
	for _, n := range names {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		d, err := driver.Lookup(n)
		if err != nil {
			return err
		}
		info, err := inspect(d, device)
		if err != nil && one {
			failed = err
		}
		if info.Available {
			available++
		}
		if asJSON {
			err = json.NewEncoder(w).Encode(info)
		} else {
			err = printInfo(w, info)
			if one && err == nil {
				err = printOptions(w, info.Options)
			}
		}
		if err != nil {
			return err
		}
	}
	if failed == nil && available == 0 && device != "" {
		return fmt.Errorf("no driver here can use device %q: the lines above name the reasons", device)
	}
	return failed
}

// inspect asks a driver; the error is why it cannot be used.
func inspect(d driver.Driver, device string) (*driverInfo, error) {
	info := &driverInfo{Driver: d.Name(), Devices: []deviceInfo{}, Tracks: []trackInfo{}, Options: []optionInfo{}}
	if c, ok := d.(driver.Configurable); ok {
		for _, o := range c.Options() {
			info.Options = append(info.Options, optionInfo(o))
		}
	}
	devices := d.Devices()
	for _, dev := range devices {
		x := deviceInfo{Name: dev.Name, Description: dev.Description, Unavailable: why(dev.Err), Details: map[string]string{}}
		for _, f := range dev.Details {
			x.Details[f.Name] = f.Value
		}
		info.Devices = append(info.Devices, x)
	}
	usable := func(d driver.Device) bool { return d.Err == nil }
	if _, named := d.(driver.Reserved); named && device == "" { // it takes no device that nobody has named
		if k := slices.IndexFunc(devices, usable); k >= 0 {
			device = devices[k].Name
		}
	}
	var first error
	for _, t := range []driver.Track{driver.Small, driver.Large} {
		nic, err := d.Query(driver.Hints{Device: device, Track: t})
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		info.Tracks = append(info.Tracks, describeTrack(nic.Properties()))
	}
	if first == nil && !slices.ContainsFunc(devices, usable) && len(devices) > 0 {
		first = devices[0].Err
		info.Tracks = []trackInfo{}
	}
	info.Available = len(info.Tracks) > 0
	if info.Available {
		return info, nil
	}
	info.Unavailable = why(first)
	return info, first
}

func why(err error) *whyNot {
	if err == nil {
		return nil
	}
	var u *driver.UnavailableError
	if !errors.As(err, &u) {
		return &whyNot{Reason: err.Error()}
	}
	w := &whyNot{Reason: u.Reason, Remedy: u.Remedy}
	if u.Err != nil {
		w.Reason += ": " + u.Err.Error()
	}
	return w
}

func describeTrack(p *driver.Properties) trackInfo {
	c := &p.Capabilities
	t := trackInfo{
		Track: p.Track.String(), Device: p.Device,
		Capabilities: capabilitiesInfo{
			MaxMessage: c.MaxMessage, BufferSize: c.BufferSize, IOVec: c.IOVec, Data: c.Data,
			BufferSend: c.BufferSend, BufferRecv: c.BufferRecv, Probe: c.Probe, SendWait: c.SendWait, RecvWait: c.RecvWait,
			Prefetch: c.Prefetch, RdvUpdate: c.RdvUpdate, WideURL: c.WideURL, RdvSize: c.RdvSize,
			SendDepth: c.SendDepth, RecvDepth: c.RecvDepth, Ordered: c.Ordered, DeadTimeMS: c.DeadTime.Milliseconds(),
		},
		Profile: profileInfo{LatencyNs: p.Profile.Latency.Nanoseconds(), BytesPerS: p.Profile.Bandwidth, CPUs: p.Profile.CPUs, Exclusivity: p.Profile.Exclusivity},
	}
	if o := c.OneSided; o != nil {
		t.Capabilities.OneSided = &oneSidedInfo{
			Put: o.Put, Get: o.Get, MaxPut: o.MaxPut, MaxGet: o.MaxGet, PutAlignment: o.PutAlignment, GetAlignment: o.GetAlignment,
			Atomics32: atomics(o.Atomics32), Atomics64: atomics(o.Atomics64), Fetch32: atomics(o.Fetch32), Fetch64: atomics(o.Fetch64),
			AtomicWithCPU: o.AtomicWithCPU, AtomicArenaOnly: o.AtomicArenaOnly, KeySize: o.KeySize, Depth: o.Depth,
		}
	}
	return t
}

func atomics(s driver.AtomicSet) []string {
	out := []string{}
	for op := driver.Add; op <= driver.CompareSwap; op++ {
		if s.Has(op) {
			out = append(out, op.String())
		}
	}
	return out
}

func printInfo(w io.Writer, d *driverInfo) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	state := "available"
	if d.Unavailable != nil {
		state = "unavailable: " + d.Unavailable.String()
	}
	fmt.Fprintf(tw, "%s\t%s\n", d.Driver, state)
	for _, x := range d.Devices {
		fmt.Fprintf(tw, "  device %s\t%s\n", x.Name, x.Description)
		if x.Unavailable != nil {
			fmt.Fprintf(tw, "    unavailable\t%s\n", x.Unavailable)
		}
		for _, name := range slices.Sorted(maps.Keys(x.Details)) {
			fmt.Fprintf(tw, "    %s\t%s\n", name, x.Details[name])
		}
	}
	for _, t := range d.Tracks {
		printTrack(tw, &t)
	}
	return tw.Flush()
}

// printOptions shows what --option can set.
func printOptions(w io.Writer, list []optionInfo) error {
	if len(list) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "  options\t\n")
	for _, o := range list {
		without := ""
		if o.Default != "" {
			without = "; " + o.Default + " without it"
		}
		fmt.Fprintf(tw, "    %s\t%s (%s%s)\n", o.Name, o.Help, o.Values, without)
	}
	return tw.Flush()
}

func (w *whyNot) String() string {
	if w.Remedy == "" {
		return w.Reason
	}
	return w.Reason + " (" + w.Remedy + ")"
}

func printTrack(w io.Writer, t *trackInfo) {
	c, p := &t.Capabilities, &t.Profile
	fmt.Fprintf(w, "  %s track\ton %s\n", t.Track, t.Device)
	fmt.Fprintf(w, "    nominal\t%d ns one way, %.1f GB/s, exclusivity %d\n", p.LatencyNs, p.BytesPerS/1e9, p.Exclusivity)
	fmt.Fprintf(w, "    longest message\t%s; driver's buffers %s; rdv data %s\n", bench.FormatSize(c.MaxMessage), bench.FormatSize(c.BufferSize), bench.FormatSize(c.RdvSize))
	fmt.Fprintf(w, "    depth\t%d sends, %d receives\n", c.SendDepth, c.RecvDepth)
	fmt.Fprintf(w, "    a silent peer\tcounts as broken after %d ms\n", c.DeadTimeMS)
	has := ""
	for _, f := range []struct {
		name string
		on   bool
	}{{"iovec", c.IOVec}, {"layouts", c.Data}, {"buffer send", c.BufferSend}, {"buffer receive", c.BufferRecv}, {"probe", c.Probe}, {"send wait", c.SendWait},
		{"receive wait", c.RecvWait}, {"prefetch", c.Prefetch}, {"rdv updates", c.RdvUpdate}, {"wide urls", c.WideURL}, {"ordered", c.Ordered}} {
		if f.on {
			has += ", " + f.name
		}
	}
	if has != "" {
		fmt.Fprintf(w, "    has\t%s\n", has[2:])
	}
	if o := c.OneSided; o != nil {
		fmt.Fprintf(w, "    one-sided\tput up to %s, get up to %s, depth %d, key %d B\n", bench.FormatSize(o.MaxPut), bench.FormatSize(o.MaxGet), o.Depth, o.KeySize)
		fmt.Fprintf(w, "    atomics\t64 bits: %s; 32 bits: %s\n", strings.Join(o.Atomics64, ", "), strings.Join(o.Atomics32, ", "))
	}
}
