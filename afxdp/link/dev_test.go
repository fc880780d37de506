package link

import "testing"

func TestDev(t *testing.T) {
	length := Time(200e6)
	for _, rtt := range []Time{40_000} {
		for _, n := range []int{2, 8, 32, 100} {
			for _, queue := range []int{20, 100, 1000} {
				x := contest{flows: n, queue: queue, rate: 10 * gbit, delay: rtt / 2, spread: 1, mtu: 1500, length: length}
				t.Logf("rtt %4d µs, %3d flows, queue %4d: %v", rtt/1000, n, queue, x.run(t, 1))
			}
		}
	}
	for _, n := range []int{2, 32} {
		x := contest{flows: n, queue: 200, rate: 10 * gbit, delay: 20_000, spread: 1, late: true, mtu: 1500, length: length}
		t.Logf("latecomers, %3d flows: %v", n, x.run(t, 1))
		x.late, x.spread = false, 10
		t.Logf("RTTs 1:10, %3d flows: %v", n, x.run(t, 1))
	}
	for _, loss := range []float64{0, 0.01, 0.05, 0.1} {
		x := contest{flows: 1, queue: 500, rate: 10 * gbit, delay: 20000, spread: 1, mtu: 1500, length: length, loss: loss}
		o := x.run(t, 1)
		x.mess = true
		t.Logf("loss %4.1f %%: %v; messy: used %5.1f", 100*loss, o, 100*x.run(t, 1).used)
	}
}
