//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"syscall"
	"testing"

	"github.com/bywash/bywash/verbs/ibv"
)

// newLone makes a queue pair in RESET that gets no peer but itself.
func newLone(t testing.TB, o pairOptions) *end {
	t.Helper()
	o.defaults()
	return newEnd(t, open(t), o)
}

func (e *end) wantState(want ibv.QPState) {
	e.t.Helper()
	got, err := e.qp.Query()
	must(e.t, err)
	if got != want || e.qp.State() != want {
		e.t.Errorf("the device reports %v, State %v; want %v", got, e.qp.State(), want)
	}
}

func TestEveryStateStepShowsInQuery(t *testing.T) {
	o := withDefaults(pairOptions{})
	e := newLone(t, o)
	e.wantState(ibv.StateReset)

	must(t, e.qp.ToInit(e.init))
	e.wantState(ibv.StateInit)
	must(t, e.qp.ToRTR(e.rtr(e, o)))
	e.wantState(ibv.StateRTR)
	must(t, e.qp.ToRTS(e.rts(o)))
	e.wantState(ibv.StateRTS)
	must(t, e.qp.ToErr())
	e.wantState(ibv.StateErr)
	must(t, e.qp.ToReset())
	e.wantState(ibv.StateReset)
	must(t, e.qp.ToInit(e.init))
	must(t, e.qp.ToErr())
	must(t, e.qp.ToReset())
}

func TestStepsOutOfOrderNameTheMissingOne(t *testing.T) {
	o := withDefaults(pairOptions{})
	e := newLone(t, o)
	rtr, rts := e.rtr(e, o), e.rts(o)
	toRTR := func() error { return e.qp.ToRTR(rtr) }
	toRTS := func() error { return e.qp.ToRTS(rts) }
	toInit := func() error { return e.qp.ToInit(e.init) }
	wantErrno(t, toRTR(), syscall.EINVAL, "RESET", "ToInit is missing")
	wantErrno(t, toRTS(), syscall.EINVAL, "ToInit and ToRTR are missing")
	wantErrno(t, e.qp.ToErr(), syscall.EINVAL, "nothing to flush")
	must(t, toInit())
	wantErrno(t, toInit(), syscall.EINVAL, "ToReset starts over")
	wantErrno(t, toRTS(), syscall.EINVAL, "INIT", "ToRTR is missing")
	must(t, toRTR())
	wantErrno(t, toRTR(), syscall.EINVAL, "RTR", "ToReset")
	must(t, toRTS())
	wantErrno(t, toInit(), syscall.EINVAL, "RTS")
}

func TestAttributesOutOfRangeAreNamedWithTheirLimit(t *testing.T) {
	o := withDefaults(pairOptions{})
	e := newLone(t, o)
	dev := e.c.Query()
	wantErrno(t, e.qp.ToInit(ibv.InitAttr{Port: 0}), syscall.EINVAL, "port 0")
	wantErrno(t, e.qp.ToInit(ibv.InitAttr{Port: dev.Ports + 1}), syscall.EINVAL, "ports 1 to")
	wantErrno(t, e.qp.ToInit(ibv.InitAttr{Port: 1, PKeyIndex: 1 << 20}), syscall.EINVAL, "PKeyIndex", "table")
	must(t, e.qp.ToInit(e.init))
	good := e.rtr(e, o)
	for want, change := range map[string]func(a *ibv.RTRAttr){
		"MTU":             func(a *ibv.RTRAttr) { a.MTU++ },
		"DestQPN":         func(a *ibv.RTRAttr) { a.DestQPN = 1 << 24 },
		"RQPSN":           func(a *ibv.RTRAttr) { a.RQPSN = 1 << 24 },
		"MaxDestRdAtomic": func(a *ibv.RTRAttr) { a.MaxDestRdAtomic = dev.MaxQPRdAtom + 1 },
		"MinRNRTimer":     func(a *ibv.RTRAttr) { a.MinRNRTimer = 32 },
		"SGIDIndex":       func(a *ibv.RTRAttr) { a.Path.SGIDIndex = 1 << 20 },
		"FlowLabel":       func(a *ibv.RTRAttr) { a.Path.FlowLabel = 1 << 20 },
		"Path.SL":         func(a *ibv.RTRAttr) { a.Path.SL = 16 },
	} {
		bad := good
		change(&bad)
		wantErrno(t, e.qp.ToRTR(bad), syscall.EINVAL, want, "to RTR")
	}
	must(t, e.qp.ToRTR(good))
	for want, a := range map[string]ibv.RTSAttr{
		"SQPSN":       {SQPSN: 1 << 24},
		"Timeout":     {Timeout: 32},
		"RetryCount":  {RetryCount: 8},
		"RNRRetry":    {RNRRetry: -1},
		"MaxRdAtomic": {MaxRdAtomic: dev.MaxQPInitAtom + 1},
	} {
		wantErrno(t, e.qp.ToRTS(a), syscall.EINVAL, want, "to RTS")
	}
	must(t, e.qp.ToRTS(e.rts(o)))
}

func TestPostsNeedTheirState(t *testing.T) {
	o := withDefaults(pairOptions{})
	e := newLone(t, o)
	e.r.Next()
	_, err := e.qp.PostRecv(e.r)
	wantErrno(t, err, syscall.EINVAL, "RESET", "missing")
	must(t, e.qp.ToInit(e.init))
	_, err = e.qp.PostRecv(e.r)
	must(t, err)
	e.s.Next()
	_, err = e.qp.PostSend(e.s)
	wantErrno(t, err, syscall.EINVAL, "INIT", "ToRTR is missing")
	must(t, e.qp.ToRTR(e.rtr(e, o)))
	_, err = e.qp.PostSend(e.s)
	wantErrno(t, err, syscall.EINVAL, "RTR", "ToRTS is missing")
}

func TestQueuePairBeyondTheDevicesLimits(t *testing.T) {
	c := open(t)
	pd := closing[*ibv.PD](t)(c.AllocPD())
	cq := closing[*ibv.CQ](t)(c.CreateCQ(100, nil, 0))
	dev := c.Query()
	base := ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8}
	for want, change := range map[string]func(i *ibv.QPInit){
		"MaxSendWR":       func(i *ibv.QPInit) { i.MaxSendWR = dev.MaxQPWR + 1 },
		"MaxRecvWR":       func(i *ibv.QPInit) { i.MaxRecvWR = -1 },
		"MaxSendSGE":      func(i *ibv.QPInit) { i.MaxSendSGE = dev.MaxSGE + 1 },
		"MaxRecvSGE":      func(i *ibv.QPInit) { i.MaxRecvSGE = dev.MaxSGE + 1 },
		"MaxInline":       func(i *ibv.QPInit) { i.MaxInline = 1 << 20 },
		"RecvCQ":          func(i *ibv.QPInit) { i.RecvCQ = nil },
		"could be overru": func(i *ibv.QPInit) { i.MaxSendWR = cq.Len() - 7 },
	} {
		bad := base
		change(&bad)
		_, err := pd.CreateQP(bad)
		wantErrno(t, err, syscall.EINVAL, want)
	}
	over := base
	over.MaxSendWR, over.Oversubscribe = cq.Len()+1, true
	must(t, ok[*ibv.QP](t)(pd.CreateQP(over)).Close())
	must(t, ok[*ibv.QP](t)(pd.CreateQP(base)).Close())
}
