package kit

import "github.com/bywash/bywash/driver"

// PacketQueueDepth is the number of packets that a [PacketQueue] holds.
const PacketQueueDepth = 64

// PacketQueue is a queue of posted packets, for drivers. The zero value is
// empty. It belongs to one goroutine at a time.
type PacketQueue struct {
	p          [PacketQueueDepth]*driver.Packet
	head, tail uint32
}

// Empty reports whether there is no packet.
func (q *PacketQueue) Empty() bool { return q.head == q.tail }

// Full reports whether there is no room.
func (q *PacketQueue) Full() bool { return q.tail-q.head == PacketQueueDepth }

// First is the oldest packet of a queue that is not empty.
func (q *PacketQueue) First() *driver.Packet { return q.p[q.head%PacketQueueDepth] }

// Push adds p to a queue that is not full.
func (q *PacketQueue) Push(p *driver.Packet) { q.p[q.tail%PacketQueueDepth] = p; q.tail++ }

// Post adds a packet that is the caller's to use, and makes it posted: ErrBusy if the queue is full.
func (q *PacketQueue) Post(l *Life, p *driver.Packet) error {
	if q.Full() {
		return l.Busy()
	}
	p.Driver.Phase = driver.Posted
	q.Push(p)
	return nil
}

// Fail ends all packets of a connection that is not up, with the error that an operation has there.
func (q *PacketQueue) Fail(l *Life, op string) {
	if q.Empty() {
		return
	}
	err := l.Failure(op)
	for !q.Empty() {
		q.Pop().Driver.Finish(err)
	}
}

// Pop takes the oldest packet out of a queue that is not empty.
func (q *PacketQueue) Pop() *driver.Packet {
	p := q.First()
	q.p[q.head%PacketQueueDepth] = nil
	q.head++
	return p
}

// Remove takes out p, wherever it is, and reports whether it was there.
func (q *PacketQueue) Remove(p *driver.Packet) bool {
	for i := q.head; i != q.tail; i++ {
		if q.p[i%PacketQueueDepth] != p {
			continue
		}
		for ; i+1 != q.tail; i++ {
			q.p[i%PacketQueueDepth] = q.p[(i+1)%PacketQueueDepth]
		}
		q.tail--
		q.p[q.tail%PacketQueueDepth] = nil
		return true
	}
	return false
}
