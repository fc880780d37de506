package ibv

import (
	"slices"
	"syscall"
)

// InitAttr takes a queue pair from RESET to INIT.
type InitAttr struct {
	Port      int // from 1
	PKeyIndex int
	Access    Access // the peer's access; its keys narrow it further
}

// Path is the address of the peer.
type Path struct {
	DGID         GID   // the peer's; needed on RoCE
	SGIDIndex    int   // index of the local GID, of the same type as the peer's
	HopLimit     uint8 // 0 means 64
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits
	DLID         uint16 // InfiniBand: the peer's local identifier
	SL           uint8  // service level, 0 to 15
}

// RTRAttr takes a queue pair from INIT to RTR: it can receive then.
type RTRAttr struct {
	Path            Path
	MTU             MTU    // the smaller of both sides' MTUs
	DestQPN         uint32 // the peer's queue pair number
	RQPSN           uint32 // 24 bits: the peer's RTSAttr.SQPSN
	MaxDestRdAtomic int    // reads and atomics of the peer at a time
	MinRNRTimer     int    // 0 to 31, see the specification; 12 is 0.64 ms
}

// RTSAttr takes a queue pair from RTR to RTS: it can send then.
type RTSAttr struct {
	SQPSN       uint32 // 24 bits
	Timeout     int    // 0 to 31: 4.096 µs × 2^n per try; 0 means no limit
	RetryCount  int    // 0 to 7; on Soft-RoCE 7 means no limit
	RNRRetry    int    // 0 to 7; 7 means no limit
	MaxRdAtomic int    // own reads and atomics at a time, at most the peer's MaxDestRdAtomic; 0 refuses them
}

// The bits of struct ibv_qp_attr's mask.
const (
	maskState           = 1 << 0
	maskAccess          = 1 << 3
	maskPKeyIndex       = 1 << 4
	maskPort            = 1 << 5
	maskAV              = 1 << 7
	maskPathMTU         = 1 << 8
	maskTimeout         = 1 << 9
	maskRetryCount      = 1 << 10
	maskRNRRetry        = 1 << 11
	maskRQPSN           = 1 << 12
	maskMaxRdAtomic     = 1 << 13
	maskMinRNRTimer     = 1 << 15
	maskSQPSN           = 1 << 16
	maskMaxDestRdAtomic = 1 << 17
	maskDestQPN         = 1 << 20
)

// qpAttr is the shim's flat ibv_qp_attr; mask selects the fields that count.
type qpAttr struct {
	mask                                                        uint32
	state                                                       QPState
	mtu                                                         MTU
	rqPSN, sqPSN, destQPN                                       uint32
	access                                                      Access
	pkeyIndex, port, timeout, retryCount, rnrRetry, minRNRTimer uint32
	maxRdAtomic, maxDestRdAtomic                                uint32
	dgid                                                        GID
	isGlobal, sgidIndex, hopLimit, trafficClass, flowLabel      uint32
	dlid, sl, srcPathBits, staticRate, ahPort                   uint32
}

// ToInit allows receives to be posted. The queue pair must be in RESET.
func (qp *QP) ToInit(a InitAttr) error {
	return qp.step(StateInit, func() (*qpAttr, error) {
		port, err := qp.pd.c.QueryPort(a.Port)
		if err != nil {
			return nil, err
		}
		pkey := attrRange{"PKeyIndex", a.PKeyIndex, 0, port.PKeys - 1, "the port's table"}
		if err := qp.inRange(StateInit, []attrRange{pkey}); err != nil {
			return nil, err
		}
		qp.port = port
		return &qpAttr{mask: maskPKeyIndex | maskPort | maskAccess,
			pkeyIndex: uint32(a.PKeyIndex), port: uint32(a.Port), access: a.Access}, nil
	}, StateReset)
}

