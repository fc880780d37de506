package perf

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Test is what is measured.
type Test string

// The tests, by the names of the command line.
const (
	Lat        Test = "lat"
	BW         Test = "bw"
	Rate       Test = "rate"
	BiBW       Test = "bibw"
	PutLat     Test = "put-lat"
	PutBW      Test = "put-bw"
	GetLat     Test = "get-lat"
	GetBW      Test = "get-bw"
	FaddLat    Test = "fadd-lat"
	CswapLat   Test = "cswap-lat"
	Connect    Test = "connect"
	Barrier    Test = "barrier"
	Bcast      Test = "bcast"
	TagLat     Test = "tag-lat"
	TagBW      Test = "tag-bw"
	AMRate     Test = "am-rate"
	MultiPair  Test = "multi-pair"
	AllToAll   Test = "all-to-all"
	maxSize         = 1 << 30
	maxWindow       = 64
	footprint       = 2 << 20 // bytes in flight, so that caches are measured, not DRAM
	maxIters        = 1 << 40
	maxPeers        = 4096
	maxRunTime      = 24 * time.Hour
)

// testInfo is what people are told about a test, and what it needs.
type testInfo struct {
	test     Test
	about    string
	latency  bool // judged by time, else by throughput
	half     bool // a ping-pong: the time is half a round trip's
	messages bool // judged by messages a second
	fixed    int  // the only size that makes sense; 0: any
	oneSided bool
	sizes    []int // when the user names none
	standard bool  // part of a run without -t
	session  bool  // only with -d session
	ranks    bool  // between Config.Ranks processes, not two
}

const kib, mib = 1 << 10, 1 << 20

var tests = []testInfo{
	{test: Lat, about: "ping-pong", latency: true, half: true, sizes: []int{8, 4 * kib, 64 * kib, mib}, standard: true},
	{test: BW, about: "one way, a window of messages in flight, both ends posting", sizes: []int{4 * kib, 64 * kib, mib}, standard: true},
	{test: Rate, about: "small messages one way, as fast as they go", messages: true, sizes: []int{8}, standard: true},
	{test: BiBW, about: "both ways at once, the sum of both", sizes: []int{4 * kib, 64 * kib, mib}},
	{test: PutLat, about: "ping-pong of puts, each side watching its memory", latency: true, half: true, oneSided: true, sizes: []int{8, 4 * kib}},
	{test: PutBW, about: "puts into a passive peer's memory", oneSided: true, sizes: []int{4 * kib, 64 * kib, mib}, standard: true},
	{test: GetLat, about: "get from a passive peer's memory, the whole operation", latency: true, oneSided: true, sizes: []int{8, 4 * kib}},
	{test: GetBW, about: "gets from a passive peer's memory", oneSided: true, sizes: []int{4 * kib, 64 * kib, mib}},
	{test: FaddLat, about: "fetch-and-add of 64 bits in a passive peer's memory, the whole operation", latency: true, fixed: 8, oneSided: true},
	{test: CswapLat, about: "compare-and-swap of 64 bits in a passive peer's memory, the whole operation", latency: true, fixed: 8, oneSided: true},
	{test: Connect, about: "from asking for a connection to having it, both sides", latency: true, fixed: -1},
	{test: Barrier, about: "barrier of 8 processes, the whole operation (qnix; sock-unix: over a star of sockets)", latency: true, fixed: -1},
	{test: Bcast, about: "broadcast to 7 others until all have it (qnix; sock-unix: over a star of sockets)", latency: true, sizes: []int{64 * kib}},
	{test: TagLat, about: "session: ping-pong of tagged messages", latency: true, half: true, sizes: []int{8, 4 * kib, 64 * kib, mib}, session: true},
	{test: TagBW, about: "session: tagged messages one way, a window of them in flight", sizes: []int{4 * kib, 64 * kib, mib}, session: true},
	{test: AMRate, about: "session: active messages one way, as fast as they go", messages: true, sizes: []int{8}, session: true},
	{test: MultiPair, about: "session: half of the --ranks processes send a window of messages to the other half, the sum", sizes: []int{8, 4 * kib, 64 * kib, mib}, session: true, ranks: true},
	{test: AllToAll, about: "session: each of the --ranks processes sends to each other, until all has come", latency: true, sizes: []int{8, 4 * kib, 64 * kib}, session: true, ranks: true},
}

