//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// fakePMI is a process manager in memory that answers each write at once, and
// every fence as if all had entered. Cards of ranks that have put none are like
// those that were.
type fakePMI struct {
	values   map[string]string
	size     int
	vallen   int
	mapping  string // the process mapping, if the fake has one
	sameCard string // the value of every card key that no rank has put
}

// rank returns the connection of a rank.
func (f *fakePMI) rank(r int) net.Conn {
	c := &fakeConn{server: f, rank: r}
	c.more = sync.NewCond(&c.mu)
	return c
}

type fakeConn struct {
	net.Conn // nil: other methods are not called
	server   *fakePMI
	rank     int
	second   bool // PMI-2, after its first line

	mu     sync.Mutex
	more   *sync.Cond
	out    bytes.Buffer
	closed bool
}

func (c *fakeConn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.out.Len() == 0 {
		if c.closed {
			return 0, io.EOF
		}
		c.more.Wait()
	}
	return c.out.Read(b)
}

func (c *fakeConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.second {
		m, err := read2(bytes.NewReader(b))
		if err != nil {
			return 0, err
		}
		c.out.WriteString(c.server.answer2(c.rank, m))
	} else {
		m, err := parse1(string(b))
		if err != nil {
			return 0, err
		}
		c.second = m["pmi_version"] == "2"
		c.out.WriteString(c.server.answer1(c.rank, m))
	}
	c.more.Broadcast()
	return len(b), nil
}

func (c *fakeConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.more.Broadcast()
	return nil
}

func (c *fakeConn) SetDeadline(time.Time) error      { return nil }
func (c *fakeConn) SetReadDeadline(time.Time) error  { return nil }
func (c *fakeConn) SetWriteDeadline(time.Time) error { return nil }

func (f *fakePMI) get(key string) (string, bool) {
	v, ok := f.values[key]
	if key == mappingKey && f.mapping != "" {
		return f.mapping, true
	}
	if !ok && f.sameCard != "" && strings.HasSuffix(key, "-0") {
		return f.sameCard, true
	}
	return v, ok
}

func (f *fakePMI) put(key, value string) {
	if f.sameCard == "" || key == keySecret {
		f.values[key] = value
	}
}

func (f *fakePMI) answer1(rank int, m message) string {
	switch m["cmd"] {
	case "initack":
		return fmt.Sprintf("cmd=initack rc=0\ncmd=set size=%d\ncmd=set rank=%d\ncmd=set debug=0\n", f.size, rank)
	case "init":
		return fmt.Sprintf("cmd=response_to_init pmi_version=%s pmi_subversion=0 rc=0\n", m["pmi_version"])
	case "get_maxes":
		return fmt.Sprintf("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=%d\n", f.vallen)
	case "get_my_kvsname":
		return "cmd=my_kvsname kvsname=kvs_4711_0\n"
	case "put":
		f.put(m["key"], m["value"])
		return "cmd=put_result rc=0 msg=success\n"
	case "get":
		if v, ok := f.get(m["key"]); ok {
			return "cmd=get_result rc=0 msg=success value=" + v + "\n"
		}
		return "cmd=get_result rc=-1 msg=key_not_found value=unknown\n"
	case "barrier_in":
		return "cmd=barrier_out rc=0\n"
	case "finalize":
		return "cmd=finalize_ack rc=0\n"
	}
	return ""
}

func (f *fakePMI) answer2(rank int, m message) string {
	answer := func(pairs ...string) string {
		return put2(append([]string{"cmd", m["cmd"] + "-response"}, pairs...)...)
	}
	switch m["cmd"] {
	case "fullinit":
		return answer("pmi-version", "2", "rank", itoa(rank), "size", itoa(f.size), "rc", "0")
	case "job-getid":
		return answer("jobid", "job;1", "rc", "0")
	case "kvs-put":
		f.put(m["key"], m["value"])
		return answer("rc", "0")
	case "kvs-get", "info-getjobattr":
		if v, ok := f.get(m["key"]); ok {
			return answer("found", "TRUE", "value", v, "rc", "0")
		}
		return answer("found", "FALSE", "rc", "0")
	}
	return answer("rc", "0")
}
