package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
)

const namePMI1 = "pmi1"

// pmi1 implements PMI-1: lines of NAME=VALUE pairs separated by blanks, one answer to each.
type pmi1 struct {
	*pmiConn
	r     *bufio.Reader
	space string // the name of the key-value space
	limit int
}

var _ kvs = (*pmi1)(nil)

// A line of the reference implementation, to which all servers are written.
const maxLine1 = 1024

// parse1 reads a line, without its end, into its fields.
func parse1(line string) (message, error) {
	m := message{}
	for word := range strings.FieldsSeq(line) {
		// A message for humans may contain several words; those have no '='.
		if name, value, ok := strings.Cut(word, "="); ok && name != "" {
			if _, twice := m[name]; twice {
				return nil, errFrame
			}
			m[name] = value
		}
	}
	if m["cmd"] == "" {
		return nil, errFrame
	}
	return m, nil
}

func (p *pmi1) read() (message, error) {
	line, err := p.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		err = errFrame
	}
	if err != nil {
		return nil, err
	}
	return parse1(string(line[:len(line)-1]))
}

func (p *pmi1) watch(lost func(error)) { p.pmiConn.watch(p.read, lost) }

// receive returns the next line, which must be this command.
func (p *pmi1) receive(cmd string) (message, error) {
	m, err := p.next(p.read)
	if err == nil && m["cmd"] != cmd {
		// There is nothing to go on from.
		err = gone(fmt.Errorf("answer %q where %q belongs: %w", plain(m["cmd"]), cmd, errFrame))
	}
	return m, err
}

func (p *pmi1) ask(line, cmd string) (message, error) {
	if err := p.send(line + "\n"); err != nil {
		return nil, err
	}
	m, err := p.receive(cmd)
	if err == nil && m["rc"] != "" && m["rc"] != "0" {
		err = refused(strings.TrimPrefix(strings.Fields(line)[0], "cmd="), m)
	}
	return m, err
}

func findPMI1(ctx context.Context, env environ) (*Client, error) {
	c, err := openPMI(ctx, env)
	if err != nil {
		return nil, err
	}
	p := &pmi1{pmiConn: c, r: bufio.NewReaderSize(c, 4*maxLine1)}
	var rank, size int
	err = c.within(ctx, func() (err error) {
		rank, size, err = p.init(env)
		return err
	})
	if err != nil {
		c.hangUp()
		return nil, err
	}
	return joinKV(ctx, namePMI1, rank, size, p)
}

// init identifies this process, and receives its rank and the size of the job.
func (p *pmi1) init(env environ) (rank, size int, err error) {
	if env(envPMIFD) == "" {
		rank, size, err = p.introduce(env(envPMIID))
	} else if size, err = number(env, envPMISize, 1, MaxSize); err == nil {
		rank, err = number(env, envPMIRank, 0, size-1)
	}
	if err == nil {
		err = checkPlace(rank, size)
	}
	if err != nil {
		return 0, 0, err
	}
	if _, err := p.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init"); err != nil {
		return 0, 0, err
	}
	maxes, err := p.ask("cmd=get_maxes", "maxes")
	if err != nil {
		return 0, 0, err
	}
	name, err := p.ask("cmd=get_my_kvsname", "my_kvsname")
	if err != nil {
		return 0, 0, err
	}
	return rank, size, p.setLimits(maxes, name["kvsname"])
}

func (p *pmi1) setLimits(maxes message, space string) error {
	value, ok := field(maxes, "vallen_max")
	key, ok2 := field(maxes, "keylen_max")
	if !ok || !ok2 || space == "" || len(space) > 512 {
		return gone(errFrame)
	}
	// The limits count the zero of a C string, and a line has its own.
	const longest = len("cmd=put kvsname= key= value=\n") + 32
	p.space, p.limit = space, min(value-1, maxLine1-1-longest-len(space))
	if key <= len(partKey(keyExchange(1e6), MaxSize, MaxCard)) || p.limit < 32 {
		return fmt.Errorf("the launcher takes keys of %d and values of %d bytes, which is too little: %w", key, value, ErrInvalid)
	}
	return nil
}

// introduce identifies a process that connects by port: an inherited descriptor would have identified it.
func (p *pmi1) introduce(id string) (rank, size int, err error) {
	if id == "" || strings.ContainsAny(id, " =\n") {
		return 0, 0, fmt.Errorf("%s goes with %s: %w", envPMIPort, envPMIID, ErrInvalid)
	}
	if _, err := p.ask("cmd=initack pmiid="+id, "initack"); err != nil {
		return 0, 0, err
	}
	for _, set := range []struct {
		name string
		to   *int
	}{{"size", &size}, {"rank", &rank}, {"debug", new(int)}} {
		m, err := p.receive("set")
		if err != nil {
			return 0, 0, err
		}
		n, ok := field(m, set.name)
		if !ok {
			return 0, 0, gone(errFrame)
		}
		*set.to = n
	}
	return rank, size, nil
}

func (p *pmi1) maxValue() int { return p.limit }

func (p *pmi1) put(key, value string) error {
	_, err := p.ask("cmd=put kvsname="+p.space+" key="+key+" value="+value, "put_result")
	return err
}

func (p *pmi1) get(_ int, key string) (string, error) {
	m, err := p.ask("cmd=get kvsname="+p.space+" key="+key, "get_result")
	switch {
	case errors.Is(err, ErrLauncher):
		return "", err
	case err != nil:
		return "", nil
	}
	return m["value"], nil
}

func (p *pmi1) oneHost(size int) (bool, error) {
	mapping, err := p.get(0, mappingKey)
	return err == nil && oneNode(mapping, size), err
}

func (p *pmi1) fence() error {
	_, err := p.ask("cmd=barrier_in", "barrier_out")
	return err
}

func (p *pmi1) abort(code int, _ string) {
	p.send(fmt.Sprintf("cmd=abort exitcode=%d\n", code))
}

func (p *pmi1) close() error {
	_, err := p.ask("cmd=finalize", "finalize_ack")
	return err
}
