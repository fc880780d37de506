//go:build linux

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// unit says what a figure counts and which direction is better.
type unit int

const (
	nanoseconds unit = iota // half a round trip; lower is better
	megabytes               // 10^6 bytes/s
	messages                // messages/s
)

// side is one program that a quantity is measured with.
type side struct {
	name    string   // column in the table
	group   string   // package group of hack/peers/tree
	program string   // path that must exist in the tree
	env     []string // beside the common environment
	argv    []string
	server  bool // argv is started twice: as a server, then as a client with the server's address added
	ether   bool // these two run in two network namespaces that a veth pair joins
	parse   parser
}

// loopback is where the server of a pair is, unless it has a namespace of its own.
const loopback = "127.0.0.1"

// Listening ports of the tools that are a server and a client.
const (
	ucxPort       = 13337
	libfabricPort = 47592
)

// variant is one way in which ours measures a quantity: a row of the table.
type variant struct {
	name   string
	mem    string
	target *target
}

// target is what ours is to reach: factor times the figure ref, at least of a rate, at most of a time.
type target struct {
	factor float64
	ref    string // a limit's name, a side's name, refBest or refAbsolute
}

const (
	refBest     = "best peer"
	refAbsolute = "absolute"
	limitLine   = "cache line"
	limitMemcpy = "memcpy, one core"
)

// quantity is measured by every side in turn, a run at a time.
type quantity struct {
	driver   string // of ours; "": shm
	test     string // of bywash perf
	size     int
	unit     unit
	variants []variant
	peers    []side
	limit    string // measured in the same run and shown, "" for none
}

// ours is the driver of ours that it is about.
func (q quantity) ours() string {
	if q.driver != "" {
		return q.driver
	}
	return "shm"
}

func (q quantity) lowerIsBetter() bool { return q.unit == nanoseconds }

// notMeasured are the gaps that no run can fill.
var notMeasured = []string{
	"libfabric bandwidth and rate: fi_pingpong measures neither, and Debian has no fabtests package",
}

// cpus are the two that the processes are bound to.
type cpus [2]int

func (c cpus) a() string    { return strconv.Itoa(c[0]) }
func (c cpus) b() string    { return strconv.Itoa(c[1]) }
func (c cpus) list() string { return c.a() + "," + c.b() }

// latencies are the ping-pongs.
func latencies(c cpus, n func(int) int) []quantity {
	var plan []quantity
	for _, l := range []struct {
		size, iters int
		name        string
		target      *target
	}{
		{8, 500_000, "8 B", &target{1.3, limitLine}},
		{64, 500_000, "64 B", nil},
		{4096, 100_000, "4 KiB", &target{0.8, refBest}},
	} {
		plan = append(plan, quantity{
			test: "lat", size: l.size, unit: nanoseconds, limit: limitLine,
			variants: []variant{
				{"shm " + l.name + " half round trip, ns", "heap", l.target},
				{"shm " + l.name + " in place, ns", "arena", nil},
			},
			peers: []side{
				openmpi(c, "lat", l.size, n(l.iters), 1),
				mpich(c, "lat", l.size, n(l.iters), 1),
				ucx("UCX tag", "tag_lat", withCMA, l.size, n(l.iters)),
				ucx("UCX AM", "ucp_am_lat", withCMA, l.size, n(l.iters)),
				libfabric("libfabric msg", "shm", "rdm", "msg", l.size, n(l.iters)),
				libfabric("libfabric tag", "shm", "rdm", "tagged", l.size, n(l.iters)),
			},
		})
	}
	return plan
}

// ethernet are the ping-pongs between two namespaces.
func ethernet(n func(int) int) []quantity {
	var plan []quantity
	for _, size := range []int{64, 256} {
		plan = append(plan, quantity{
			driver: "afxdp", test: "lat", size: size, unit: nanoseconds,
			variants: []variant{{fmt.Sprintf("afxdp %d B half round trip, ns", size), "heap", &target{0.4, "libfabric tcp"}}},
			peers: []side{
				overEther(libfabric("libfabric tcp", "tcp", "msg", "msg", size, n(20_000))),
				overEther(libfabric("libfabric tcp rdm", "tcp", "rdm", "tagged", size, n(20_000))),
			},
		})
	}
	return plan
}