// ToRTR connects the receiving side. The queue pair must be in INIT. ToRTR resolves the peer's address: on RoCE that
// can block for seconds and end in ETIMEDOUT.
func (qp *QP) ToRTR(a RTRAttr) error {
	return qp.step(StateRTR, func() (*qpAttr, error) {
		if err := qp.checkRTR(&a); err != nil {
			return nil, err
		}
		p := &a.Path
		m := &qpAttr{mask: maskAV | maskPathMTU | maskDestQPN | maskRQPSN | maskMaxDestRdAtomic | maskMinRNRTimer,
			mtu: a.MTU, destQPN: a.DestQPN, rqPSN: a.RQPSN,
			maxDestRdAtomic: uint32(a.MaxDestRdAtomic), minRNRTimer: uint32(a.MinRNRTimer),
			ahPort: qp.portNum, dlid: uint32(p.DLID), sl: uint32(p.SL)}
		if p.DGID != (GID{}) {
			m.isGlobal, m.dgid, m.sgidIndex = 1, p.DGID, uint32(p.SGIDIndex)
			m.hopLimit, m.trafficClass, m.flowLabel = uint32(p.HopLimit), uint32(p.TrafficClass), p.FlowLabel
			if p.HopLimit == 0 {
				m.hopLimit = 64
			}
		}
		return m, nil
	}, StateInit)
}

func (qp *QP) checkRTR(a *RTRAttr) error {
	if qp.port.LinkLayer == LinkEthernet && a.Path.DGID == (GID{}) {
		return invalid("modify_qp", qp.device, "to RTR: Path.DGID is needed on Ethernet")
	}
	return qp.inRange(StateRTR, []attrRange{
		{"MTU (code)", int(a.MTU), int(MTU256), int(qp.port.ActiveMTU), "the port's active MTU"},
		{"DestQPN", int(a.DestQPN), 0, 1<<24 - 1, "24 bits"},
		{"RQPSN", int(a.RQPSN), 0, 1<<24 - 1, "24 bits"},
		{"MaxDestRdAtomic", a.MaxDestRdAtomic, 0, qp.pd.c.attr.MaxQPRdAtom, "the device"},
		{"MinRNRTimer", a.MinRNRTimer, 0, 31, "5 bits"},
		{"Path.SGIDIndex", a.Path.SGIDIndex, 0, max(qp.port.GIDs-1, 0), "the port's table"},
		{"Path.FlowLabel", int(a.Path.FlowLabel), 0, 1<<20 - 1, "20 bits"},
		{"Path.SL", int(a.Path.SL), 0, 15, "4 bits"},
	})
}

// ToRTS connects the sending side. The queue pair must be in RTR.
func (qp *QP) ToRTS(a RTSAttr) error {
	return qp.step(StateRTS, func() (*qpAttr, error) {
		if err := qp.inRange(StateRTS, []attrRange{
			{"SQPSN", int(a.SQPSN), 0, 1<<24 - 1, "24 bits"},
			{"Timeout", a.Timeout, 0, 31, "5 bits"},
			{"RetryCount", a.RetryCount, 0, 7, "3 bits"},
			{"RNRRetry", a.RNRRetry, 0, 7, "3 bits"},
			{"MaxRdAtomic", a.MaxRdAtomic, 0, qp.pd.c.attr.MaxQPInitAtom, "the device"},
		}); err != nil {
			return nil, err
		}
		return &qpAttr{mask: maskSQPSN | maskTimeout | maskRetryCount | maskRNRRetry | maskMaxRdAtomic,
			sqPSN: a.SQPSN, timeout: uint32(a.Timeout), retryCount: uint32(a.RetryCount),
			rnrRetry: uint32(a.RNRRetry), maxRdAtomic: uint32(a.MaxRdAtomic)}, nil
	}, StateRTR)
}

// ToErr flushes all outstanding requests with WCFlushed. It works in any state but RESET.
func (qp *QP) ToErr() error {
	return qp.step(StateErr, func() (*qpAttr, error) { return &qpAttr{}, nil },
		StateInit, StateRTR, StateRTS, StateErr)
}

