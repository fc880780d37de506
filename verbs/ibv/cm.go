package ibv

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

var availableCM = sync.OnceValue(func() error {
	if err := Available(); err != nil {
		return err
	}
	if err := rawLoadCM(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
})

// CMChannel carries the events of connection manager ids. Its file sits in
// Go's poller: waiting parks a goroutine, not a thread.
type CMChannel struct {
	object
	fd    poller
	event *CMEvent
}

// NewCMChannel makes a channel. Errors: [ErrUnavailable]; ENOENT or ENODEV
// without the kernel's rdma_ucm module; EACCES.
func NewCMChannel() (*CMChannel, error) {
	if err := availableCM(); err != nil {
		return nil, err
	}
	ch := &CMChannel{}
	ch.kind, ch.device, ch.unblock = "connection manager channel", "rdma_cm", ch.fd.close
	var fd int
	err := ch.make("create_event_channel", func() (h handle, r int) {
		h, fd, r = rawCMChannel()
		return h, r
	})
	if err != nil {
		return nil, err
	}
	if err := ch.fd.init(&ch.object, fd, "get_cm_event", ch.tryEvent); err != nil {
		_ = ch.Close()
		return nil, err
	}
	return ch, nil
}

// Close closes the channel; a pending Event returns os.ErrClosed. While the channel has ids, Close fails with EBUSY and
// names them.
func (ch *CMChannel) Close() error {
	return ch.close("destroy_event_channel", func() int { return rawCMDestroyChannel(ch.h) })
}

// CMEventType is the kind of a connection manager event.
type CMEventType uint32

// The events of reliable connections.
const (
	CMAddrResolved CMEventType = iota
	CMAddrError
	CMRouteResolved
	CMRouteError
	CMConnectRequest  // listener: ID is new; Accept or Reject it, and Close it at the end
	CMConnectResponse // connecting side: the peer accepted; RTR, RTS, then Establish
	CMConnectError
	CMUnreachable
	CMRejected // Data has the private data of the peer's Reject
	CMEstablished
	CMDisconnected
	CMDeviceRemoval
	CMMulticastJoin
	CMMulticastError
	CMAddrChange
	CMTimewaitExit // the queue pair number may be reused now
)

// String returns the kind of event in words.
func (t CMEventType) String() string {
	return word([]string{
		"address resolved", "address not resolved", "route resolved", "route not resolved", "connect request",
		"connect response", "connect error", "unreachable", "rejected", "established", "disconnected",
		"device removed", "multicast joined", "multicast error", "address changed", "time-wait over",
	}, "event", t)
}

// CMParam holds the values that both sides exchange when they connect.
type CMParam struct {
	// Data is private data for the peer: at most 56 bytes for Connect, 196 for
	// Accept and 148 for Reject. It arrives padded with zeros.
	Data []byte

	ResponderResources int // reads and atomics of the peer that this side takes at a time
	InitiatorDepth     int // own reads and atomics at a time
	RetryCount         int // 0 to 7; on Soft-RoCE 7 means no limit
	RNRRetryCount      int // 0 to 7; 7 means no limit
}

// CMEvent is an event of an id.
type CMEvent struct {
	Type   CMEventType
	ID     *CMID // nil if it was closed meanwhile
	Listen *CMID // of a CMConnectRequest: the listener
	Status int   // 0, or -errno, or for CMRejected the reason code of the specification (28: by the peer's program)
	Param  CMParam
	QPN    uint32 // the peer's queue pair
}

// Err returns the failure that the event reports, or nil.
func (e *CMEvent) Err() error {
	detail := e.Type.String()
	switch e.Type {
	case CMAddrError, CMRouteError:
		detail += ": no RDMA device reaches the peer's address; check addresses, routes and link"
	case CMConnectError:
		detail += ": the peer's answer does not fit"
	case CMUnreachable:
		detail += ": the peer does not answer"
	case CMRejected:
		detail += fmt.Sprintf(" by the peer: reason %d%s", e.Status, rejectReason(e.Status))
		return &Error{Verb: "rdma_cm", Errno: syscall.ECONNREFUSED, Detail: detail}
	case CMDeviceRemoval:
		return &Error{Verb: "rdma_cm", Errno: syscall.ENODEV, Detail: detail}
	default:
		return nil
	}
	err := &Error{Verb: "rdma_cm", Detail: detail}
	if e.Status < 0 {
		err.Errno = syscall.Errno(-e.Status)
	}
	return err
}

func rejectReason(code int) string {
	switch code {
	case 8:
		return " (nothing listens there)"
	case 10:
		return " (stale connection)"
	case 28:
		return " (by its program)"
	}
	return ""
}

// CMID is a connection manager id: a listener, or one side of a connection.
type CMID struct{ object }

// cmids maps the library's ids to their CMIDs, for events.
var cmids struct {
	sync.Mutex
	of map[handle]*CMID
}

// NewID makes an id whose events come on ch.
func (ch *CMChannel) NewID() (*CMID, error) {
	id := &CMID{}
	id.kind = "connection manager id"
	err := id.make("create_id", func() (handle, int) { return rawCMCreateID(ch.h) }, &ch.object)
	if err != nil {
		return nil, err
	}
	id.enter()
	return id, nil
}

func (id *CMID) enter() {
	cmids.Lock()
	defer cmids.Unlock()
	if cmids.of == nil {
		cmids.of = map[handle]*CMID{}
	}
	cmids.of[id.h] = id
}

// Close destroys the id: it disconnects, stops listening, or rejects a pending request. The caller must close the queue
// pair. Close waits for an Event that is being read.
func (id *CMID) Close() error {
	return id.close("destroy_id", func() int {
		cmids.Lock()
		delete(cmids.of, id.h)
		cmids.Unlock()
		return rawCMDestroyID(id.h)
	})
}

// Event waits for the channel's next event. It parks the goroutine; several
// callers take turns. Errors: ctx's; os.ErrClosed.
// A failed connection is an event, not an error: see [CMEvent.Err].
func (ch *CMChannel) Event(ctx context.Context) (*CMEvent, error) {
	ch.fd.Lock()
	defer ch.fd.Unlock()
	if err := ch.fd.next(ctx); err != nil {
		return nil, err
	}
	return ch.event, nil
}

// tryEvent reads an event into ch.event. The caller holds ch by use.
func (ch *CMChannel) tryEvent() int {
	ev := &CMEvent{}
	cmids.Lock() // an id whose event is acknowledged may be destroyed, and its address be another's
	id, listen, r := rawCMEvent(ch.h, ev)
	if r >= 0 {
		ev.ID, ev.Listen = cmids.of[id], cmids.of[listen]
	}
	cmids.Unlock()
	if r < 0 {
		return r
	}
	if ev.Type == CMConnectRequest {
		ev.ID = ch.request(id)
	}
	ch.event = ev
	return 0
}

// request registers the new id of a connect request. The caller holds the channel by use.
func (ch *CMChannel) request(h handle) *CMID {
	id := &CMID{}
	id.kind = "connection manager id"
	if id.make("get_cm_event", func() (handle, int) { return h, 0 }, &ch.object) != nil {
		rawCMDestroyID(h) // the channel is being closed
		return nil
	}
	id.enter()
	return id
}

// Expect is Event for a channel with one connection: it waits for the event
// want and returns it, or the error of an event that reports a failure. Other
// events are an error too.
func (ch *CMChannel) Expect(ctx context.Context, want CMEventType) (*CMEvent, error) {
	ev, err := ch.Event(ctx)
	if err != nil {
		return nil, err
	}
	if ev.Type == want {
		return ev, nil
	}
	if err := ev.Err(); err != nil {
		return ev, err
	}
	return ev, &Error{Verb: "rdma_cm", Errno: syscall.EPROTO, Detail: fmt.Sprintf("%v; expected: %v", ev.Type, want)}
}

// Bind binds the id to a local address and so to a device; with port 0 the kernel chooses a port.
func (id *CMID) Bind(addr netip.AddrPort) error {
	sa := sockaddr(addr)
	return id.call("bind_addr", func() int { return rawCMBind(id.h, &sa) })
}

// Listen makes a bound id a listener. Requests come as CMConnectRequest.
func (id *CMID) Listen(backlog int) error {
	return id.call("listen", func() int { return rawCMListen(id.h, backlog) })
}

// ResolveAddr begins to find the device and the link address for a peer; src
// may be the zero value. The answer is CMAddrResolved or CMAddrError.
func (id *CMID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	to := sockaddr(dst)
	var from *syscall.RawSockaddrInet6
	if src.IsValid() {
		sa := sockaddr(src)
		from = &sa
	}
	return id.call("resolve_addr", func() int {
		return rawCMResolveAddr(id.h, from, &to, int(timeout.Milliseconds()))
	})
}

// ResolveRoute begins to find the route, after the address. The answer is CMRouteResolved or CMRouteError.
func (id *CMID) ResolveRoute(timeout time.Duration) error {
	return id.call("resolve_route", func() int { return rawCMResolveRoute(id.h, int(timeout.Milliseconds())) })
}

// Connect asks the peer for a connection of qp, which must be in INIT. The answer
// is CMConnectResponse, CMRejected, CMUnreachable or CMConnectError.
func (id *CMID) Connect(qp *QP, p CMParam) error {
	if err := p.check("connect", maxConnectData); err != nil {
		return err
	}
	return id.call("connect", func() int { return rawCMConnect(id.h, &p, qp.num, qp.init.SRQ != nil) })
}

// Accept takes a connect request with qp, which must be in RTS. CMEstablished follows.
func (id *CMID) Accept(qp *QP, p CMParam) error {
	if err := p.check("accept", maxAcceptData); err != nil {
		return err
	}
	return id.call("accept", func() int { return rawCMAccept(id.h, &p, qp.num, qp.init.SRQ != nil) })
}

// Establish ends the connecting side's handshake, with its queue pair in RTS.
// Unlike on the accepting side, no event follows.
func (id *CMID) Establish() error {
	return id.call("establish", func() int { return rawCMEstablish(id.h) })
}

// Reject refuses a connect request with at most 148 bytes of private data.
func (id *CMID) Reject(data []byte) error {
	p := CMParam{Data: data}
	if err := p.check("reject", maxRejectData); err != nil {
		return err
	}
	return id.call("reject", func() int { return rawCMReject(id.h, data) })
}

// Disconnect ends the connection: both sides get CMDisconnected. The caller must put the queue pair into ERR.
func (id *CMID) Disconnect() error {
	return id.call("disconnect", func() int { return rawCMDisconnect(id.h) })
}

// Step takes qp to StateInit, StateRTR or StateRTS with the attributes that the connection manager has agreed on with
// the peer; change, which may be nil, may alter the attributes of StepAttr.
func (id *CMID) Step(qp *QP, to QPState, change func(*StepAttr)) error {
	from := to - 1
	if to != StateInit && to != StateRTR && to != StateRTS {
		return invalid("init_qp_attr", qp.device, "to %v; there are steps to INIT, RTR and RTS", to)
	}
	return qp.step(to, func() (*qpAttr, error) {
		m := &qpAttr{}
		if err := id.call("init_qp_attr", func() int { return rawCMInitQP(id.h, to, m) }); err != nil {
			return nil, err
		}
		if change != nil {
			s := StepAttr{Access: m.access, MinRNRTimer: int(m.minRNRTimer), Timeout: int(m.timeout)}
			change(&s)
			m.access, m.minRNRTimer, m.timeout = s.Access, uint32(s.MinRNRTimer), uint32(s.Timeout)
		}
		if to == StateInit {
			port, err := qp.pd.c.QueryPort(int(m.port))
			if err != nil {
				return nil, err
			}
			qp.port = port
		}
		return m, nil
	}, from)
}

// StepAttr are the attributes that this side may choose: Access on the step to INIT, MinRNRTimer to RTR, Timeout to
// RTS.
type StepAttr struct {
	Access      Access
	MinRNRTimer int
	Timeout     int
}

// CMInfo holds the device and the addresses to which an id is bound.
type CMInfo struct {
	Device      string // RDMA device, empty while unbound; open it for the queue pair
	Port        int
	Local, Peer netip.AddrPort
}

// Info returns the device and the addresses to which the id is bound.
func (id *CMID) Info() (CMInfo, error) {
	var info CMInfo
	err := id.call("info", func() int { return rawCMInfo(id.h, &info) })
	return info, err
}

// SetTOS sets the type of service of the connection, before ResolveRoute.
func (id *CMID) SetTOS(tos uint8) error {
	return id.call("set_option", func() int { return rawCMSetTOS(id.h, tos) })
}

const (
	maxConnectData = 56
	maxAcceptData  = 196
	maxRejectData  = 148
)

func (p *CMParam) check(verb string, room int) error {
	if len(p.Data) > room {
		return invalid(verb, "rdma_cm", "%d bytes of private data; there is room for %d", len(p.Data), room)
	}
	for _, v := range []struct {
		name       string
		value, max int
	}{
		{"ResponderResources", p.ResponderResources, 255}, {"InitiatorDepth", p.InitiatorDepth, 255},
		{"RetryCount", p.RetryCount, 7}, {"RNRRetryCount", p.RNRRetryCount, 7},
	} {
		if v.value < 0 || v.value > v.max {
			return invalid(verb, "rdma_cm", "%s is %d; the limit is %d", v.name, v.value, v.max)
		}
	}
	return nil
}

// sockaddr converts a to the kernel's form; the zero value if a is not valid.
func sockaddr(a netip.AddrPort) (sa syscall.RawSockaddrInet6) {
	ip := a.Addr().Unmap()
	port := (*[2]byte)(unsafe.Pointer(&sa.Port))
	port[0], port[1] = byte(a.Port()>>8), byte(a.Port())
	switch {
	case ip.Is4():
		v4 := (*syscall.RawSockaddrInet4)(unsafe.Pointer(&sa))
		v4.Family, v4.Addr = syscall.AF_INET, ip.As4()
	case ip.Is6():
		sa.Family, sa.Addr = syscall.AF_INET6, ip.As16()
		sa.Scope_id = zone(ip.Zone())
	}
	return sa
}