// what tells what is measured.
func (i *testInfo) what() string {
	if i.half {
		return i.about + ", half a round trip"
	}
	return i.about
}

func infoOf(t Test) *testInfo {
	for i := range tests {
		if tests[i].test == t {
			return &tests[i]
		}
	}
	return nil
}

// size returns the size that is run when the user asks for s.
func (i *testInfo) size(s int) int {
	switch {
	case i.fixed > 0:
		return i.fixed
	case i.fixed < 0:
		return 0
	}
	return s
}

// TestHelp lists the tests for the help text.
func TestHelp() string {
	var b strings.Builder
	for _, t := range tests {
		fmt.Fprintf(&b, "  %-10s %s\n", t.test, t.what())
	}
	return b.String()
}

// TestNames returns the names of all tests.
func TestNames() []string {
	var names []string
	for _, t := range tests {
		names = append(names, string(t.test))
	}
	return names
}

// ParseTests parses the argument of -t: names with commas between, or all, which
// is without those that only a session runs. Empty means the standard ones.
func ParseTests(s string) ([]Test, error) {
	var out []Test
	if s == "" || s == "all" {
		for _, t := range tests {
			if t.standard || s == "all" && !t.session {
				out = append(out, t.test)
			}
		}
		return out, nil
	}
	for _, name := range strings.Split(s, ",") {
		if infoOf(Test(name)) == nil {
			return nil, fmt.Errorf("no test %q (tests: %s)", name, strings.Join(TestNames(), ", "))
		}
		if !slices.Contains(out, Test(name)) {
			out = append(out, Test(name))
		}
	}
	return out, nil
}

