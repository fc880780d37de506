//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/handshake"
)

var fuzzSecret = bytes.Repeat([]byte{7}, SecretSize)

// stream is the input from an unauthenticated peer; the output to it is dropped.
type stream struct{ *bytes.Reader }

func (stream) Write(b []byte) (int, error) { return len(b), nil }

// A connection without proof of the secret is refused, whatever it sends; claims and welcomes arrive unchanged or not
// at all.
func FuzzHandshake(f *testing.F) {
	h := hello{rank: 1, size: 4}
	f.Add([]byte(nil))
	f.Add([]byte("ByHs\x01\x01\x00\x00"))
	f.Add(h.put())
	for st := statusOK; st <= statusTaken; st++ {
		f.Add(putWelcome(st))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, claim, err := handshake.Accept(stream{bytes.NewReader(b)}, aKey(fuzzSecret).Find, &frameConfig); err == nil {
			t.Errorf("accepted %x with claim %x", b, claim)
		}
		if in, err := parseHello(b); err == nil && !bytes.Equal(in.put(), b) {
			t.Errorf("accepted claim %x", b)
		}
		if err := h.parseWelcome(b); err == nil && !bytes.Equal(b, putWelcome(statusOK)) {
			t.Errorf("welcomed by %x", b)
		}
	})
}

// For any input of ranks, the counts of the server state are correct, and a client understands every answer.
func FuzzServerState(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x22, 0x23, 0x31, 0x50}, []byte("card"))
	f.Add([]byte{0, 1, 2, 3, 0x10, 0x20, 0x81, 0x11, 0x21}, putLookup(2))
	f.Add([]byte{0, 1, 2, 3, 0x70, 0x71, 0x72, 0x73, 0x10, 0x11}, []byte("\x01word"))
	f.Add([]byte{0, 1, 2, 3, 0x70, 0x71, 0x82, 0x73}, []byte("\x01word"))
	f.Add([]byte{0, 1, 0x40, 2, 3}, putRankError(&RankError{1, 4, "why"}))
	f.Add([]byte{0, 1, 2, 3, 0x70, 0x71, 0x72, 0x73, 0x70, 0x52, 0x71}, []byte("\x02data"))
	f.Add([]byte{0, 1, 2, 0x70, 0x83, 0x71}, []byte("\x02data"))
	f.Add([]byte{0, 1, 2, 3, 0x10, 0x20, 0x71, 0x82, 0x60, 0x61}, []byte("\x02data"))
	f.Fuzz(func(t *testing.T, script, body []byte) {
		const size = 4
		st := newServerState(size)
		for _, op := range script {
			r := int(op & 15)
			if r >= size {
				continue
			}
			var posts []post
			switch k := kind(op >> 4); {
			case k == 0:
				_, posts = st.join(&hello{rank: uint32(r), size: size})
			case k == 8:
				posts = st.leave(r, rankDied, "died")
			case k == kindFence:
				posts, _ = st.handle(r, k, []byte{byte(fencePlain)})
			case k == 7:
				posts, _ = st.handle(r, kindFence, bytes.Clone(body))
			case k == kindBye || k == kindWatch:
				posts, _ = st.handle(r, k, nil)
			default:
				posts, _ = st.handle(r, k, bytes.Clone(body))
			}
			checkState(t, st, posts)
		}
	})
}

func checkState(t *testing.T, st *serverState, posts []post) {
	t.Helper()
	live, entered := 0, 0
	clients := make([]*embedded, len(st.ranks))
	for r, m := range st.ranks {
		if m.state == rankJoined {
			live++
		}
		if m.inFence {
			entered++
		}
		if !m.inFence && m.data != nil || len(m.data) > MaxCard {
			t.Fatalf("%d bytes are kept for rank %d", len(m.data), r)
		}
		clients[r] = &embedded{hello: hello{size: uint32(len(st.ranks))}, fenced: newReply(), how: st.how, exchanged: m.exchanged, onEnd: func(End) {}}
	}
	if live != st.live || entered != st.entered || entered == len(st.ranks) || entered > 0 && st.gone != nil {
		t.Fatalf("%d live, %d in the fence, %v gone; the state has %d and %d", live, entered, st.gone, st.live, st.entered)
	}
	for _, p := range posts {
		e := clients[p.to]
		if p.kind == kindCard {
			e.lookups = []*reply{newReply()}
		}
		var rank *RankError
		if err := e.handle(p.kind, p.body); err != nil && !errors.As(err, &rank) {
			t.Fatalf("answer %d %x to rank %d: %v", p.kind, p.body, p.to, err)
		}
	}
	for r, e := range clients {
		if len(e.given) != 0 {
			t.Fatalf("rank %d gets data of a fence that is not complete", r)
		}
	}
}

