package launch

import "bytes"

// fate is where a rank is in its life, as the rendezvous sees it.
type fate uint8

const (
	fateAbsent fate = iota
	fateJoined
	fateLeft // in order
	fateDied
	fateLate // rank 0 does not wait for it any more
)

func (f fate) String() string {
	switch f {
	case fateAbsent:
		return "absent"
	case fateJoined:
		return "joined"
	case fateLeft:
		return "left"
	case fateLate:
		return "did not join in time"
	}
	return "died"
}

// post is a frame that the board wants sent.
type post struct {
	to   int
	kind kind
	body []byte
}

// board is the rendezvous without its sockets: requests of ranks go in, answers to them come out.
type board struct {
	ranks   []member
	live    int // joined
	entered int // ranks inside the fence
	gone    int // the first rank that left or died, or -1
	abort   *RankError
	word    []byte // the first rank's to agree on
	said    int    // ranks that have said one
	asking  int    // and wait for the answer
	differ  bool   // not all the same
	giving  int    // ranks inside the exchange
	ends    []End  // of ranks, in the order in which they became known
}

type member struct {
	fate    fate
	said    bool // a word to agree on
	asks    bool // and waits for the answer
	inFence bool
	card    []byte
	needs   bool   // the others: it has exchanged, and is not told of a loss yet
	gives   bool   // data, and waits for that of the others
	data    []byte // of the exchange
	ended   bool   // is in ends
	status  bool   // its exit status will be known
	watches bool   // ends are told to it
	told    int    // how many
}

func newBoard(size int) *board { return &board{ranks: make([]member, size), gone: -1} }

// join takes an authenticated rank, or says why not.
func (b *board) join(h *hello) (status, []post) {
	switch {
	case int64(h.size) != int64(len(b.ranks)):
		return statusSize, nil
	case int64(h.rank) >= int64(len(b.ranks)):
		return statusRank, nil
	}
	m := &b.ranks[h.rank]
	if m.fate == fateLate {
		return statusLate, nil
	}
	if m.fate != fateAbsent {
		return statusTaken, nil
	}
	m.fate = fateJoined
	b.live++
	if b.abort != nil {
		return statusOK, []post{b.aborted(int(h.rank))}
	}
	return statusOK, nil
}

// handle takes what a joined rank said; an error means that it makes no sense.
func (b *board) handle(rank int, k kind, body []byte) ([]post, error) {
	m := &b.ranks[rank]
	if m.fate != fateJoined {
		return nil, errFrame
	}
	switch k {
	case kindAgree:
		if m.said || m.card != nil || checkWord(body) != nil {
			return nil, errFrame
		}
		m.said, m.asks = true, true
		b.asking++
		if b.said++; b.said == 1 {
			b.word = body
		}
		b.differ = b.differ || !bytes.Equal(b.word, body)
		return b.agree(), nil
	case kindPublish:
		if m.card != nil || len(body) < 1 || len(body) > MaxCard {
			return nil, errFrame
		}
		m.card = body
		return nil, nil
	case kindFence:
		if m.inFence || m.card == nil || len(body) != 0 {
			return nil, errFrame
		}
		m.inFence = true
		b.entered++
		return b.fence(), nil
	case kindExchange:
		if m.gives || len(body) > MaxCard {
			return nil, errFrame
		}
		m.needs, m.gives, m.data = true, true, body
		b.giving++
		if b.gone >= 0 {
			return b.lost(), nil
		}
		return b.exchange(), nil
	case kindWatch:
		if m.watches || len(body) != 0 {
			return nil, errFrame
		}
		m.watches = true
		return b.tell(), nil
	case kindLookup:
		id, of, err := parseLookup(body)
		if err != nil || int64(of) >= int64(len(b.ranks)) {
			return nil, errFrame
		}
		return []post{{rank, kindCard, putCard(id, b.ranks[of].card)}}, nil
	case kindAbort:
		code, why, err := parseAbort(body)
		if err != nil {
			return nil, err
		}
		return b.end(rank, code, why), nil
	case kindBye:
		if len(body) != 0 {
			return nil, errFrame
		}
		b.note(End{Rank: rank, How: Left})
		return b.leave(rank, fateLeft), nil
	}
	return nil, errFrame
}

// leave notes that a rank will say nothing more, joined or not.
func (b *board) leave(rank int, f fate) []post {
	m := &b.ranks[rank]
	if m.fate >= fateLeft {
		return nil
	}
	if m.fate == fateJoined {
		b.live--
	}
	if m.inFence {
		m.inFence = false
		b.entered--
	}
	if m.asks {
		m.asks = false
		b.asking--
	}
	if m.gives {
		m.gives, m.data = false, nil
		b.giving--
	}
	m.needs = false
	m.fate = f
	if b.gone < 0 {
		b.gone = rank
	}
	return append(append(b.agree(), b.fence()...), b.lost()...)
}

// exchange gives everybody everything once all have given theirs.
func (b *board) exchange() (out []post) {
	if b.giving < len(b.ranks) {
		return nil
	}
	for from := range b.ranks {
		m := &b.ranks[from]
		body := putGiven(from, m.data)
		m.gives, m.data = false, nil
		for to := range b.ranks {
			out = append(out, post{to, kindGiven, body})
		}
	}
	b.giving = 0
	return out
}

// lost tells those that have exchanged which rank is gone. Where the job was aborted they hear that instead.
func (b *board) lost() (out []post) {
	for r := range b.ranks {
		if m := &b.ranks[r]; m.needs && b.abort == nil {
			m.needs = false
			out = append(out, post{r, kindLost, putGone(b.gone, b.ranks[b.gone].fate)})
		}
	}
	return out
}

// agree answers those that have said their word once all have, or can no longer.
func (b *board) agree() (out []post) {
	if b.asking == 0 || b.gone < 0 && b.said < len(b.ranks) {
		return nil
	}
	same := byte(0)
	if b.gone < 0 && !b.differ {
		same = 1
	}
	for r := range b.ranks {
		if m := &b.ranks[r]; m.asks {
			m.asks = false
			out = append(out, post{r, kindAgreed, []byte{same}})
		}
	}
	b.asking = 0
	return out
}

// fence lets everybody out once all are in, or can no longer be.
func (b *board) fence() []post {
	say := post{kind: kindFenced}
	switch {
	case b.entered == 0: // most leave when nobody waits
		return nil
	case b.gone >= 0:
		say = post{kind: kindGone, body: putGone(b.gone, b.ranks[b.gone].fate)}
	case b.entered < len(b.ranks):
		return nil
	}
	var out []post
	for r := range b.ranks {
		if b.ranks[r].inFence {
			b.ranks[r].inFence = false
			say.to = r
			out = append(out, say)
		}
	}
	b.entered = 0
	return out
}

// end aborts the job; the first to do so is who is named.
func (b *board) end(rank, code int, why string) []post {
	if b.abort != nil {
		return nil
	}
	b.abort = &RankError{Rank: rank, Code: exitCode(code), Why: "aborted the job: " + why}
	var out []post
	for r := range b.ranks {
		if b.ranks[r].fate == fateJoined {
			out = append(out, b.aborted(r))
		}
	}
	return out
}

func (b *board) aborted(to int) post {
	return post{to, kindAborted, putAborted(b.abort.Rank, b.abort.Code, b.abort.Why)}
}