// ParseSizes parses the argument of -s: "8", "4K", "1:4M" (powers of two from
// the first to the last), or a list of those with commas between. Empty means
// the standard sizes of each test, and gives nil.
func ParseSizes(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var out []int
	for _, part := range strings.Split(s, ",") {
		lo, hi, ranged := strings.Cut(part, ":")
		a, err := parseSize(lo)
		if err != nil {
			return nil, err
		}
		b := a
		if ranged {
			if b, err = parseSize(hi); err != nil {
				return nil, err
			}
			if b < a || a == 0 {
				return nil, fmt.Errorf("size range %q: it goes from 1 or more up, as in 1:4M", part)
			}
		}
		for n := a; ; n *= 2 {
			if n > b {
				break
			}
			if !slices.Contains(out, n) {
				out = append(out, n)
			}
			if n == 0 || n == b {
				break
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

func parseSize(s string) (int, error) {
	num, shift := s, 0
	if s != "" {
		switch s[len(s)-1] {
		case 'K', 'k':
			shift = 10
		case 'M', 'm':
			shift = 20
		case 'G', 'g':
			shift = 30
		}
		if shift != 0 {
			num = s[:len(s)-1]
		}
	}
	n, err := strconv.ParseUint(num, 10, 31)
	if err != nil || num[0] == '+' || n<<shift > maxSize {
		return 0, fmt.Errorf("size %q: it is a number of bytes from 0 to 1G, as in 8, 4K, 1M or 1:4M", s)
	}
	return int(n << shift), nil
}

// FormatSize writes a size as ParseSizes reads it, with a unit.
func FormatSize(n int) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= mib && n%mib == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= kib && n%kib == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// Case is one line of the plan. It travels to the follower.
type Case struct {
	Test     Test   `json:"test"`
	Size     int    `json:"size"`
	Wait     string `json:"wait"`
	Mem      string `json:"mem"`
	Validate bool   `json:"validate,omitempty"`
	Peers    int    `json:"peers,omitempty"`
	Ranks    int    `json:"ranks,omitempty"` // processes; 0: the two ends
}

// check refuses cases that a lead of this version does not send.
func (c *Case) check() error {
	i := infoOf(c.Test)
	switch {
	case i == nil:
		return fmt.Errorf("unknown test %q", c.Test)
	case c.Size < 0 || c.Size > maxSize:
		return fmt.Errorf("size %d", c.Size)
	case c.Wait != "poll" && c.Wait != "block":
		return fmt.Errorf("wait mode %q", c.Wait)
	case c.Mem != "arena" && c.Mem != "heap":
		return fmt.Errorf("memory %q", c.Mem)
	case c.Peers < 0 || c.Peers > maxPeers:
		return fmt.Errorf("%d peers", c.Peers)
	case i.ranks != (c.Ranks > 0):
		return fmt.Errorf("%s between %d ranks", c.Test, c.Ranks)
	}
	return CheckRanks(c.Ranks, c.Test)
}

// messages is how many an operation of the test has.
func (c *Case) messages() int {
	switch c.Test {
	case BiBW:
		return 2
	case MultiPair:
		return c.Ranks / 2
	case AllToAll:
		return c.Ranks * (c.Ranks - 1)
	}
	return 1
}

func (c *Case) blocking() bool { return c.Wait == "block" }
func (c *Case) arena() bool    { return c.Mem == "arena" }

// window is the number of messages in flight for a size, of at most depth.
func window(size, depth int) int {
	w := maxWindow
	if size > 0 {
		w = min(w, max(2, footprint/size))
	}
	if depth > 0 {
		w = min(w, depth)
	}
	return max(1, w)
}

// cases lists what a run without surprises measures, in order.
func (c *Config) cases() []Case {
	var out []Case
	for _, t := range c.Tests {
		i := infoOf(t)
		sizes := c.Sizes
		if sizes == nil {
			sizes = i.sizes
		}
		if i.fixed != 0 {
			sizes = []int{i.size(0)}
		}
		for _, s := range sizes {
			if s == 0 && (i.oneSided || t == Bcast) {
				continue
			}
			cs := Case{Test: t, Size: s, Wait: c.Wait, Mem: c.Mem, Validate: c.Validate, Peers: c.Peers}
			if i.ranks {
				cs.Ranks = c.ranks()
			}
			out = append(out, cs)
		}
	}
	return out
}

// plan is what the lead tells the other ranks before anything is opened.
type plan struct {
	Driver   string            `json:"driver"`
	Device   string            `json:"device,omitempty"`
	Options  map[string]string `json:"options,omitempty"` // of the driver
	Blocking bool              `json:"blocking,omitempty"`
	MaxSize  int               `json:"max_size"`
	Peers    int               `json:"peers,omitempty"`  // idle ones, which one more rank holds
	Ranks    int               `json:"ranks,omitempty"`  // of a session of more than two; 0: the two ends
	Places   []place           `json:"places,omitempty"` // of each rank, in a lab
	CPUs     []int             `json:"cpus,omitempty"`   // of each rank of this machine
	Yield    bool              `json:"yield,omitempty"`  // they share a CPU
}

// place is where one rank opens the driver.
type place struct {
	Device string `json:"device"`
	Netns  string `json:"netns"`
}

// size is the number of ranks.
func (p *plan) size() int {
	switch {
	case p.Ranks > 0:
		return p.Ranks
	case p.Peers > 0:
		return 3
	}
	return 2
}

// at is the plan of a rank.
func (p *plan) at(rank int) plan {
	q := *p
	if rank < len(p.Places) {
		q.Device = p.Places[rank].Device
		q.Options = maps.Clone(p.Options)
		if q.Options == nil {
			q.Options = make(map[string]string)
		}
		q.Options["netns"] = p.Places[rank].Netns
	}
	return q
}

// check refuses plans that a lead of this version does not make for so many ranks.
func (p *plan) check(ranks int) error {
	switch {
	case p.MaxSize < 0 || p.MaxSize > maxSize:
		return fmt.Errorf("messages of %d bytes", p.MaxSize)
	case p.Peers < 0 || p.Peers > maxPeers:
		return fmt.Errorf("%d peers", p.Peers)
	case p.Ranks < 0 || p.Ranks > maxRanks || p.size() != ranks:
		return fmt.Errorf("a plan for %d ranks in a job of %d", p.size(), ranks)
	case bytesIn(p.Options) > maxOptions:
		return fmt.Errorf("%d bytes of options", bytesIn(p.Options))
	}
	return nil
}