// A client accepts or drops any messages of an authenticated rendezvous.
func FuzzAnswer(f *testing.F) {
	const plain, agree, exchange = uint8(fencePlain), uint8(fenceAgree), uint8(fenceExchange)
	f.Add(plain, uint8(kindFenced), []byte(nil))
	f.Add(plain, uint8(kindGone), putRankError(&RankError{Rank: 3, Why: "died"}))
	f.Add(exchange, uint8(kindGone), putRankError(&RankError{Rank: 3, Why: "left"}))
	f.Add(plain, uint8(kindGone), putRankError(&RankError{1, 2, "why"}))
	f.Add(plain, uint8(kindCard), []byte("card"))
	f.Add(plain, uint8(kindCard), []byte(nil))
	f.Add(agree, uint8(kindGiven), []byte{1})
	f.Add(agree, uint8(kindGiven), []byte("two"))
	f.Add(exchange, uint8(kindGiven), []byte("data"))
	f.Add(plain, uint8(kindGiven), []byte(nil))
	f.Add(plain, uint8(kindEnded), putEnds([]End{{3, Exited, 3}}))
	f.Fuzz(func(t *testing.T, how, k uint8, body []byte) {
		const size = 4
		card, fenced := newReply(), newReply()
		e := &embedded{hello: hello{size: size}, fenced: fenced, how: fenceKind(how) % 3, lookups: []*reply{card}, onEnd: func(End) {}}
		e.exchanged = e.how == fenceExchange
		for range size {
			err := e.handle(kind(k), bytes.Clone(body))
			var rank *RankError
			if errors.As(err, &rank) && (rank.Code == 0 && !e.exchanged || rank.Code > 255 || strings.ContainsFunc(rank.Why, func(c rune) bool { return c < ' ' || c > '~' })) {
				t.Errorf("the job is lost: %+v", rank)
			}
		}
		if len(e.given) > e.how.answers(size) {
			t.Errorf("%d answers to a fence of kind %d", len(e.given), e.how)
		}
		if card.finished() && card.err == nil && len(card.values[0]) == 0 {
			t.Error("empty card")
		}
		if !fenced.finished() {
			_ = e.handle(kindFenced, nil)
		}
		if fenced.finished() && fenced.err == nil && (len(fenced.values) != e.how.answers(size) || e.how == fenceAgree && len(fenced.values[0]) != 1) {
			t.Errorf("a fence of kind %d is complete with %q", e.how, fenced.values)
		}
	})
}

// scripted is a process manager that sends these bytes whatever it receives.
func scripted(b []byte) *pmiConn {
	return &pmiConn{Conn: &scriptConn{Reader: bytes.NewReader(b)}}
}

type scriptConn struct {
	fakeConn
	io.Reader
}

