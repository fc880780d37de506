//go:build linux

package control

import (
	"maps"
	"strings"
	"testing"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

func TestOptionsAreParsed(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want map[string]string
		err  string
	}{
		{nil, nil, ""},
		{[]string{"path=cma"}, map[string]string{"path": "cma"}, ""},
		{[]string{"managers=oob,rdmacm", "gid=2001:db8::1"}, map[string]string{"managers": "oob,rdmacm", "gid": "2001:db8::1"}, ""},
		{[]string{"a=", "b=c=d"}, map[string]string{"a": "", "b": "c=d"}, ""},
		{[]string{"shm.path=cma"}, map[string]string{"shm.path": "cma"}, ""}, // the driver refuses it
		{[]string{"path"}, nil, "KEY=VALUE"},
		{[]string{""}, nil, "KEY=VALUE"},
		{[]string{"=cma"}, nil, "KEY=VALUE"},
		{[]string{"path=cma", "path=ring"}, nil, "twice"},
		{[]string{"a=" + strings.Repeat("x", bench.MaxOptions)}, nil, "more than"},
	} {
		got, err := ParseOptions(c.in)
		if c.err == "" && (err != nil || !maps.Equal(got, c.want)) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("ParseOptions(%.60q) = %v, %v; want %v, error with %q", c.in, got, err, c.want, c.err)
		}
	}
}

func TestOptionsAreForOneDriver(t *testing.T) {
	for _, c := range []struct{ drivers, err string }{
		{"shm", ""}, {"shm,sock-tcp,sock-udp", ""}, {"shm,shm", ""}, {"all", "not for all"}, {"shm,all", "not for all"},
		{"shm,verbs", "not for shm and verbs"}, {"sock-tcp,sock-unix", "sockets have none"}, {"session", "--rails"},
	} {
		names := strings.Split(c.drivers, ",")
		if err := CheckOptions(names, nil); err != nil {
			t.Errorf("-d %s without options: %v", c.drivers, err)
		}
		err := CheckOptions(names, map[string]string{"path": "cma"})
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("-d %s: %v, want an error with %q", c.drivers, err, c.err)
		}
		if c.err != "" && err != nil && !strings.Contains(err.Error(), "with -d") {
			t.Errorf("-d %s: %v does not ask for the name of a driver with -d", c.drivers, err)
		}
	}
}

func TestOptionsReachBothProcesses(t *testing.T) {
	for _, path := range []string{"ring", "cma", "arena"} {
		c := config("shm,sock-unix", bench.BW)
		c.Sizes, c.Options = []int{1 << 20}, map[string]string{"path": path}
		var got collector
		if err := Run(t.Context(), c, &got); err != nil || len(got.results) != 2 {
			t.Fatalf("path=%s: %v, %d results, missing %v", path, err, len(got.results), got.missing)
		}
		if p := got.results[0].Path; !strings.Contains(p, path) {
			t.Errorf("path=%s: carried by %q", path, p)
		}
	}
	c := config("shm", bench.BW)
	c.Options = map[string]string{"no-such-option": "1"}
	if err := Run(t.Context(), c, &collector{}); err == nil || !strings.Contains(err.Error(), "no option") {
		t.Errorf("unknown option: %v, want the driver's error", err)
	}
}

func TestFollowerOpensWithOptions(t *testing.T) {
	for _, c := range []struct {
		name      string
		sent, own map[string]string
		drivers   []string
		err       string
	}{
		{"none", nil, nil, nil, ""},
		{"the lead's", map[string]string{"path": "nonsense"}, nil, nil, `path="nonsense"`},
		{"its own", nil, map[string]string{"path": "nonsense"}, []string{"shm"}, `path="nonsense"`},
		{"its own first", map[string]string{"path": "nonsense", "ends": "both"}, map[string]string{"path": "cma"}, []string{"shm"}, ""},
		{"beside its own", map[string]string{"ends": "nonsense"}, map[string]string{"path": "cma"}, []string{"shm"}, `ends="nonsense"`},
		{"its own of another driver", nil, map[string]string{"path": "nonsense"}, []string{"verbs"}, ""},
	} {
		lead, end := followed(t, &Config{Version: "test", Drivers: c.drivers, Options: c.own})
		_, _, err := lead.exchangeHello("test", &bench.Plan{Driver: "shm", Options: c.sent})
		if err != nil {
			t.Fatal(err)
		}
		_, err = lead.give(nil) // opened
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.err)
		}
		lead.close()
		<-end
	}
}

func TestNamesOfBaselines(t *testing.T) {
	for _, c := range []struct{ in, want, err string }{
		{"sock-tcp,sock-unix,sock-udp", "sock-tcp,sock-unix,sock-udp", ""},
		{"tcp@veth,sock-udp@veth", "tcp@veth,sock-udp@veth", ""},
		{"shm@veth", "", "is for"},
		{"sock-unix@veth", "", "is for"},
		{"all", "all", ""},
		{"shm,session", "shm,session", ""},
		{"tcp,sock-tcp", "tcp,sock-tcp", ""},
		{"nonsense", "", "there are: "},
		{"sock-unix,", "", "no driver"},
	} {
		got, err := ParseDrivers(c.in)
		if c.err == "" && (err != nil || strings.Join(got, ",") != c.want) ||
			c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("ParseDrivers(%q) = %v, %v; want %s, error with %q", c.in, got, err, c.want, c.err)
		}
	}
}
