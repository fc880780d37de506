//go:build linux

package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Test is the name of a test.
type Test string

// The tests, by the names of the command line.
const (
	Lat           Test = "lat"
	BW            Test = "bw"
	Rate          Test = "rate"
	BiBW          Test = "bibw"
	PutLat        Test = "put-lat"
	PutBW         Test = "put-bw"
	GetLat        Test = "get-lat"
	GetBW         Test = "get-bw"
	FaddLat       Test = "fadd-lat"
	CswapLat      Test = "cswap-lat"
	Connect       Test = "connect"
	Barrier       Test = "barrier"
	Bcast         Test = "bcast"
	TagLat        Test = "tag-lat"
	TagBW         Test = "tag-bw"
	AMRate        Test = "am-rate"
	WakeLat       Test = "wake-lat"
	TurnLat       Test = "turn-lat"
	BesideLat     Test = "beside-lat"
	MultiPair     Test = "multi-pair"
	AllToAll      Test = "all-to-all"
	maxSize            = 1 << 30
	MaxWindow          = 64
	footprint          = 2 << 20 // bytes in flight, so that caches are measured, not DRAM
	MaxIters           = 1 << 40
	maxPeers           = 4096
	MaxGoroutines      = 100_000
)

// Info describes a test and its needs.
type Info struct {
	Test     Test
	about    string
	Latency  bool // result is a time; otherwise a throughput
	Half     bool // a ping-pong: the time is half a round trip's
	Messages bool // result is messages a second
	Fixed    int  // the only size that makes sense; 0: any
	OneSided bool
	Sizes    []int // default sizes
	standard bool  // part of a run without -t
	Session  bool  // only with -d session
	Ranks    bool  // between Config.Ranks processes, not two
}

// KiB and MiB are sizes in bytes.
const KiB, MiB = 1 << 10, 1 << 20

// Sizes of messages when the user names none.
var (
	latSizes  = []int{8, 4 * KiB, 64 * KiB, MiB}
	bwSizes   = latSizes[1:]
	wordSizes = latSizes[:2]
)

// Tests lists all tests in the order of the report.
var Tests = []Info{
	{Test: Lat, about: "ping-pong", Latency: true, Half: true, Sizes: latSizes, standard: true},
	{Test: BW, about: "one way, a window of messages in flight, both ends posting", Sizes: bwSizes, standard: true},
	{Test: Rate, about: "small messages one way, as fast as they go", Messages: true, Sizes: []int{8}, standard: true},
	{Test: BiBW, about: "both ways at once, the sum of both", Sizes: bwSizes},
	{
		Test: PutLat, about: "ping-pong of puts, each side watching its memory",
		Latency: true, Half: true, OneSided: true, Sizes: wordSizes,
	},
	{Test: PutBW, about: "puts into a passive peer's memory", OneSided: true, Sizes: bwSizes, standard: true},
	{
		Test: GetLat, about: "get from a passive peer's memory, the whole operation",
		Latency: true, OneSided: true, Sizes: wordSizes,
	},
	{Test: GetBW, about: "gets from a passive peer's memory", OneSided: true, Sizes: bwSizes},
	{
		Test: FaddLat, about: "fetch-and-add of 64 bits in a passive peer's memory, the whole operation",
		Latency: true, Fixed: 8, OneSided: true,
	},
	{
		Test: CswapLat, about: "compare-and-swap of 64 bits in a passive peer's memory, the whole operation",
		Latency: true, Fixed: 8, OneSided: true,
	},
	{Test: Connect, about: "from asking for a connection to having it, both sides", Latency: true, Fixed: -1},
	{
		Test: Barrier, about: "barrier of 8 processes, the whole operation (qnix; sock-unix: over a star of sockets)",
		Latency: true, Fixed: -1,
	},
	{
		Test: Bcast, about: "broadcast to 7 others until all have it (qnix; sock-unix: over a star of sockets)",
		Latency: true, Sizes: []int{64 * KiB},
	},
	{
		Test: TagLat, about: "session: ping-pong of tagged messages",
		Latency: true, Half: true, Sizes: latSizes, Session: true,
	},
	{
		Test: TagBW, about: "session: tagged messages one way, a window of them in flight",
		Sizes: bwSizes, Session: true,
	},
	{
		Test: AMRate, about: "session: active messages one way, as fast as they go",
		Messages: true, Sizes: []int{8}, Session: true,
	},
	{
		Test: WakeLat, about: "session: a message to a peer that has slept, and its answer, after a pause of 2 ms",
		Latency: true, Sizes: latSizes, Session: true,
	},
	{
		Test: TurnLat, about: "session: ping-pong of rank 0 with each of the other --ranks processes in turn",
		Latency: true, Half: true, Sizes: wordSizes, Session: true, Ranks: true,
	},
	{
		Test: BesideLat, about: "session: ping-pong of ranks 0 and 1, while each further process sends 1 MiB messages to rank 0",
		Latency: true, Half: true, Sizes: wordSizes[:1], Session: true, Ranks: true,
	},
	{
		Test: MultiPair, about: "session: half of the --ranks processes send a window of messages to the other half, the sum",
		Sizes: latSizes, Session: true, Ranks: true,
	},
	{
		Test: AllToAll, about: "session: each of the --ranks processes sends to each other, until all has come",
		Latency: true, Sizes: []int{8, 4 * KiB, 64 * KiB}, Session: true, Ranks: true,
	},
}

