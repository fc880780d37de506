//go:build linux

package softnic

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/kmod/ncp"
	"github.com/bywash/bywash/qnix/internal/abi"
)

// process is a registered process.
type process struct {
	client *client
	p      *ncp.SoftProcess
	index  uint16
}

// defaultTimeout is how long a registration or a join waits for other processes if the request has no time-out.
const defaultTimeout = 30 * time.Second

// resultError converts the result of a driver command to an errno.
func resultError(result int) error {
	switch result {
	case 0:
		return nil
	case ncp.SoftTaken:
		return unix.EADDRINUSE
	case ncp.SoftQuota:
		return unix.EDQUOT
	case abi.DBCanceled: // by leave
		return unix.ECANCELED
	case abi.DBInvalid:
		return unix.EINVAL
	case abi.DBNoMemory:
		return unix.ENOSPC
	case abi.DBGone:
		return unix.ENOTCONN
	case abi.DBUnknown:
		return unix.ENOENT
	}
	return unix.EIO
}

// register performs the six steps of the specification. The NIC performs steps 2 and 6.
func (c *client) register(h abi.Header, body []byte) error {
	var r abi.Register
	_ = abi.Decode(&r, body)
	c.mu.Lock()
	taken := c.process != nil || c.busy
	if !taken {
		c.busy = true
	}
	c.mu.Unlock()
	if taken {
		return c.answer(h, unix.EISCONN, nil)
	}
	err := c.wait(h, func(abandoned <-chan struct{}) {
		p, m, err := c.newProcess(&r, abandoned)
		c.mu.Lock()
		c.process, c.busy = p, false
		delete(c.waiting, h.ID)
		c.mu.Unlock()
		defer m.closeFDs()
		if err == nil {
			err = rights.Admit(c.conn) // requests to translate may carry a memfd
		}
		// If the client has gone, serve ends as well, and with it the process.
		_ = c.answer(h, err, abi.Bytes(&r), m.fds()...)
	})
	if err != nil {
		c.mu.Lock()
		c.busy = false
		c.mu.Unlock()
		return c.answer(h, err, nil)
	}
	return nil
}

// newProcess makes a process known to the NICs. After a failure no NIC knows it.
func (c *client) newProcess(r *abi.Register, abandoned <-chan struct{}) (*process, *memory, error) {
	n := c.nic
	index, err := n.take(c.cred.uid, c.server.config.MaxPerUser)
	if err != nil {
		return nil, nil, err
	}
	m, err := makeMemory(r)
	if err != nil {
		n.give(index, c.cred.uid)
		return nil, nil, err
	}
	p := &process{client: c, index: index}
	if p.p, err = c.newSoft(index, m); err != nil {
		m.free()
		n.give(index, c.cred.uid)
		return nil, nil, err
	}
	timeout := time.Duration(r.TimeoutMs) * time.Millisecond
	result, err := p.run(ncp.SoftNew, r.Name, r.Group, r.GroupSize, timeout, abandoned)
	if err == nil {
		err = resultError(result)
	}
	if err != nil {
		// The NICs have forgotten it, unless the command was cancelled.
		if result == abi.DBCanceled || result == 0 {
			p.end()
		} else {
			p.free()
		}
		m.closeFDs()
		return nil, nil, err
	}
	r.PID, r.Generation = p.p.PID()
	r.NIC, r.VNISize, r.HPSSize = n.number, m.info.VNISize, m.info.HPSSize
	r.VNIOffset, r.HPSOffset, r.Pad0, r.Pad1 = 0, 0, 0, 0
	return p, m, nil
}

func (c *client) newSoft(index uint16, m *memory) (*ncp.SoftProcess, error) {
	config := ncp.SoftProcessConfig{
		Info: abi.Bytes(&m.info), VNI: m.vni, HPS: m.hps, PID: c.cred.pid, PIDFD: -1,
		User: uint64(c.cred.uid),
		// Another user's pid could belong to a third process by now.
		Remote: c.cred.uid == euid && c.cred.pid > 0 && c.cred.pidfd >= 0,
	}
	var err error
	if config.Wakeup, err = dup(m.wakeup); err != nil {
		return nil, err
	}
	if config.Remote {
		if config.PIDFD, err = dup(c.cred.pidfd); err != nil {
			unix.Close(config.Wakeup)
			return nil, err
		}
	}
	p, err := c.server.soft.NewProcess(c.nic.place, int(index), config)
	if err != nil {
		unix.Close(config.Wakeup)
		if config.PIDFD >= 0 {
			unix.Close(config.PIDFD)
		}
		return nil, err
	}
	return p, nil
}

