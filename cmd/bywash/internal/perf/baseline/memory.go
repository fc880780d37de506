//go:build linux

package baseline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/internal/memfd"
)

// A lane is one direction of shared memory between the two processes. Each field has cache lines of its own, and each
// word has one writer.
type lane struct {
	full   [slots]word // of the sender: number of the piece in the slot
	taken  word        // of the receiver: pieces that it has copied out
	posted word        // of the receiver: messages for which its buffer is ready
	ready  word        // of the sender: messages in its buffer
	copied word        // of the sender: messages whose part it has written to the receiver's buffer
	data   [slots][chunk]byte
}

// The ring has that many slots of so many bytes.
const slots, chunk = 32, 8 * bench.KiB

type word struct {
	n atomic.Uint64
	_ [bench.Line - 8]byte
}

// lanes is the whole of the shared memory: from the lead to the follower, and back.
type lanes [2]lane

// memory is a bench that copies a message from one process to the other and does nothing more: no matching, no
// completion, no protection, no sleep. Its figures are what the machine allows.
type memory struct {
	s       *bench.Setup
	cma     bool
	shared  *lanes
	tx, rx  *lane
	pid     int // of the other process
	out, in []byte
	there   struct{ out, in uintptr } // the other process's buffers
	sent    uint64                    // pieces, or messages with CMA
	got     uint64
}

func openMemory(s *bench.Setup) (bench.Bench, error) {
	switch {
	case !s.Local || s.Peer != "":
		return nil, bench.Skipf("%s is local: it copies between processes of one machine; run it without --listen or HOST:PORT", s.Driver)
	case s.Device != "":
		return nil, bench.Skipf("%s has no devices: leave out --dev", s.Driver)
	}
	return &memory{s: s, cma: s.Driver == bench.CopyCMA}, nil
}

// Connect maps the file in memory that the lead has made.
func (m *memory) Connect(give bench.Give) error {
	const size = int(unsafe.Sizeof(lanes{}))
	_ = unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY, 0, 0, 0) // where Yama restricts it; EINVAL elsewhere
	fd := -1
	var err error
	if m.s.Lead {
		if fd, err = unix.MemfdCreate("bywash-perf", unix.MFD_CLOEXEC); err == nil {
			defer unix.Close(fd)
			err = memfd.Allocate(fd, int64(size))
		}
		if err != nil {
			return fmt.Errorf("%s: shared memory: %w", m.s.Driver, err)
		}
	}
	replies, err := bench.ExchangeLinks(give, []string{strconv.Itoa(os.Getpid()), strconv.Itoa(fd)})
	if err != nil {
		return err
	}
	theirs := replies[m.s.Partner()]
	if len(theirs) != 2 {
		return bench.ErrOrder
	}
	if m.pid, err = strconv.Atoi(theirs[0]); err != nil || m.pid <= 0 {
		return bench.ErrOrder
	}
	if !m.s.Lead {
		number, err := strconv.ParseUint(theirs[1], 10, 31)
		if err != nil {
			return bench.ErrOrder
		}
		if fd, err = unix.Open(fmt.Sprintf("/proc/%d/fd/%d", m.pid, number), unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("%s: open the other process's shared memory: %w", m.s.Driver, err)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Size != int64(size) {
			return bench.ErrOrder
		}
	}
	p, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("%s: mmap: %w", m.s.Driver, err)
	}
	m.shared = (*lanes)(p)
	m.tx, m.rx = &m.shared[0], &m.shared[1]
	if !m.s.Lead {
		m.tx, m.rx = m.rx, m.tx
	}
	_, err = give(nil) // the lead's descriptor is open until then
	return err
}

// Check implements bench.Bench.
func (m *memory) Check(c *bench.Case) error {
	switch {
	case c.Test != bench.Lat:
		return bench.Skipf("%s has only the test %s", m.s.Driver, bench.Lat)
	case c.Blocking():
		return bench.Skipf("%s polls: it has no way to sleep", m.s.Driver)
	}
	return nil
}

// Prepare returns the addresses of the two buffers.
func (m *memory) Prepare(c *bench.Case) ([]byte, error) {
	m.out, m.in = make([]byte, max(1, c.Size)), make([]byte, max(1, c.Size))
	b := binary.LittleEndian.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(&m.out[0]))))
	b = binary.LittleEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&m.in[0]))))
	m.out, m.in = m.out[:c.Size], m.in[:c.Size]
	return b, nil
}