// ToReset drops all outstanding requests without completions. It works in any state.
func (qp *QP) ToReset() error {
	return qp.step(StateReset, func() (*qpAttr, error) { return &qpAttr{}, nil },
		StateReset, StateInit, StateRTR, StateRTS, StateErr)
}

// step makes one state step with the attributes that attr returns, if the state is one of from.
func (qp *QP) step(to QPState, attr func() (*qpAttr, error), from ...QPState) error {
	qp.stepping.Lock()
	defer qp.stepping.Unlock()
	if now := qp.State(); !slices.Contains(from, now) {
		return invalid("modify_qp", qp.device, "queue pair %#x is in %v and cannot go to %v%s",
			qp.num, now, to, missing(now, to))
	}
	m, err := attr()
	if err != nil {
		return err
	}
	if err := qp.use("modify_qp"); err != nil {
		return err
	}
	defer qp.mu.RUnlock()
	m.mask |= maskState
	m.state = to
	if r := rawModifyQP(qp.q, m); r < 0 {
		return qp.stepError(to, r)
	}
	switch to {
	case StateReset:
		qp.limits.Store(&limits{})
	case StateInit:
		qp.portNum = m.port
		qp.setLimits(0)
	case StateRTS:
		qp.setLimits(m.maxRdAtomic)
	}
	qp.state.Store(uint32(to))
	return nil
}

// setLimits publishes the limits that posts are checked against.
func (qp *QP) setLimits(rdAtomic uint32) {
	qp.limits.Store(&limits{
		sendSGE: int32(qp.caps.MaxSendSGE), recvSGE: int32(qp.caps.MaxRecvSGE),
		inline: uint64(qp.caps.MaxInline), message: uint64(qp.port.MaxMessage), reads: rdAtomic > 0,
	})
}

// missing names the steps between two states of a connection's set-up.
func missing(now, to QPState) string {
	switch {
	case now >= to && to != StateReset:
		return "; ToReset starts over"
	case now == StateReset && to == StateErr:
		return "; there is nothing to flush in RESET"
	case now == StateReset && to == StateRTR:
		return "; ToInit is missing"
	case now == StateReset:
		return "; ToInit and ToRTR are missing"
	case now == StateInit:
		return "; ToRTR is missing"
	case now == StateRTR:
		return "; ToRTS is missing"
	}
	return ""
}

// stepError explains a step that the device refused. The caller holds the queue pair by use.
func (qp *QP) stepError(to QPState, r int) error {
	detail := "queue pair to " + to.String()
	if now, r := rawQPState(qp.q); r == 0 && now != qp.State() {
		detail += ": the device has moved it from " + qp.State().String() + " to " + now.String()
	}
	switch syscall.Errno(-r) {
	case syscall.EINVAL:
		switch to {
		case StateRTR:
			detail += ": the device refuses the path or one of MTU, MaxDestRdAtomic and MinRNRTimer; " +
				"is the GID index still valid?"
		case StateRTS:
			detail += ": the device refuses one of Timeout, RetryCount, RNRRetry and MaxRdAtomic"
		}
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH:
		detail += ": " + remedy("modify_qp", syscall.ETIMEDOUT)
	default:
		if s := remedy("modify_qp", syscall.Errno(-r)); s != "" {
			detail += ": " + s
		}
	}
	return fail("modify_qp", qp.device, r, detail)
}

// attrRange is an attribute's value, its range and its source.
type attrRange struct {
	name          string
	value, lo, hi int
	why           string
}

func (qp *QP) inRange(to QPState, ranges []attrRange) error {
	for _, l := range ranges {
		if l.value < l.lo || l.value > l.hi {
			return invalid("modify_qp", qp.device, "to %v: %s is %d, outside %d to %d (%s)",
				to, l.name, l.value, l.lo, l.hi, l.why)
		}
	}
	return nil
}
