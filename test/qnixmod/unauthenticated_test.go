//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

func statistic(t *testing.T, nic int, file string) int {
	t.Helper()
	text, err := readFile("/sys/class/qnix/qnix" + strconv.Itoa(nic) + "/statistics/" + file)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A host without the key makes no NIC run, however many datagrams it sends, and of whatever length.
func TestUnauthenticatedDatagramsDoNotRunTheNIC(t *testing.T) {
	const datagrams = 200
	load(t, "nics=1 coordinates=7 key="+stormKey)
	c, err := net.Dial("udp", "127.0.0.1:24911")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	const runs = "/sys/kernel/debug/qnix/qnix0/runs"
	before, err := readFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	datagram := make([]byte, 65_507)
	for n := 1; n <= datagrams; n++ {
		for i := range 64 {
			datagram[i] = byte(r.Uint32())
		}
		datagram[0], datagram[1] = 1, byte(r.IntN(8)) // version, type
		copy(datagram[2:6], []byte{0, 9, 0, 7})       // from NIC 9, to NIC 7
		size := []int{64, 1452, 1453, 9000, len(datagram)}[r.IntN(5)]
		if _, err := c.Write(datagram[:size]); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); statistic(t, 0, "wire_unauthenticated") < n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("datagram %d of %d bytes does not count as unauthenticated", n, size)
			}
		}
	}
	after, err := readFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	if after != before {
		t.Errorf("the NIC has run for datagrams without the key:\nbefore\n%safter\n%s", before, after)
	}
}
