package launch

import (
	"bytes"
	"encoding/binary"
)

// rankState is the state of a rank at the rendezvous.
type rankState uint8

const (
	rankAbsent rankState = iota
	rankJoined
	rankLeft // in order
	rankDied
	rankLate // rank 0 does not wait for it any more
)

// post is a frame to be sent to a rank.
type post struct {
	to   int
	kind kind
	body []byte
}

// serverState is the rendezvous without its sockets: it takes requests of ranks and returns posts, in the order in
// which a rank gets them.
type serverState struct {
	ranks   []member
	live    int        // joined
	entered int        // ranks inside the fence
	how     fenceKind  // of the last rank that entered, and so of all of these
	gone    *RankError // the first rank that left or died, or nil; without a code, which would be that of an abort
	abort   *RankError
	ends    []End // of ranks, in the order in which they became known
}

type member struct {
	state     rankState
	card      []byte
	inFence   bool
	data      []byte // of the fence
	exchanged bool   // the rank is notified when another is gone
	ended     bool   // its end is in ends
	status    bool   // its exit status will be known
	watches   bool   // ends are reported to it
	reported  int    // how many of ends were reported to it
}

func newServerState(size int) *serverState {
	return &serverState{ranks: make([]member, size)}
}

// join admits an authenticated rank, or returns why not.
func (st *serverState) join(h *hello) (status, []post) {
	switch {
	case int64(h.size) != int64(len(st.ranks)):
		return statusSize, nil
	case int64(h.rank) >= int64(len(st.ranks)):
		return statusRank, nil
	}
	switch m := &st.ranks[h.rank]; m.state {
	case rankAbsent:
		m.state = rankJoined
	case rankLate:
		return statusLate, nil
	default:
		return statusTaken, nil
	}
	st.live++
	if st.abort != nil {
		return statusOK, []post{{int(h.rank), kindGone, putRankError(st.abort)}}
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
	case kindPublish:
		if m.card != nil || len(body) < 1 || len(body) > MaxCard {
			return nil, errFrame
		}
		m.card = body
		return nil, nil
	case kindFence:
		how, data, err := parseFence(body)
		switch {
		case err != nil || m.inFence || how == fencePlain && m.card == nil:
			return nil, errFrame
		case st.entered > 0 && how != st.how:
			return st.end(&RankError{Rank: rank, Code: 1, Why: "it and another rank make different calls of Fence, Agree and Exchange"}), nil
		}
		m.inFence, m.data, st.how = true, data, how
		m.exchanged = m.exchanged || how == fenceExchange
		if st.gone != nil {
			return st.failFence(rank), nil
		}
		st.entered++
		return st.completeFence(), nil
	case kindWatch:
		if m.watches || len(body) != 0 {
			return nil, errFrame
		}
		m.watches = true
		return st.reportEnds(), nil
	case kindLookup:
		if len(body) != 4 || int64(binary.BigEndian.Uint32(body)) >= int64(len(st.ranks)) {
			return nil, errFrame
		}
		return []post{{rank, kindCard, st.ranks[binary.BigEndian.Uint32(body)].card}}, nil
	case kindAbort:
		e, err := parseRankError(body)
		if err != nil || e.Rank != rank || e.Code == 0 {
			return nil, errFrame
		}
		return st.end(e), nil
	case kindBye:
		if len(body) != 0 {
			return nil, errFrame
		}
		st.addEnd(End{Rank: rank, How: Left})
		return st.leave(rank, rankLeft, "left"), nil
	}
	return nil, errFrame
}

// leave records that a rank, joined or not, will send nothing more; why is what the others are told.
func (st *serverState) leave(rank int, f rankState, why string) []post {
	m := &st.ranks[rank]
	if m.state >= rankLeft {
		return nil
	}
	if m.state == rankJoined {
		st.live--
	}
	m.state, m.data = f, nil
	if st.gone != nil {
		return nil
	}
	st.gone, st.entered = &RankError{Rank: rank, Why: why}, 0
	var out []post
	for r := range st.ranks {
		out = append(out, st.failFence(r)...)
	}
	return out
}

// completeFence answers all ranks once all are inside the fence.
func (st *serverState) completeFence() (out []post) {
	if st.entered < len(st.ranks) {
		return nil
	}
	st.entered = 0
	same := byte(1) // of an agreement
	for r := 1; r < len(st.ranks) && st.how == fenceAgree; r++ {
		if !bytes.Equal(st.ranks[r].data, st.ranks[0].data) {
			same = 0
		}
	}
	for r := range st.ranks {
		switch st.how {
		case fenceAgree:
			out = append(out, post{r, kindGiven, []byte{same}})
		case fenceExchange:
			for _, m := range st.ranks {
				out = append(out, post{r, kindGiven, m.data})
			}
		}
		out = append(out, post{r, kindFenced, nil})
	}
	for r := range st.ranks {
		st.ranks[r].inFence, st.ranks[r].data = false, nil
	}
	return out
}

// failFence notifies a rank inside the fence, or that has exchanged, which rank is gone. Ranks that compare words get
// the answer that these differ.
func (st *serverState) failFence(r int) []post {
	m := &st.ranks[r]
	in := m.inFence
	m.inFence, m.data = false, nil
	switch {
	case m.state != rankJoined || !in && !m.exchanged:
		return nil
	case st.how == fenceAgree && !m.exchanged:
		return []post{{r, kindGiven, []byte{0}}, {r, kindFenced, nil}}
	}
	return []post{{r, kindGone, putRankError(st.gone)}}
}

// end aborts the job. Only the first rank that does so is named.
func (st *serverState) end(e *RankError) []post {
	if st.abort != nil {
		return nil
	}
	e.Why = "aborted the job: " + e.Why
	st.abort = e
	var out []post
	for r := range st.ranks {
		if st.ranks[r].state == rankJoined {
			out = append(out, post{r, kindGone, putRankError(e)})
		}
	}
	return out
}