func (c *scriptConn) Read(b []byte) (int, error)       { return c.Reader.Read(b) }
func (c *scriptConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c *scriptConn) Close() error                     { return nil }
func (c *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// useKV makes every request of a launcher, and checks that only valid answers are accepted.
func useKV(t *testing.T, kv kvs, rank, size int) {
	if rank < 0 || rank >= size {
		t.Errorf("rank %d of %d", rank, size)
	}
	if n := kv.maxValue(); n < 32 || n > math.MaxInt32 {
		t.Errorf("values of %d bytes", n)
	}
	spreadSecret(kv, 1)
	agree(kv, rank, size, []byte("word"))
	if v, err := kv.get(0, partKey(keyCard, 0, 0)); err == nil {
		joinValue(v, func(p int) (string, error) { return kv.get(0, partKey(keyCard, 0, p)) })
	}
	kv.fence()
	kv.close()
}

// Whatever a PMI-1 server answers, a client does not panic, and accepts only values within their bounds.
func FuzzPMI1(f *testing.F) {
	server := &fakePMI{values: map[string]string{keySecret: b64.EncodeToString(fuzzSecret), partKey(keyCard, 0, 0): "2,4,Y2FyZA", agreeKey(0): "d29yZA"}, size: 2, vallen: 1024, mapping: "(vector,(0,1,2))"}
	var whole string
	for _, cmd := range []string{"cmd=initack", "cmd=init pmi_version=1", "cmd=get_maxes", "cmd=get_my_kvsname", "cmd=barrier_in",
		"cmd=get key=" + keySecret, "cmd=get key=" + mappingKey, "cmd=put", "cmd=barrier_in", "cmd=barrier_in",
		"cmd=get key=" + agreeKey(0), "cmd=get key=" + partKey(keyCard, 0, 0), "cmd=barrier_in", "cmd=finalize"} {
		m, err := parse1(cmd)
		if err != nil {
			f.Fatal(err)
		}
		whole += server.answer1(1, m)
	}
	f.Add([]byte(whole), true)
	f.Add([]byte(whole[strings.Index(whole, "cmd=response"):]), false)
	f.Add([]byte("cmd=initack rc=0\ncmd=set size=99999999999999999999\n"), true)
	f.Add([]byte("cmd=response_to_init rc=-1\n"), false)
	f.Add([]byte(strings.Repeat("x", 5000)), false)
	f.Fuzz(func(t *testing.T, b []byte, port bool) {
		c := scripted(b)
		p := &pmi1{pmiConn: c, r: bufio.NewReaderSize(c, 4*maxLine1)}
		env := envOf(envPMIFD, "3", envPMIRank, "1", envPMISize, "2")
		if port {
			env = envOf(envPMIPort, "x:1", envPMIID, "1")
		}
		if rank, size, err := p.init(env); err == nil {
			useKV(t, p, rank, size)
		}
	})
}

// Whatever a PMI-2 server answers, a client does not panic, and accepts only values within their bounds.
func FuzzPMI2(f *testing.F) {
	server := &fakePMI{values: map[string]string{keySecret: b64.EncodeToString(fuzzSecret), partKey(keyCard, 0, 0): "2,4,Y2FyZA", agreeKey(0): "d29yZA"}, size: 2, mapping: "(vector,(0,1,2))"}
	whole := "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n"
	for _, m := range []message{{"cmd": "fullinit"}, {"cmd": "job-getid"}, {"cmd": "kvs-fence"}, {"cmd": "kvs-get", "key": keySecret},
		{"cmd": "info-getjobattr", "key": mappingKey}, {"cmd": "kvs-put"}, {"cmd": "kvs-fence"}, {"cmd": "kvs-fence"}, {"cmd": "kvs-get", "key": agreeKey(0)},
		{"cmd": "kvs-get", "key": partKey(keyCard, 0, 0)}, {"cmd": "kvs-fence"}, {"cmd": "finalize"}} {
		whole += server.answer2(1, m)
	}
	f.Add([]byte(whole), false)
	f.Add([]byte(whole), true)
	f.Add([]byte(whole[:90]), false)
	f.Add([]byte("cmd=response_to_init pmi_version=1 rc=0\n"), false)
	f.Add([]byte("cmd=response_to_init pmi_version=2 rc=0\n999999"), false)
	f.Add([]byte("cmd=response_to_init pmi_version=2 rc=0\n    13cmd=x;;=;;rc;;"), false)
	f.Fuzz(func(t *testing.T, b []byte, hydra bool) {
		c := scripted(b)
		p := &pmi2{pmiConn: c, r: bufio.NewReaderSize(c, 4096), hydra: hydra}
		if err := p.init(envOf(envPMIRank, "1")); err == nil {
			useKV(t, p, p.rank, p.size)
		}
	})
}

// A PMI-2 message that parses is encoded to the same pairs.
func FuzzPMI2Message(f *testing.F) {
	f.Add("cmd=kvs-get-response;found=TRUE;value=a;;b;rc=0;")
	f.Add("cmd=;")
	f.Add("cmd=x;y;z=1;")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parse2(s)
		if err != nil {
			return
		}
		pairs := []string{"cmd", m["cmd"]}
		for k, v := range m {
			if k != "cmd" {
				pairs = append(pairs, k, v)
			}
		}
		again, err := read2(strings.NewReader(put2(pairs...)))
		if len(put2(pairs...)) <= maxPMI && (err != nil || len(again) != len(m)) {
			t.Errorf("%q is %q, and then %q, %v", s, m, again, err)
		}
	})
}

// Data that is joined from its pieces has a length within the limit, and a card is not empty.
func FuzzCard(f *testing.F) {
	f.Add("2,4,Y2FyZA", "")
	f.Add("2,4,Y2Fy", "ZA")
	f.Add("1,1,1,", "x")
	f.Add("2,65536,", "A")
	f.Add("2,0,", "")
	f.Fuzz(func(t *testing.T, first, more string) {
		data, err := joinValue(first, func(int) (string, error) { return more, nil })
		if err == nil && len(data) > MaxCard {
			t.Errorf("data of %d bytes", len(data))
		}
		c := newKeyed("test", 0, 1, alone{partKey(keyCard, 0, 0): first, partKey(keyCard, 0, 1): more}).client
		if card, err := c.Lookup(t.Context(), 0); err == nil && (len(card) < 1 || len(card) > MaxCard) {
			t.Errorf("card of %d bytes", len(card))
		}
	})
}

// Of all process mappings, only those with all ranks on one node are taken for one.
func FuzzMapping(f *testing.F) {
	for _, m := range mappings {
		f.Add(m.text, m.size)
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		if size < 1 || size > 1<<12 { // placed one by one
			return
		}
		if oneNode(text, size) != slowOneNode(text, size) {
			t.Errorf("%q of %d ranks: %v", text, size, oneNode(text, size))
		}
	})
}
