//go:build linux

package workload

import (
	"errors"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// Kinds of control messages: the first byte, which also keeps them from being empty.
const (
	controlPlain  byte = iota // a request, an acknowledgement, a barrier: whichever is due
	controlUpdate             // of rdv data: the message's number and the update
	controlOver               // no updates follow in this round
)

// controlLink carries the measurement's own messages on the small track: requests to send (rdv data), their updates,
// acknowledgements, barriers. It never blocks.
type controlLink struct {
	inst      driver.Instance
	bs        driver.BufferSender
	br        driver.BufferReceiver
	rw        driver.RecvWaiter
	out, in   *slot
	sending   bool
	receiving bool
	updates   bool // are possible
	kind      byte // of what was received last
}

func (m *controlLink) init(l *link) {
	*m = controlLink{inst: l.si, updates: l.lcaps.RdvUpdate}
	if l.scaps.BufferSend {
		m.bs, _ = l.si.(driver.BufferSender)
	}
	if l.scaps.BufferRecv {
		m.br, _ = l.si.(driver.BufferReceiver)
	}
	if l.scaps.RecvWait {
		m.rw, _ = l.si.(driver.RecvWaiter)
	}
	n := max(64, controlSize(&l.lcaps))
	both := slots([][]byte{make([]byte, n), make([]byte, n)})
	m.out, m.in = &both[0], &both[1]
}

// controlSize returns the size of the longest control message in bytes.
func controlSize(large *driver.Capabilities) int {
	n := 1 + large.RdvSize
	if large.RdvUpdate {
		n += updateHead
	}
	return n
}

// trySend sends b behind its kind. It returns false if that is not possible now.
func (m *controlLink) trySend(kind byte, b []byte) (bool, error) {
	if ok, err := m.flush(); !ok || err != nil {
		return false, err
	}
	err := m.write(kind, b)
	if err != nil {
		return false, unlessBusy(err)
	}
	m.sending = true
	_, err = m.flush()
	return true, err
}

func (m *controlLink) write(kind byte, b []byte) error {
	p, to := &m.out.p, m.out.buf
	if m.bs != nil {
		if err := m.bs.SendBufGet(p); err != nil {
			return err
		}
		to = p.Buf
	}
	to[0] = kind
	n := 1 + copy(to[1:], b)
	if m.bs != nil {
		return m.bs.SendBufPost(p, n)
	}
	p.IOV[0] = to[:n]
	return m.inst.SendPost(p)
}

// unlessBusy returns nil for ErrBusy, and other errors unchanged.
func unlessBusy(err error) error {
	if err == driver.ErrBusy {
		return nil
	}
	return err
}

// flush reports whether no control message is being sent.
func (m *controlLink) flush() (bool, error) {
	if m.sending {
		done, err := m.inst.SendPoll(&m.out.p)
		if err != nil {
			return false, err
		}
		m.sending = !done
	}
	return !m.sending, nil
}

// tryRecv receives a message into dst. It is called only when one is due: a
// receive that is posted stays posted.
func (m *controlLink) tryRecv(dst []byte) (n int, ok bool, err error) {
	if m.br == nil && !m.receiving {
		if err := m.inst.RecvPost(&m.in.p); err != nil {
			return 0, false, unlessBusy(err)
		}
		m.receiving = true
	}
	done, err := m.inst.RecvPoll(&m.in.p)
	if err != nil || !done {
		return 0, false, err
	}
	return m.take(dst)
}

var errUnexpected = errors.New("unexpected control message from the other side")

func (m *controlLink) take(dst []byte) (n int, ok bool, err error) {
	m.receiving = false
	p, b := &m.in.p, m.in.buf
	if m.br != nil {
		b = p.Buf
	}
	if p.N < 1 || p.N > len(b) || p.N-1 > len(dst) {
		return 0, false, errUnexpected
	}
	if m.kind = b[0]; m.kind != controlPlain && (!m.updates || m.kind > controlOver) {
		return 0, false, errUnexpected
	}
	n = copy(dst, b[1:p.N])
	if m.br != nil {
		err = m.br.RecvBufRelease(p)
	}
	return n, true, err
}

// await receives a plain control message. It polls or sleeps.
func (m *controlLink) await(j *bench.Round, dst []byte) (n int, err error) {
	sp := j.Spinner()
	err = sp.Until(func() (ok bool, err error) {
		n, ok, err = m.tryRecv(dst)
		if ok || err != nil || !j.Blocking() || m.rw == nil {
			return ok, err
		}
		if err := m.rw.RecvWait(j.Stop.Ctx, &m.in.p); err != nil {
			return false, j.Stop.Why(err)
		}
		n, ok, err = m.take(dst)
		return ok, err
	})
	if err == nil && m.kind != controlPlain {
		err = errUnexpected
	}
	return n, err
}

// post sends, polling until there is room and until it is done.
func (m *controlLink) post(j *bench.Round, b []byte) error {
	sp := j.Spinner()
	if err := sp.Until(func() (bool, error) { return m.trySend(controlPlain, b) }); err != nil {
		return err
	}
	return sp.Until(m.flush)
}