// Start takes the addresses of the other process's buffers.
func (m *memory) Start(blob []byte) error {
	if len(blob) != 16 {
		return bench.ErrOrder
	}
	m.there.out = uintptr(binary.LittleEndian.Uint64(blob))
	m.there.in = uintptr(binary.LittleEndian.Uint64(blob[8:]))
	return nil
}

func (m *memory) Run(j *bench.Round) error { return j.PingPong(m.send, m.receive) }

func (m *memory) Inspect(uint64, int) error { return bench.ErrOrder }

func (m *memory) Finish() error {
	m.out, m.in = nil, nil
	return nil
}

func (m *memory) Path() string {
	if m.cma {
		return "process_vm_readv and process_vm_writev, half each"
	}
	return fmt.Sprintf("ring of %d × %s", slots, bench.FormatSize(chunk))
}

func (m *memory) Close() error {
	if m.shared == nil {
		return nil
	}
	p := unsafe.Pointer(m.shared)
	m.shared, m.tx, m.rx = nil, nil, nil
	return unix.MunmapPtr(p, unsafe.Sizeof(lanes{}))
}

func (m *memory) send(j *bench.Round, seq uint64) error {
	if j.Validate {
		bench.Fill(m.out, seq)
	}
	if m.cma {
		return m.write(j)
	}
	return m.push(j)
}

func (m *memory) receive(j *bench.Round, seq uint64) error {
	move := m.pull
	if m.cma {
		move = m.read
	}
	if err := move(j); err != nil || !j.Validate {
		return err
	}
	return bench.Verify(m.in, seq)
}

// push copies the message into the slots of the ring.
func (m *memory) push(j *bench.Round) error {
	for b := m.out; ; {
		if err := wait(j, &m.tx.taken, m.sent+1, slots); err != nil {
			return err
		}
		i := m.sent % slots
		n := copy(m.tx.data[i][:], b)
		m.sent++
		m.tx.full[i].n.Store(m.sent)
		if b = b[n:]; len(b) == 0 {
			return nil
		}
	}
}

// pull copies the message out of the slots.
func (m *memory) pull(j *bench.Round) error {
	for b := m.in; ; {
		i := m.got % slots
		if err := wait(j, &m.rx.full[i], m.got+1, 0); err != nil {
			return err
		}
		n := copy(b, m.rx.data[i][:])
		m.got++
		m.rx.taken.n.Store(m.got)
		if b = b[n:]; len(b) == 0 {
			return nil
		}
	}
}

// wait polls until a word plus ahead is n or more.
func wait(j *bench.Round, w *word, n, ahead uint64) error {
	for spin := j.Spinner(); w.n.Load()+ahead < n; {
		if err := spin.Miss(); err != nil {
			return err
		}
	}
	return nil
}

// shareFrom is from which size on the sender copies the second half of a message while the receiver copies the first.
const shareFrom = 16 * bench.KiB

func share(n int) int {
	if n < shareFrom {
		return n
	}
	return n / 2
}

// write lets the receiver read the message, and writes the second half of a long one.
func (m *memory) write(j *bench.Round) error {
	m.sent++
	m.tx.ready.n.Store(m.sent)
	h := share(len(m.out))
	if h == len(m.out) {
		return nil
	}
	if err := wait(j, &m.tx.posted, m.sent, 0); err != nil {
		return err
	}
	err := m.across(unix.ProcessVMWritev, m.out[h:], m.there.in+uintptr(h))
	m.tx.copied.n.Store(m.sent)
	return err
}

// read reads the message, or the first half of a long one.
func (m *memory) read(j *bench.Round) error {
	m.got++
	m.rx.posted.n.Store(m.got)
	if err := wait(j, &m.rx.ready, m.got, 0); err != nil {
		return err
	}
	h := share(len(m.in))
	if err := m.across(unix.ProcessVMReadv, m.in[:h], m.there.out); err != nil || h == len(m.in) {
		return err
	}
	return wait(j, &m.rx.copied, m.got, 0)
}

// across copies between memory of this process and of the other one.
func (m *memory) across(call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), b []byte, there uintptr) error {
	for len(b) > 0 {
		local := [1]unix.Iovec{{Base: &b[0]}}
		local[0].SetLen(len(b))
		n, err := call(m.pid, local[:], []unix.RemoteIovec{{Base: there, Len: len(b)}}, 0)
		switch {
		case errors.Is(err, unix.EPERM):
			return bench.Skipf("%s: this process may not access the other one's memory (Yama, or a container's seccomp filter)", m.s.Driver)
		case err != nil:
			return fmt.Errorf("%s: copy %d bytes: %w", m.s.Driver, len(b), err)
		}
		b, there = b[n:], there+uintptr(n)
	}
	return nil
}