// Description describes the test for people.
func (i *Info) Description() string {
	if i.Half {
		return i.about + ", half a round trip"
	}
	return i.about
}

// InfoOf returns nil for a test that does not exist.
func InfoOf(t Test) *Info {
	for i := range Tests {
		if Tests[i].Test == t {
			return &Tests[i]
		}
	}
	return nil
}

// TestHelp lists the tests for the help text.
func TestHelp() string {
	var b strings.Builder
	for _, t := range Tests {
		fmt.Fprintf(&b, "  %-10s %s\n", t.Test, t.Description())
	}
	return b.String()
}

// TestNames returns the names of all tests.
func TestNames() []string {
	var names []string
	for _, t := range Tests {
		names = append(names, string(t.Test))
	}
	return names
}

// ParseTests parses the argument of -t: names separated by commas, or all, which excludes the tests that only a session
// runs. Empty means the standard tests.
func ParseTests(s string) ([]Test, error) {
	var out []Test
	if s == "" || s == "all" {
		for _, t := range Tests {
			if t.standard || s == "all" && !t.Session {
				out = append(out, t.Test)
			}
		}
		return out, nil
	}
	for _, name := range strings.Split(s, ",") {
		if InfoOf(Test(name)) == nil {
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
	case n >= MiB && n%MiB == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= KiB && n%KiB == 0:
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

	Goroutines int `json:"goroutines,omitempty"` // that send, each waiting for its message to leave; 0: one, which does not wait
}

// Check returns an error for cases that a lead of this version does not send.
func (c *Case) Check() error {
	i := InfoOf(c.Test)
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
	case c.Goroutines < 0 || c.Goroutines > MaxGoroutines || c.Goroutines > 0 && c.Test != AMRate:
		return fmt.Errorf("%s by %d goroutines", c.Test, c.Goroutines)
	case i.Ranks != (c.Ranks > 0):
		return fmt.Errorf("%s between %d ranks", c.Test, c.Ranks)
	}
	return CheckRanks(c.Ranks, c.Test)
}

// Messages returns the number of messages in an operation of the test.
func (c *Case) Messages() int {
	switch c.Test {
	case BiBW, WakeLat:
		return 2
	case MultiPair:
		return c.Ranks / 2
	case AllToAll:
		return c.Ranks * (c.Ranks - 1)
	}
	return 1
}

// Blocking reports whether waits sleep.
func (c *Case) Blocking() bool { return c.Wait == "block" }

// Arena reports whether messages lie in an arena.
func (c *Case) Arena() bool { return c.Mem == "arena" }

// Window returns the number of messages in flight for a size, at most depth.
func Window(size, depth int) int {
	w := MaxWindow
	if size > 0 {
		w = min(w, max(2, footprint/size))
	}
	if depth > 0 {
		w = min(w, depth)
	}
	return max(1, w)
}

// DefaultRanks is the default number of processes of tests with more than two, and MaxRanks the largest.
const DefaultRanks, MaxRanks = 4, 32

// RanksTests returns the names of the tests of more than two processes.
func RanksTests() string {
	var names []string
	for _, t := range Tests {
		if t.Ranks {
			names = append(names, string(t.Test))
		}
	}
	return strings.Join(names, ", ")
}

// CheckRanks returns an error for numbers of processes that these tests cannot have; 0 means the default.
func CheckRanks(n int, tests ...Test) error {
	switch {
	case n != 0 && (n < 2 || n > MaxRanks):
		return fmt.Errorf("--ranks %d: it is from 2 to %d", n, MaxRanks)
	case n == 2 && slices.Contains(tests, BesideLat):
		return fmt.Errorf("--ranks 2: %s is between three processes or more", BesideLat)
	case n%2 != 0 && slices.Contains(tests, MultiPair):
		return fmt.Errorf("--ranks %d: %s pairs them, so their number is even", n, MultiPair)
	}
	return nil
}
