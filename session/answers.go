package session

import "github.com/bywash/bywash/session/internal/header"

// An answer replies to a request of the peer. So that a peer that does not read its answers cannot fill this process's
// memory, a queued answer is a record of 32 bytes. It becomes a message only when the driver may have room; if the
// driver then has none, the message waits in queues.firstAnswer.

// answer is a queued reply to a request of the peer. It becomes an outgoing message when the driver has room.
type answer struct {
	kind   header.Kind // Ack, Done or Reply
	get    bool        // a Reply whose data is read from the region when it is sent
	status uint8
	sender bool // Done: for the sender's half, else for the receiver's
	length uint32
	to     uint64 // the tag
	region uint64 // of a get
	value  uint64 // offset of a get, result of another operation
}

// replies returns how many queued answers belong to operations of the peer.
func (g *Gate) replies() int {
	if msg := g.queues.firstAnswer; msg != nil && header.Kind(msg.buf[0]) == header.Reply {
		return g.queues.answers.replies + 1
	}
	return g.queues.answers.replies
}

// answers is a queue of answers, in a ring.
type answers struct {
	ring    []answer // a power of two
	first   int
	n       int
	replies int // queued answers to operations
}

const minAnswers = 16

func (q *answers) push(a *answer) {
	if q.n == len(q.ring) {
		ring := make([]answer, max(minAnswers, 2*q.n))
		for i := range q.n {
			ring[i] = q.ring[(q.first+i)&(len(q.ring)-1)]
		}
		q.ring, q.first = ring, 0
	}
	q.ring[(q.first+q.n)&(len(q.ring)-1)] = *a
	q.n++
	if a.kind == header.Reply {
		q.replies++
	}
}

func (q *answers) pop() (a answer) {
	a = q.ring[q.first]
	q.first = (q.first + 1) & (len(q.ring) - 1)
	if a.kind == header.Reply {
		q.replies--
	}
	if q.n--; q.n == 0 && len(q.ring) > minAnswers {
		q.ring, q.first = nil, 0
	}
	return a
}

// answer sends an answer to the peer, or queues it until the driver has room. Answers go before all other queues but
// replay.
func (g *Gate) answer(a answer) {
	switch {
	case g.pausing.state == paused: // the peer still waits for it
	// The peer waits for its replies before it sends Bye.
	case g.pausing.state == pauseBegun && g.close.sent.bye && a.kind != header.Reply:
		g.charge(answerCost)
		g.pausing.answers.push(&a)
		return
	case g.state != gateUp && g.state != gateClosing:
		return // there is no peer to send it to
	}
	if g.clear && g.queues.replay.n == 0 && g.queues.firstAnswer == nil && g.queues.answers.n == 0 {
		msg := g.s.answerMsg(&a)
		if _, taken := g.lead.post(msg); taken {
			return
		}
		g.queues.firstAnswer = msg
		g.markBusy()
		return
	}
	g.charge(answerCost)
	g.queues.answers.push(&a)
	if g.state == gateIdle {
		g.connect()
	}
	g.markBusy()
}

// done sends Done: the transfer is over. to is the peer's id of its half of the message.
func (g *Gate) done(to uint64, status uint8, sender bool) {
	g.answer(answer{kind: header.Done, to: to, status: status, sender: sender})
}

// answerMsg makes the outgoing message of an answer.
func (s *Session) answerMsg(a *answer) *outMsg {
	h := header.Header{Kind: a.kind, Tag: a.to}
	switch a.kind {
	case header.Done:
		msg, body := s.control(h, nil)
		part := header.Part{Status: a.status, ToSender: a.sender, All: true}
		part.Put(body)
		return msg
	case header.Reply:
		out := header.Outcome{Status: a.status, Result: a.value}
		var data []byte
		if a.get {
			var err error
			data, err = s.carryOut(&header.Operation{Region: a.region, Offset: a.value, Length: a.length, What: opGet}, nil, nil)
			out.Status, out.Result = opStatus(err), 0
		}
		msg, body := s.control(h, data)
		out.Put(body)
		return msg
	}
	msg, _ := s.control(h, nil)
	return msg
}

// opStatus is the status of a reply.
func opStatus(err error) uint8 {
	for i, e := range opErrors {
		if err == e {
			return uint8(i)
		}
	}
	return uint8(len(opErrors) - 1)
}

// pushAnswers sends queued answers. room is false if the driver has no room for the next one.
func (g *Gate) pushAnswers() (moved, room bool) {
	for g.clear {
		msg := g.queues.firstAnswer
		if msg == nil {
			if g.queues.answers.n == 0 {
				return moved, true
			}
			g.charge(-answerCost)
			a := g.queues.answers.pop()
			msg = g.s.answerMsg(&a)
		}
		g.queues.firstAnswer = nil
		left, taken := g.lead.post(msg)
		if !taken {
			g.queues.firstAnswer = msg
			return moved, false
		}
		moved = moved || left
	}
	return moved, false
}

// pushQueue sends queued messages. room is false if the driver has no room for the next one.
func (g *Gate) pushQueue(q *outQueue) (moved, room bool) {
	for q.n > 0 && g.clear {
		msg := q.pop()
		left, taken := g.lead.post(msg)
		if !taken {
			q.pushFront(msg)
			return moved, false
		}
		moved = moved || left
	}
	return moved, g.clear
}

// dropAnswers drops the answers of a connection that has ended.
func (g *Gate) dropAnswers(err error) {
	g.charge(-answerCost * (g.queues.answers.n + g.pausing.answers.n))
	g.queues.answers, g.pausing.answers = answers{}, answers{}
	if msg := g.queues.firstAnswer; msg != nil {
		g.queues.firstAnswer = nil
		g.s.msgFailed(msg, err)
	}
}

// resumeAnswers queues the answers that waited for this connection.
func (g *Gate) resumeAnswers() {
	for g.pausing.answers.n > 0 {
		a := g.pausing.answers.pop()
		g.queues.answers.push(&a)
	}
}
