package launch

import (
	"encoding/binary"
	"fmt"
	"math"
)

// How is the way in which a rank has ended.
type How uint8

const (
	Left   How = iota + 1 // in order: it closed its job. The process may go on, but is no rank any more
	Exited                // its process ended with exit status Code
	Killed                // a signal of number Code killed its process
	Lost                  // the launcher has lost it and does not know how its process ended
)

// End is the end of a rank.
type End struct {
	Rank int
	How  How
	Code int // Exited: the exit status, 0 to 255; Killed: the number of the signal
}

// Err returns the end as an error. Its Code is the status that a shell shows: the exit status, or 128 plus the number
// of the signal; 0 if it is not known.
func (e End) Err() *RankError {
	switch e.How {
	case Left:
		return &RankError{Rank: e.Rank, Why: "has left the job"}
	case Exited:
		return &RankError{Rank: e.Rank, Code: e.Code, Why: fmt.Sprintf("ended with exit status %d", e.Code)}
	case Killed:
		name := signalName(e.Code)
		if name == "" {
			name = fmt.Sprintf("signal %d", e.Code)
		}
		return &RankError{Rank: e.Rank, Code: 128 + e.Code, Why: "was killed by " + name}
	}
	return &RankError{Rank: e.Rank, Why: "has died"}
}

// maxCode is the largest code of an end.
const maxCode = 255

// Ends on the wire: rank 4, how 1, code 4, for each rank.
const endSize = 9

// maxEnds is how many fit into one frame.
const maxEnds = maxBody / endSize

func putEnds(ends []End) []byte {
	b := make([]byte, 0, endSize*len(ends))
	for _, e := range ends {
		b = binary.BigEndian.AppendUint32(b, uint32(e.Rank))
		b = append(b, byte(e.How))
		b = binary.BigEndian.AppendUint32(b, uint32(e.Code))
	}
	return b
}

func parseEnds(b []byte, size int) ([]End, error) {
	if len(b) == 0 || len(b)%endSize != 0 {
		return nil, errFrame
	}
	ends := make([]End, 0, len(b)/endSize)
	for ; len(b) > 0; b = b[endSize:] {
		rank, how, code := binary.BigEndian.Uint32(b), How(b[4]), binary.BigEndian.Uint32(b[5:])
		if rank > math.MaxInt32 || int(rank) >= size || how < Left || how > Lost || code > maxCode {
			return nil, errFrame
		}
		ends = append(ends, End{int(rank), how, int(code)})
	}
	return ends, nil
}

// addEnd appends a rank's first end to the list. It returns false if the rank's end is on the list already.
func (st *serverState) addEnd(e End) bool {
	m := &st.ranks[e.Rank]
	if m.ended {
		return false
	}
	m.ended = true
	st.ends = append(st.ends, e)
	return true
}

// reportEnds sends each watcher the ends that were not reported to it: several in one frame, when many ranks end.
func (st *serverState) reportEnds() (out []post) {
	for r := range st.ranks {
		m := &st.ranks[r]
		for m.state == rankJoined && m.watches && m.reported < len(st.ends) {
			n := min(len(st.ends)-m.reported, maxEnds)
			out = append(out, post{r, kindEnded, putEnds(st.ends[m.reported : m.reported+n])})
			m.reported += n
		}
	}
	return out
}

func (e *embedded) watchEnds(f func(End)) error {
	e.mu.Lock()
	e.onEnd = f
	e.mu.Unlock()
	if !e.send(kindWatch, nil) {
		return ErrLauncher
	}
	return nil
}

// ended passes the reported ends of other ranks to onEnd.
func (e *embedded) ended(body []byte) error {
	e.mu.Lock()
	f := e.onEnd
	e.mu.Unlock()
	ends, err := parseEnds(body, int(e.size))
	if err != nil || f == nil {
		return errFrame
	}
	for _, x := range ends {
		f(x)
	}
	return nil
}
