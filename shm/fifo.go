package shm

import "github.com/bywash/bywash/driver"

// fifo is a queue of posted packets.
type fifo struct {
	p          [queueDepth]*driver.Packet
	head, tail uint32
}

func (q *fifo) empty() bool           { return q.head == q.tail }
func (q *fifo) full() bool            { return q.tail-q.head == queueDepth }
func (q *fifo) first() *driver.Packet { return q.p[q.head%queueDepth] }
func (q *fifo) push(p *driver.Packet) { q.p[q.tail%queueDepth] = p; q.tail++ }
func (q *fifo) pop() (p *driver.Packet) {
	p = q.first()
	q.p[q.head%queueDepth] = nil
	q.head++
	return p
}

// remove takes out p, wherever it is.
func (q *fifo) remove(p *driver.Packet) {
	for i := q.head; i != q.tail; i++ {
		if q.p[i%queueDepth] != p {
			continue
		}
		for ; i+1 != q.tail; i++ {
			q.p[i%queueDepth] = q.p[(i+1)%queueDepth]
		}
		q.tail--
		q.p[q.tail%queueDepth] = nil
		return
	}
}
