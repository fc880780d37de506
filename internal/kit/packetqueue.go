package kit

import "github.com/bywash/bywash/driver"

// PacketQueueDepth is the number of packets that a queue of posted ones holds.
const PacketQueueDepth = 64

// packetQueue is a queue of posted packets. The zero value is empty. It belongs to one goroutine at a time.
type packetQueue struct {
	p          [PacketQueueDepth]*driver.Packet
	head, tail uint32
}

// empty reports whether there is no packet.
func (q *packetQueue) empty() bool { return q.head == q.tail }

// full reports whether there is no room.
func (q *packetQueue) full() bool { return q.tail-q.head == PacketQueueDepth }

// first is the oldest packet of a queue that is not empty.
func (q *packetQueue) first() *driver.Packet { return q.p[q.head%PacketQueueDepth] }

// push adds p to a queue that is not full.
func (q *packetQueue) push(p *driver.Packet) { q.p[q.tail%PacketQueueDepth] = p; q.tail++ }

// post adds a packet that is the caller's to use, and makes it posted: ErrBusy if the queue is full.
func (q *packetQueue) post(l *Life, p *driver.Packet) error {
	if q.full() {
		return l.Busy()
	}
	p.Driver.Phase = driver.Posted
	q.push(p)
	return nil
}

// fail ends all packets of a connection that is not up, with the error that an operation has there.
func (q *packetQueue) fail(l *Life, op string) {
	if q.empty() {
		return
	}
	err := l.Failure(op)
	for !q.empty() {
		q.pop().Driver.Finish(err)
	}
}

// pop takes the oldest packet out of a queue that is not empty.
func (q *packetQueue) pop() *driver.Packet {
	p := q.first()
	q.p[q.head%PacketQueueDepth] = nil
	q.head++
	return p
}

// remove takes out p, wherever it is, and reports whether it was there.
func (q *packetQueue) remove(p *driver.Packet) bool {
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
