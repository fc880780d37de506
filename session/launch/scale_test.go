//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"fmt"
	"os"
	"testing"
)

// The traffic that docs/launch.md shows: a card of 300 bytes, looked up by 4 others.
const (
	scaleCard  = 300
	scalePeers = 4
	scaleWord  = 16
)

// simulate runs a whole job of the embedded launcher without sockets: the server state, and the frames that would be
// sent. It returns the bytes of rank 0, after checking that all have the same, and of all ranks together.
func simulate(t *testing.T, size int) (rank, total Traffic) {
	t.Helper()
	st := newServerState(size)
	ranks := make([]Traffic, size)
	deliver := func(posts []post) {
		for _, p := range posts {
			ranks[p.to].Received += uint64(frameSize(len(p.body)))
		}
	}
	handle := func(r int, k kind, body []byte) {
		ranks[r].Sent += uint64(frameSize(len(body)))
		ranks[r].Requests++
		posts, err := st.handle(r, k, body)
		if err != nil {
			t.Fatal(err)
		}
		deliver(posts)
	}
	for r := range size {
		h := hello{rank: uint32(r), size: uint32(size)}
		in, err := parseHello(h.put())
		if err != nil {
			t.Fatal(err)
		}
		if st, _ := st.join(&in); st != statusOK {
			t.Fatal(st)
		}
		ranks[r].Sent += uint64(clientBytes)
		ranks[r].Received += uint64(serverBytes)
	}
	c := make([]byte, scaleCard)
	for r := range size {
		handle(r, kindFence, append([]byte{byte(fenceAgree)}, make([]byte, scaleWord)...))
	}
	for r := range size {
		handle(r, kindPublish, c)
		handle(r, kindFence, []byte{byte(fencePlain)})
	}
	for r := range size {
		for i := range scalePeers {
			handle(r, kindLookup, putLookup((r+1+i)%size))
		}
		handle(r, kindBye, nil)
	}
	for r, tr := range ranks {
		if tr != ranks[0] {
			t.Errorf("rank %d of %d: %+v, rank 0: %+v", r, size, tr, ranks[0])
		}
		total.Sent += tr.Sent
		total.Received += tr.Received
		total.Requests += tr.Requests
	}
	return ranks[0], total
}

// scales are sizes of jobs.
func scales() []int {
	switch {
	case testing.Short():
		return []int{16, 256, 4096}
	case os.Getenv("BYWASH_SOAK") == "":
		return []int{16, 256, 10_000}
	}
	return []int{16, 256, 10_000, 100_000}
}

func TestTrafficOfARankIsConstantTo100000Ranks(t *testing.T) {
	first, _ := simulate(t, 16)
	for _, size := range scales() {
		rank, total := simulate(t, size)
		t.Logf("%6d ranks: a rank sends %d and receives %d bytes in %d requests; all %.1f MB", size, rank.Sent, rank.Received, rank.Requests,
			float64(total.Sent+total.Received)/1e6)
		if rank != first {
			t.Errorf("%d ranks: %+v a rank, %+v in a job of 16", size, rank, first)
		}
		if n := uint64(size); total.Sent != n*first.Sent || total.Received != n*first.Received {
			t.Errorf("%d ranks: %+v in total", size, total)
		}
	}
}

// Under PMI messages contain rank numbers as decimals: their length is constant but for the digits.
func TestPMITrafficOfARankIsConstantTo100000Ranks(t *testing.T) {
	values := splitValue(make([]byte, scaleCard), 900)
	for _, name := range []string{namePMI1, namePMI2} {
		t.Run(name, func(t *testing.T) {
			var first Traffic
			for _, size := range scales() {
				f := &fakePMI{values: map[string]string{}, size: size, vallen: 1024, sameCard: values[0]}
				if _, err := joinFake(t, name, f, 0); err != nil { // rank 0 generates the secret
					t.Fatal(err)
				}
				// The traffic of a rank does not depend on other ranks: of many, a sample is enough.
				var most, sum Traffic
				step := max(1, size/2048)
				n := 0
				for r := size - 1; r >= 0; r -= step {
					tr := oneOfMany(t, name, f, r)
					n++
					most.Sent, most.Received, most.Requests = max(most.Sent, tr.Sent), max(most.Received, tr.Received), max(most.Requests, tr.Requests)
					sum.Sent, sum.Received = sum.Sent+tr.Sent, sum.Received+tr.Received
				}
				t.Logf("%6d ranks: a rank sends at most %d and receives %d bytes in %d requests; all %.1f MB", size, most.Sent, most.Received, most.Requests,
					float64(sum.Sent+sum.Received)/float64(n)*float64(size)/1e6)
				if first.Requests == 0 {
					first = most
				}
				// Requests that name a rank: the card and the look-ups, each twice in PMI-2.
				if digits := uint64(5 * 2 * (1 + scalePeers)); most.Requests != first.Requests || most.Sent > first.Sent+digits || most.Received > first.Received+digits {
					t.Errorf("%d ranks: %+v a rank, %+v in a job of 16", size, most, first)
				}
			}
		})
	}
}

func oneOfMany(t *testing.T, name string, f *fakePMI, rank int) Traffic {
	j, err := joinFake(t, name, f, rank)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := j.Agree(t.Context(), make([]byte, scaleWord)); err != nil || same != (f.mapping != "") {
		t.Fatalf("agreed %v, %v", same, err)
	}
	if err := j.Publish(t.Context(), make([]byte, scaleCard)); err != nil {
		t.Fatal(err)
	}
	if err := j.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range scalePeers {
		if _, err := j.Lookup(t.Context(), (rank+1+i)%f.size); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return j.Traffic()
}

// Real processes and real sockets exchange as many bytes as the simulation.
func TestTrafficOf256Processes(t *testing.T) {
	sizes := []int{8, 32}
	if !testing.Short() {
		sizes = []int{16, 64, 256}
	}
	want, _ := simulate(t, 16)
	bye := uint64(frameSize(0)) // sent after the program has counted
	for _, n := range sizes {
		l := realLauncher{name: nameEmbedded}
		out, err := finish(t, bywashRun(t, n, envProgram+"=exchange", "BYWASH_TEST_PEERS="+itoa(scalePeers), "BYWASH_TEST_CARD="+itoa(scaleCard), "BYWASH_TEST_TOTAL=1"))
		checkExchange(t, l, n, out, err)
		for _, p := range places(t, out) {
			if p.traffic.Sent != want.Sent-bye || p.traffic.Received != want.Received || p.traffic.Requests != want.Requests-1 {
				t.Errorf("%d processes, rank %d: %+v, want %+v without the goodbye", n, p.rank, p.traffic, want)
			}
		}
		var sent, received uint64
		for line := range linesWith(out, "total ") {
			if _, err := fmt.Sscanf(line, "total %d %d", &sent, &received); err != nil {
				t.Fatal(err)
			}
		}
		if sent != uint64(n)*want.Received || received != uint64(n)*want.Sent {
			t.Errorf("%d processes: the rendezvous sent %d and received %d, want %d and %d", n, sent, received, uint64(n)*want.Received, uint64(n)*want.Sent)
		}
		t.Logf("%d processes: %d bytes a rank, %d in all", n, (sent+received)/uint64(n), sent+received)
	}
}
