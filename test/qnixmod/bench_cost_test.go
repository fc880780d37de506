package qnixmod

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Registration and de-registration of interfaces of different sizes, mapping included.
func BenchmarkRegister(b *testing.B) {
	load(b, "nics=1")
	for _, contexts := range []uint32{8, 64, 512, 4096} {
		r := registerArg{Name: name("p"), Commands: contexts, Sends: contexts, Receives: contexts, RegionSize: 1024}
		p := mustRegister(b, 0, r)
		size := len(p.vni) + len(p.hps)
		p.close()
		b.Run(fmt.Sprintf("%d contexts, %d KiB", contexts, size>>10), func(b *testing.B) {
			cost(b, 8, func() {
				p, err := register(0, r)
				if err != nil {
					b.Fatal(err)
				}
				p.close()
			})
		})
	}
}

func BenchmarkTranslate(b *testing.B) {
	load(b, "nics=1")
	p := mustRegister(b, 0, small("p"))
	for size := 4096; size <= 64<<20; size *= 8 {
		memory := mustMap(b, size)
		for i := 0; i < size; i += 4096 {
			memory[i] = 1
		}
		b.Run(fmt.Sprintf("%d KiB", size>>10), func(b *testing.B) {
			cost(b, max(4, min(200, (64<<20)/size)), func() {
				h, err := p.translate(memory, accessRead|accessWrite)
				if err != nil {
					b.Fatal(err)
				}
				if err := p.untranslate(h); err != nil {
					b.Fatal(err)
				}
			})
		})
		unix.Munmap(memory)
	}
}

// cost reports the median of what n calls of f take, each.
func cost(b *testing.B, n int, f func()) {
	var all []float64
	for range rounds {
		start := time.Now()
		for range n {
			f()
		}
		all = append(all, float64(time.Since(start).Nanoseconds())/float64(n))
	}
	only(b)
	b.ReportMetric(median(all)/1000, "µs")
}

// The time of one NIC compared with process_vm_readv of as many bytes.
func BenchmarkLongMessage(b *testing.B) {
	load(b, "nics=2")
	const size = 1 << 20
	for nic, where := range []string{"one NIC", "two NICs"} {
		b.Run(where, func(b *testing.B) {
			from, to := mustRegister(b, 0, small("from")), mustRegister(b, nic, small("to"))
			long := newLong(b, from, to, size)
			source, target := mustMap(b, size), mustMap(b, size)
			beside(b, "readv", long, func(b *testing.B) float64 { return readv(b, source, target) })
		})
	}
}

const copies = 20 // in a round

func readv(b *testing.B, source, target []byte) float64 {
	remote := []unix.RemoteIovec{{Base: addressOf(source), Len: len(source)}}
	local := []unix.Iovec{{Base: &target[0], Len: uint64(len(target))}}
	start := time.Now()
	for range copies {
		if _, err := unix.ProcessVMReadv(os.Getpid(), local, remote, 0); err != nil {
			b.Fatal(err)
		}
	}
	return float64(time.Since(start).Nanoseconds()) / copies
}

// newLong returns what measures messages from one process to another.
func newLong(b *testing.B, from, to *process, size int) func(*testing.B) float64 {
	source, target := mustMap(b, size), mustMap(b, size)
	out, err := from.translate(source, accessRead)
	if err != nil {
		b.Fatal(err)
	}
	in, err := to.translate(target, accessWrite)
	if err != nil {
		b.Fatal(err)
	}
	from.describe(false, 0, descriptor{Handle: out, Len: uint32(size)})
	to.describe(true, 0, descriptor{Handle: in, Len: uint32(size)})
	message := sendContext{Flags: flagDoorbell, Len: uint32(size), Descriptors: 1}
	return func(b *testing.B) float64 {
		start := time.Now()
		for range copies {
			message.Process = from.reg.Name
			if err := to.transfer(cmdReceive, 0, message); err != nil {
				b.Fatal(err)
			}
			message.Process = to.reg.Name
			if err := from.transfer(cmdSend, 0, message); err != nil {
				b.Fatal(err)
			}
			checkRung(b, from, false, 0, stateDone, uint32(size))
			checkRung(b, to, true, 0, stateDone, uint32(size))
		}
		return float64(time.Since(start).Nanoseconds()) / copies
	}
}

// BenchmarkIdle is the processor time that the NICs' threads use in a second in which nothing is sent, after messages; with a
// wire, whose timers look for hosts, and without.
func BenchmarkIdle(b *testing.B) {
	for what, params := range map[string]string{
		"no wire":         "nics=2",
		"wire and a peer": "nics=2 key=0f0e0d0c0b0a09080706050403020100 peers=192.0.2.77",
	} {
		b.Run(what, func(b *testing.B) {
			load(b, params)
			ping := newPing(b, 1)
			ping.halves(b)
			end(ping.echo)
			var all []float64
			for range rounds {
				before := threadTime(b)
				time.Sleep(time.Second)
				all = append(all, float64(threadTime(b)-before))
			}
			only(b)
			b.ReportMetric(median(all)/1000, "µs/s")
		})
	}
}

// threadTime is what the threads of both NICs, and of the wire, have used, in ns.
func threadTime(b *testing.B) (sum int64) {
	b.Helper()
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	found := 0
	for _, path := range names {
		name, _ := readFile(path)
		if !strings.HasPrefix(name, "qnix/") {
			continue
		}
		var ns int64
		text, err := readFile(filepath.Join(filepath.Dir(path), "schedstat"))
		if _, e := fmt.Sscan(text, &ns); err != nil || e != nil {
			b.Fatalf("%s: %v, %v", path, err, e)
		}
		sum += ns
		found++
	}
	if found < 2 {
		b.Fatalf("%d threads of two NICs", found)
	}
	return sum
}