// sessions are what the session layer makes of shared memory.
func sessions(c cpus, n func(int) int) []quantity {
	var plan []quantity
	for _, l := range []struct {
		size, iters int
		name        string
		target      *target
	}{
		{8, 500_000, "8 B", &target{0.8, "UCX tag"}},
		{4096, 100_000, "4 KiB", nil},
	} {
		plan = append(plan, quantity{
			driver: "session", test: "tag-lat", size: l.size, unit: nanoseconds, limit: limitLine,
			variants: []variant{{"session " + l.name + " tagged, half round trip, ns", "heap", l.target}},
			peers: []side{
				openmpi(c, "lat", l.size, n(l.iters), 1),
				mpich(c, "lat", l.size, n(l.iters), 1),
				ucx("UCX tag", "tag_lat", withCMA, l.size, n(l.iters)),
			},
		})
	}
	return append(plan,
		quantity{
			driver: "session", test: "am-rate", size: 8, unit: messages,
			variants: []variant{{"session 8 B active messages, M/s", "heap", &target{2, "UCX AM"}}},
			peers:    []side{ucx("UCX AM", "ucp_am_bw", withCMA, 8, n(2_000_000))},
		},
		quantity{
			driver: "session", test: "tag-bw", size: 8, unit: messages,
			variants: []variant{{"session 8 B tagged, M/s", "heap", nil}},
			peers: []side{
				openmpi(c, "bw", 8, n(30_000), mpiWindow),
				mpich(c, "bw", 8, n(30_000), mpiWindow),
				ucx("UCX tag", "tag_bw", withCMA, 8, n(2_000_000)),
			},
		},
		quantity{
			driver: "session", test: "tag-bw", size: 1 << 20, unit: megabytes, limit: limitMemcpy,
			variants: []variant{
				{"session 1 MiB tagged, Go heap, GB/s", "heap", &target{1.8, "UCX tag"}},
				{"session 1 MiB tagged, arena, GB/s", "arena", nil},
			},
			peers: []side{
				openmpi(c, "bw", 1<<20, n(100), mpiWindow),
				mpich(c, "bw", 1<<20, n(100), mpiWindow),
				ucx("UCX tag", "tag_bw", withCMA, 1<<20, n(5000)),
				ucx("UCX tag, no CMA", "tag_bw", withoutCMA, 1<<20, n(5000)),
			},
		},
	)
}

// plan is everything that is measured. scale multiplies the iterations.
func plan(c cpus, scale float64) []quantity {
	n := func(iters int) int { return max(10, int(float64(iters)*scale)) }
	return append(slices.Concat(latencies(c, n), ethernet(n), sessions(c, n)),
		quantity{
			test: "put-lat", size: 8, unit: nanoseconds, limit: limitLine,
			variants: []variant{{"shm 8 B put, half round trip, ns", "arena", nil}},
			peers: []side{
				ucx("UCX put", "ucp_put_lat", withCMA, 8, n(500_000)),
			},
		},
		quantity{
			test: "rate", size: 8, unit: messages,
			variants: []variant{{"shm 8 B one-way rate, M/s", "heap", &target{50e6, refAbsolute}}},
			peers: []side{
				openmpi(c, "bw", 8, n(30_000), mpiWindow),
				mpich(c, "bw", 8, n(30_000), mpiWindow),
				ucx("UCX tag", "tag_bw", withCMA, 8, n(2_000_000)),
				ucx("UCX AM", "ucp_am_bw", withCMA, 8, n(2_000_000)),
			},
		},
		quantity{
			test: "bw", size: 1 << 20, unit: megabytes, limit: limitMemcpy,
			variants: []variant{
				{"shm 1 MiB, arena, GB/s", "arena", &target{1.5, limitMemcpy}},
				{"shm 1 MiB, Go heap, GB/s", "heap", &target{2, "UCX tag"}},
			},
			peers: []side{
				openmpi(c, "bw", 1<<20, n(100), mpiWindow),
				mpich(c, "bw", 1<<20, n(100), mpiWindow),
				ucx("UCX tag", "tag_bw", withCMA, 1<<20, n(5000)),
				ucx("UCX tag, no CMA", "tag_bw", withoutCMA, 1<<20, n(5000)),
				ucx("UCX AM", "ucp_am_bw", withCMA, 1<<20, n(5000)),
			},
		},
		quantity{
			test: "put-bw", size: 1 << 20, unit: megabytes, limit: limitMemcpy,
			variants: []variant{{"shm 1 MiB put, arena, GB/s", "arena", &target{0.95, limitMemcpy}}},
			peers: []side{
				ucx("UCX put", "ucp_put_bw", withCMA, 1<<20, n(5000)),
				ucx("UCX put, mapped", "ucp_put_bw", withoutCMA, 1<<20, n(5000)),
			},
		},
	)
}

const mpiWindow = 64