func dup(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// post posts a driver command. It tries again while the NIC's queue is full.
func (p *process) post(command ncp.SoftCommand, cookie uint64, name, group [abi.NameLen]byte, size uint32) error {
	for {
		err := p.p.Post(command, cookie, name, group, size)
		if err != unix.EAGAIN {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// run posts a command that waits for other processes, and returns its result. It returns ETIMEDOUT after timeout, and
// EINTR if the command was abandoned or the client has gone; the command is then over.
func (p *process) run(command ncp.SoftCommand, name, group [abi.NameLen]byte, size uint32, timeout time.Duration, abandoned <-chan struct{}) (int, error) {
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	w := &p.client.server.waits
	cookie, result := w.add()
	if err := p.post(command, cookie, name, group, size); err != nil {
		w.drop(cookie)
		return abi.DBInvalid, err
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	var err error
	select {
	case r := <-result:
		return r, nil
	case <-t.C:
		err = unix.ETIMEDOUT
	case <-abandoned:
		err = unix.EINTR
	case <-p.client.over:
		err = unix.EINTR
	}
	_ = p.post(ncp.SoftAbandon, cookie, [abi.NameLen]byte{}, [abi.NameLen]byte{}, 0)
	r := <-result
	if r == 0 { // the command was done before it was cancelled
		return 0, nil
	}
	return r, err
}

// end performs the five steps of de-registration.
func (p *process) end() {
	var none [abi.NameLen]byte
	w := &p.client.server.waits
	cookie, result := w.add()
	if err := p.post(ncp.SoftDelete, cookie, none, none, 0); err != nil {
		w.drop(cookie)
		panic(fmt.Sprintf("softnic: a process cannot be deleted: %v", err)) // the NIC would write to it after free
	}
	<-result
	p.free()
}

// free frees the resources on this host.
func (p *process) free() {
	p.p.Free()
	p.client.nic.give(p.index, p.client.cred.uid)
}

func (c *client) deregister() error {
	c.mu.Lock()
	p := c.process
	if p == nil || c.busy {
		c.mu.Unlock()
		return unix.ENOTCONN
	}
	c.process, c.busy = nil, true
	for id, w := range c.waiting { // joins
		delete(c.waiting, id)
		select {
		case <-w:
		default:
			close(w)
		}
	}
	c.mu.Unlock()
	c.pending.Wait()
	p.end()
	c.mu.Lock()
	c.busy = false
	c.mu.Unlock()
	return nil
}

func (c *client) join(h abi.Header, body []byte) error {
	var g abi.Group
	_ = abi.Decode(&g, body)
	c.mu.Lock()
	p := c.process
	c.mu.Unlock()
	if p == nil {
		return c.answer(h, unix.ENOTCONN, nil)
	}
	err := c.wait(h, func(abandoned <-chan struct{}) {
		timeout := time.Duration(g.TimeoutMs) * time.Millisecond
		result, err := p.run(ncp.SoftJoin, [abi.NameLen]byte{}, g.Name, g.Size, timeout, abandoned)
		if err == nil {
			err = resultError(result)
		}
		c.waited(h)
		_ = c.answer(h, err, nil)
	})
	if err != nil {
		return c.answer(h, err, nil)
	}
	return nil
}

func (p *process) leave(g *abi.Group) error {
	w := &p.client.server.waits
	cookie, result := w.add()
	if err := p.post(ncp.SoftLeave, cookie, [abi.NameLen]byte{}, g.Name, 0); err != nil {
		w.drop(cookie)
		return err
	}
	return resultError(<-result)
}

// take allocates an entry of the process table.
func (n *served) take(uid, most int) (uint16, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.byUser[uid] >= most:
		return 0, unix.EUSERS
	case len(n.free) == 0:
		return 0, unix.EAGAIN
	}
	index := n.free[len(n.free)-1]
	n.free = n.free[:len(n.free)-1]
	n.byUser[uid]++
	return index, nil
}

func (n *served) give(index uint16, uid int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.free = append(n.free, index)
	if n.byUser[uid]--; n.byUser[uid] == 0 {
		delete(n.byUser, uid)
	}
}
