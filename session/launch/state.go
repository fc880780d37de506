package launch

import "bytes"

// rankState is the state of a rank at the rendezvous.
type rankState uint8

const (
	rankAbsent rankState = iota
	rankJoined
	rankLeft // in order
	rankDied
	rankLate // rank 0 does not wait for it any more
)

func (f rankState) String() string {
	switch f {
	case rankAbsent:
		return "absent"
	case rankJoined:
		return "joined"
	case rankLeft:
		return "left"
	case rankLate:
		return "did not join in time"
	}
	return "died"
}

// post is a frame to be sent to a rank.
type post struct {
	to   int
	kind kind
	body []byte
}

// serverState is the rendezvous without its sockets: it takes requests of ranks and returns posts.
type serverState struct {
	ranks        []member
	live         int // joined
	entered      int // ranks inside the fence
	gone         int // the first rank that left or died, or -1
	abort        *RankError
	vote         []byte // the first rank's to agree on
	votes        int    // ranks that have sent a word
	votesPending int    // of votes, ranks that wait for the answer
	votesDiffer  bool   // not all words are the same
	exchanging   int    // ranks inside the exchange
	ends         []End  // of ranks, in the order in which they became known
}

type member struct {
	state        rankState
	voted        bool // the rank has sent a word to agree on
	votePending  bool // the rank waits for the answer
	inFence      bool
	card         []byte
	dependsOnAll bool   // the rank has exchanged, and was not notified of a loss yet
	exchanging   bool   // the rank has sent data, and waits for that of the others
	data         []byte // of the exchange
	ended        bool   // its end is in ends
	status       bool   // its exit status will be known
	watches      bool   // ends are reported to it
	reported     int    // how many of ends were reported to it
}

func newServerState(size int) *serverState {
	return &serverState{ranks: make([]member, size), gone: -1}
}

// join admits an authenticated rank, or returns why not.
func (st *serverState) join(h *hello) (status, []post) {
	switch {
	case int64(h.size) != int64(len(st.ranks)):
		return statusSize, nil
	case int64(h.rank) >= int64(len(st.ranks)):
		return statusRank, nil
	}
	m := &st.ranks[h.rank]
	if m.state == rankLate {
		return statusLate, nil
	}
	if m.state != rankAbsent {
		return statusTaken, nil
	}
	m.state = rankJoined
	st.live++
	if st.abort != nil {
		return statusOK, []post{st.aborted(int(h.rank))}
	}
	return statusOK, nil
}

// handle handles a frame of a joined rank; the error means that the frame is invalid.
func (st *serverState) handle(rank int, k kind, body []byte) ([]post, error) {
	m := &st.ranks[rank]
	if m.state != rankJoined {
		return nil, errFrame
	}
	switch k {
	case kindAgree:
		if m.voted || m.card != nil || checkWord(body) != nil {
			return nil, errFrame
		}
		m.voted, m.votePending = true, true
		st.votesPending++
		if st.votes++; st.votes == 1 {
			st.vote = body
		}
		st.votesDiffer = st.votesDiffer || !bytes.Equal(st.vote, body)
		return st.agree(), nil
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
		st.entered++
		return st.fence(), nil
	case kindExchange:
		if m.exchanging || len(body) > MaxCard {
			return nil, errFrame
		}
		m.dependsOnAll, m.exchanging, m.data = true, true, body
		st.exchanging++
		if st.gone >= 0 {
			return st.lost(), nil
		}
		return st.exchange(), nil
	case kindWatch:
		if m.watches || len(body) != 0 {
			return nil, errFrame
		}
		m.watches = true
		return st.reportEnds(), nil
	case kindLookup:
		id, of, err := parseLookup(body)
		if err != nil || int64(of) >= int64(len(st.ranks)) {
			return nil, errFrame
		}
		return []post{{rank, kindCard, putCard(id, st.ranks[of].card)}}, nil
	case kindAbort:
		code, why, err := parseAbort(body)
		if err != nil {
			return nil, err
		}
		return st.end(rank, code, why), nil
	case kindBye:
		if len(body) != 0 {
			return nil, errFrame
		}
		st.addEnd(End{Rank: rank, How: Left})
		return st.leave(rank, rankLeft), nil
	}
	return nil, errFrame
}

// leave records that a rank, joined or not, will send nothing more.
func (st *serverState) leave(rank int, f rankState) []post {
	m := &st.ranks[rank]
	if m.state >= rankLeft {
		return nil
	}
	if m.state == rankJoined {
		st.live--
	}
	if m.inFence {
		m.inFence = false
		st.entered--
	}
	if m.votePending {
		m.votePending = false
		st.votesPending--
	}
	if m.exchanging {
		m.exchanging, m.data = false, nil
		st.exchanging--
	}
	m.dependsOnAll = false
	m.state = f
	if st.gone < 0 {
		st.gone = rank
	}
	return append(append(st.agree(), st.fence()...), st.lost()...)
}

// exchange sends all data to all ranks once all have sent theirs.
func (st *serverState) exchange() (out []post) {
	if st.exchanging < len(st.ranks) {
		return nil
	}
	for from := range st.ranks {
		m := &st.ranks[from]
		body := putGiven(from, m.data)
		m.exchanging, m.data = false, nil
		for to := range st.ranks {
			out = append(out, post{to, kindGiven, body})
		}
	}
	st.exchanging = 0
	return out
}

// lost notifies the ranks that have exchanged which rank is gone. If the job was aborted, they were notified of that
// instead.
func (st *serverState) lost() (out []post) {
	for r := range st.ranks {
		if m := &st.ranks[r]; m.dependsOnAll && st.abort == nil {
			m.dependsOnAll = false
			out = append(out, post{r, kindLost, putGone(st.gone, st.ranks[st.gone].state)})
		}
	}
	return out
}

// agree answers the ranks that have sent their word once all have, or one no longer can.
func (st *serverState) agree() (out []post) {
	if st.votesPending == 0 || st.gone < 0 && st.votes < len(st.ranks) {
		return nil
	}
	same := byte(0)
	if st.gone < 0 && !st.votesDiffer {
		same = 1
	}
	for r := range st.ranks {
		if m := &st.ranks[r]; m.votePending {
			m.votePending = false
			out = append(out, post{r, kindAgreed, []byte{same}})
		}
	}
	st.votesPending = 0
	return out
}

// fence answers all ranks inside the fence once all are in, or one can no longer enter.
func (st *serverState) fence() []post {
	answer := post{kind: kindFenced}
	switch {
	case st.entered == 0: // most ranks leave while no rank is inside
		return nil
	case st.gone >= 0:
		answer = post{kind: kindGone, body: putGone(st.gone, st.ranks[st.gone].state)}
	case st.entered < len(st.ranks):
		return nil
	}
	var out []post
	for r := range st.ranks {
		if st.ranks[r].inFence {
			st.ranks[r].inFence = false
			answer.to = r
			out = append(out, answer)
		}
	}
	st.entered = 0
	return out
}

// end aborts the job. Only the first rank that does so is named.
func (st *serverState) end(rank, code int, why string) []post {
	if st.abort != nil {
		return nil
	}
	st.abort = &RankError{Rank: rank, Code: exitCode(code), Why: "aborted the job: " + why}
	var out []post
	for r := range st.ranks {
		if st.ranks[r].state == rankJoined {
			out = append(out, st.aborted(r))
		}
	}
	return out
}

func (st *serverState) aborted(to int) post {
	return post{to, kindAborted, putAborted(st.abort.Rank, st.abort.Code, st.abort.Why)}
}