func mpiArgs(c cpus, flavour, test string, size, iters, window int) []string {
	return []string{
		"-n", "2", workDir + "/pin", c.a(), c.b(), workDir + "/mpi_pingpong." + flavour,
		test, strconv.Itoa(size), strconv.Itoa(iters), strconv.Itoa(iters/10 + 1), strconv.Itoa(window),
	}
}

func openmpi(c cpus, test string, size, iters, window int) side {
	return side{
		name: "Open MPI", group: "openmpi", program: "mpirun.openmpi",
		argv: append([]string{"mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none",
			"--mca", "pml", "ob1", "--mca", "btl", "self,sm"},
			mpiArgs(c, "openmpi", test, size, iters, window)...),
		parse: parsePairs,
	}
}

func mpich(c cpus, test string, size, iters, window int) side {
	return side{
		name: "MPICH", group: "mpich", program: "mpiexec.mpich",
		argv: append([]string{"mpiexec.mpich", "-bind-to", "none"},
			mpiArgs(c, "mpich", test, size, iters, window)...),
		parse: parsePairs,
	}
}

// UCX copies large messages with process_vm_readv where it may; without, it
// puts through mapped memory and pipelines the rest, which can be faster.
const (
	withCMA    = "UCX_TLS=posix,cma,self"
	withoutCMA = "UCX_TLS=posix,self"
)

func ucx(name, test, tls string, size, iters int) side {
	return side{
		name: name, group: "ucx", program: "ucx_perftest", server: true,
		env: []string{tls},
		argv: []string{"ucx_perftest", "-P", "0", "-f", "-v", "-p", strconv.Itoa(ucxPort), "-t", test,
			"-s", strconv.Itoa(size), "-n", strconv.Itoa(iters), "-w", strconv.Itoa(iters/10 + 1)},
		parse: parseUCX,
	}
}

func libfabric(name, provider, endpoint, mode string, size, iters int) side {
	return side{
		name: name, group: "libfabric", program: "fi_pingpong", server: true,
		argv: []string{"fi_pingpong", "-p", provider, "-e", endpoint, "-m", mode,
			"-S", strconv.Itoa(size), "-I", strconv.Itoa(iters)},
		parse: parsePingpong,
	}
}

// overEther is a side whose two processes meet over a veth pair.
func overEther(s side) side {
	s.ether = true
	return s
}

// ours is the command line of bin/bywash for one row.
func ours(c cpus, bin string, q quantity, v variant, duration string) []string {
	argv := []string{"taskset", "-c", c.list(), bin, "perf", "-d", q.ours(), "-t", q.test,
		"-s", strconv.Itoa(q.size), "--mem", v.mem, "--duration", duration, "--json"}
	if q.driver == "session" {
		argv = append(argv, "--rails", "shm")
	}
	return argv
}

func lineArgs(c cpus, scale float64) []string {
	return []string{workDir + "/limits", "line", c.a(), c.b(), strconv.Itoa(max(10_000, int(200_000*scale)))}
}

func memcpyArgs(c cpus, size int, scale float64) []string {
	return []string{workDir + "/limits", "memcpy", c.a(), strconv.Itoa(size), strconv.Itoa(max(100, int(5000*scale)))}
}

// commands are the lines a reader can type; both ends of a pair.
func (s side) commands(c cpus) []string {
	env := ""
	if len(s.env) > 0 {
		env = strings.Join(s.env, " ") + " "
	}
	if !s.server {
		return []string{env + strings.Join(s.argv, " ")}
	}
	if s.ether {
		server, client := s.pair(c, "ADDRESS-OF-B")
		return []string{
			"ip netns exec B " + env + strings.Join(server, " ") + " &",
			"ip netns exec A " + env + strings.Join(client, " "),
		}
	}
	server, client := s.pair(c, loopback)
	return []string{
		env + strings.Join(server, " ") + " &",
		env + strings.Join(client, " "),
	}
}

// pair is the server and the client, each on its CPU.
func (s side) pair(c cpus, address string) (server, client []string) {
	server = append([]string{"taskset", "-c", c.b()}, s.argv...)
	client = append([]string{"taskset", "-c", c.a()}, s.argv...)
	return server, append(client, address)
}

// port is the one a server announces its readiness on.
func (s side) port() int {
	if s.group == "libfabric" {
		return libfabricPort
	}
	return ucxPort
}

// text is what the target asks for, in words.
func (t *target) text(u unit) string {
	sign := "≥"
	if u == nanoseconds {
		sign = "≤"
	}
	if t.ref == refAbsolute {
		return fmt.Sprintf("%s %s", sign, format(t.factor, u))
	}
	return fmt.Sprintf("%s %.4g × %s", sign, t.factor, t.ref)
}
