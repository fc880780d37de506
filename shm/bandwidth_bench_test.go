package shm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// stream sends n messages of size bytes with window of them in flight, and
// returns bytes a second. Rdv data go through memory that both threads share,
// as the layer above would carry them.
func stream(b *testing.B, x, y driver.Instance, size, n int, memory func(int) []byte) float64 {
	const window = 4
	var offered [window]atomic.Pointer[[]byte]
	prepare := func() (p [window]*driver.Packet) {
		for i := range p {
			p[i] = &driver.Packet{IOV: [][]byte{memory(size)}}
		}
		return p
	}
	send, recv := prepare(), prepare()
	for i := range window {
		copy(send[i].IOV[0], random(size))
		clear(recv[i].IOV[0])
	}
	var d time.Duration
	other := pinned(1, func() { sendStream(b, x, send[:], offered[:], n) })
	<-pinned(0, func() {
		start := time.Now()
		recvStream(b, y, recv[:], offered[:], n)
		d = time.Since(start)
	})
	<-other
	return float64(n) * float64(size) / d.Seconds()
}

func sendStream(b *testing.B, x driver.Instance, packets []*driver.Packet, offered []atomic.Pointer[[]byte], n int) {
	window := len(packets)
	for done, posted := 0, 0; done < n; {
		for ; posted < n && posted < done+window; posted++ {
			rdv := offered[posted%window].Swap(nil)
			if rdv == nil {
				break
			}
			p := packets[posted%window]
			p.RdvData = *rdv
			if err := x.SendPost(p); err != nil {
				b.Error(err)
				return
			}
		}
		if posted == done {
			continue
		}
		ok, err := x.SendPoll(packets[done%window])
		if err != nil {
			b.Error(err)
			return
		}
		if ok {
			done++
		}
	}
}

func recvStream(b *testing.B, y driver.Instance, packets []*driver.Packet, offered []atomic.Pointer[[]byte], n int) {
	window := len(packets)
	for done, posted := 0, 0; done < n; {
		for ; posted < n && posted < done+window; posted++ {
			p := packets[posted%window]
			if err := y.RecvPost(p); err == driver.ErrBusy {
				break
			} else if err != nil {
				b.Error(err)
				return
			}
			rdv := append([]byte(nil), p.RdvData...)
			offered[posted%window].Store(&rdv)
		}
		ok, err := y.RecvPoll(packets[done%window])
		if err != nil {
			b.Error(err)
			return
		}
		if ok {
			done++
		}
	}
}

var (
	limitArena         sync.Once
	limitFrom, limitTo []byte
)

// memcpyLimit is what one core copies, in bytes a second.
func memcpyLimit(size, n int) float64 {
	limitArena.Do(func() {
		if a, err := driver.NewArena(16 << 20); err == nil {
			limitFrom, limitTo = a.Alloc(4<<20), a.Alloc(4<<20)
			copy(limitFrom, random(len(limitFrom)))
			copy(limitTo, limitFrom)
		}
	})
	src, dst := limitFrom[:size], limitTo[:size]
	var d time.Duration
	<-pinned(0, func() {
		start := time.Now()
		for range n {
			copy(dst, src)
		}
		d = time.Since(start)
	})
	return float64(n) * float64(size) / d.Seconds()
}

func BenchmarkBandwidth(b *testing.B) {
	needCores(b)
	for _, path := range []string{"arena", "ring"} {
		for _, size := range []int{64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s-%dK", path, size>>10), func(b *testing.B) {
				x, y := pair(b, driver.Large, map[string]string{"path": path})
				a, err := driver.NewArena(16*size + 1<<20)
				if err != nil {
					b.Fatal(err)
				}
				var pool [][]byte
				for range 8 {
					pool = append(pool, a.Alloc(size))
				}
				used := 0
				memory := func(int) []byte {
					used++
					return pool[used%len(pool)]
				}
				n := max(64, 1<<28/size)
				var ratios, speeds []float64
				for range 7 {
					before := memcpyLimit(size, n/2)
					v := stream(b, x, y, size, n, memory)
					after := memcpyLimit(size, n/2)
					speeds = append(speeds, v/1e9)
					ratios = append(ratios, 2*v/(before+after))
				}
				b.ReportMetric(median(speeds), "GB/s")
				b.ReportMetric(median(ratios), "×memcpy")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
