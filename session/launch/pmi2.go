package launch

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const namePMI2 = "pmi2"

// pmi2 implements PMI-2: a length of six characters, then NAME=VALUE; pairs in which a doubled ';' means one.
type pmi2 struct {
	*pmiConn
	r          *bufio.Reader
	job        string
	rank, size int
	hydra      bool
}

var _ kvs = (*pmi2)(nil)

const (
	lengthSize = 6
	// A server's limit is 1024 with the zero of a C string; no message asks for it. Hydra 4.2 ends by an assertion when
	// its whole answer, the words around the value included, is that long.
	maxValue2 = 900
)

// put2 makes a message of names and values.
func put2(pairs ...string) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		b.WriteString(pairs[i] + "=" + strings.ReplaceAll(pairs[i+1], ";", ";;") + ";")
	}
	return fmt.Sprintf("%*d%s", lengthSize, b.Len(), b.String())
}

// parse2 reads a message, without its length, into its fields.
func parse2(s string) (message, error) {
	m := message{}
	for s != "" {
		name, rest, ok := strings.Cut(s, "=")
		if !ok || name == "" || strings.Contains(name, ";") {
			return nil, errFrame
		}
		var value strings.Builder
		for {
			before, after, ok := strings.Cut(rest, ";")
			if !ok {
				return nil, errFrame
			}
			value.WriteString(before)
			if rest = after; !strings.HasPrefix(rest, ";") {
				break
			}
			value.WriteByte(';')
			rest = rest[1:]
		}
		if _, twice := m[name]; twice {
			return nil, errFrame
		}
		m[name] = value.String()
		s = rest
	}
	if m["cmd"] == "" {
		return nil, errFrame
	}
	return m, nil
}

// read2 reads one message.
func read2(r io.Reader) (message, error) {
	var head [lengthSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(strings.Trim(string(head[:]), " "), 10, 32)
	if err != nil || n < 1 || n > maxPMI {
		return nil, errFrame
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, noEOF(err)
	}
	return parse2(string(b))
}

func (p *pmi2) read() (message, error) { return read2(p.r) }

func (p *pmi2) watch(lost func(error)) { p.pmiConn.watch(p.read, lost) }

func (p *pmi2) ask(cmd string, pairs ...string) (message, error) {
	if err := p.send(put2(append([]string{"cmd", cmd}, pairs...)...)); err != nil {
		return nil, err
	}
	m, err := p.next(p.read)
	if err == nil && m["cmd"] != cmd+"-response" {
		err = gone(fmt.Errorf("answer %q to %q: %w", plain(m["cmd"]), cmd, errFrame))
	}
	if err != nil {
		return nil, err
	}
	if m["rc"] != "0" {
		return m, refused(cmd, m)
	}
	return m, nil
}

// seenPMI2 returns the variable that shows a launcher with PMI-2. The variables do not name the protocol. Slurm's
// plugin is made for PMI-2; Hydra, also inside of a job of Slurm, is better tested with PMI-1.
func seenPMI2(env environ) string {
	if env(envPMIFD) == "" || env(envHydra) != "" {
		return ""
	}
	return firstOf(env, "SLURM_STEP_ID")
}

func findPMI2(ctx context.Context, env environ) (*Client, error) {
	if env(envPMIFD) == "" {
		return nil, fmt.Errorf("%s is not set: %w", envPMIFD, ErrInvalid)
	}
	c, err := openPMI(ctx, env)
	if err != nil {
		return nil, err
	}
	p := &pmi2{pmiConn: c, r: bufio.NewReaderSize(c, 4096), hydra: env(envHydra) != ""}
	if err := c.within(ctx, func() error { return p.init(env) }); err != nil {
		c.hangUp()
		return nil, err
	}
	return joinKV(ctx, namePMI2, p.rank, p.size, p)
}

func (p *pmi2) init(env environ) error {
	// The protocol is negotiated in the older one.
	old := pmi1{pmiConn: p.pmiConn, r: p.r}
	m, err := old.ask("cmd=init pmi_version=2 pmi_subversion=0", "response_to_init")
	if err != nil {
		return err
	}
	if v := m["pmi_version"]; v != "2" {
		return fmt.Errorf("the launcher speaks PMI-%s: set %s=%s: %w", plain(v), EnvLauncher, namePMI1, ErrVersion)
	}
	var pairs []string
	if id := env(envPMIJob); id != "" {
		pairs = append(pairs, "pmijobid", id)
	}
	rank, err := number(env, envPMIRank, 0, MaxSize-1)
	if err != nil {
		return err
	}
	pairs = append(pairs, "pmirank", strconv.Itoa(rank), "threaded", "FALSE")
	if m, err = p.ask("fullinit", pairs...); err != nil {
		return err
	}
	var ok, ok2 bool
	p.rank, ok = field(m, "rank")
	p.size, ok2 = field(m, "size")
	if !ok || !ok2 {
		return gone(errFrame)
	}
	if err := checkPlace(p.rank, p.size); err != nil {
		return err
	}
	if m, err = p.ask("job-getid"); err != nil {
		return err
	}
	p.job = m["jobid"]
	return nil
}

func (p *pmi2) maxValue() int { return maxValue2 }

func (p *pmi2) put(key, value string) error {
	_, err := p.ask("kvs-put", "key", key, "value", value)
	return err
}

func (p *pmi2) get(rank int, key string) (string, error) {
	m, err := p.ask("kvs-get", "jobid", p.job, "srcid", strconv.Itoa(rank), "key", key)
	switch {
	case errors.Is(err, ErrLauncher):
		return "", err
	case err != nil, !strings.EqualFold(m["found"], "true"):
		return "", nil
	}
	return m["value"], nil
}

func (p *pmi2) oneHost(size int) (bool, error) {
	m, err := p.ask("info-getjobattr", "key", mappingKey)
	if errors.Is(err, ErrLauncher) {
		return false, err
	}
	return err == nil && strings.EqualFold(m["found"], "true") && oneNode(m["value"], size), nil
}

// fence waits for all ranks. Hydra answers a fence at once. But it delays a get of a key that no rank has put until
// all ranks have fenced as often.
func (p *pmi2) fence() error {
	if _, err := p.ask("kvs-fence"); err != nil || !p.hydra {
		return err
	}
	if v, err := p.get(p.rank, "bw-nobody"); v != "" || err != nil {
		return gone(cmp.Or(err, errFrame))
	}
	return nil
}

// abort cannot transmit a code: the launcher chooses one.
func (p *pmi2) abort(code int, why string) {
	p.send(put2("cmd", "abort", "isworld", "TRUE", "msg", fmt.Sprintf("%s (exit code %d)", why, code)))
}

func (p *pmi2) close() error {
	_, err := p.ask("finalize")
	return err
}
