package ibv

// limits are the limits of a queue pair. They are checked before the device sees a request, since devices differ in
// what they check themselves.
type limits struct {
	sendSGE, recvSGE int32
	inline           uint64 // bytes
	message          uint64 // bytes
	reads            bool   // reads and atomics are allowed
}

// fault is the reason for which a request is refused.
type fault uint8

const (
	faultNone fault = iota
	faultChainSGE
	faultChainInline
	faultSGE
	faultInline
	faultInlineOp
	faultMessage
	faultReads
	faultAtomicSize
	faultAtomicAlign
	faultBind
)

// String returns the reason in words.
func (f fault) String() string {
	return [...]string{
		faultNone:        "no fault",
		faultChainSGE:    "more entries were added than the chain has room for",
		faultChainInline: "more inline bytes were added than the chain has room for, or Inline was mixed with AddSGE",
		faultSGE:         "more scatter or gather entries than the queue was created for",
		faultInline:      "more inline bytes than the queue pair was created for",
		faultInlineOp:    "only sends and writes can be inline",
		faultMessage:     "the message is longer than the port's maximum",
		faultReads:       "reads and atomics need MaxRdAtomic above 0 in ToRTS",
		faultAtomicSize:  "an atomic needs one entry of 8 bytes",
		faultAtomicAlign: "an atomic's addresses must be multiples of 8",
		faultBind:        "a window or region to bind is of another protection domain",
	}[f]
}

// check returns the first request from head that violates l, and the reason.
func (c *SendChain) check(l *limits) (int, fault) {
	for i := c.head; i < c.tail; i++ {
		if f := c.wrs[i].check(l); f != faultNone {
			return i - c.head, f
		}
	}
	return 0, faultNone
}

func (w *SendWR) check(l *limits) fault {
	n := w.numSGE
	if n > l.sendSGE || n < 0 {
		return sgeFault(n)
	}
	length := total(w.sges, n)
	if length > l.message {
		return faultMessage
	}
	if w.Flags&SendInline != 0 && (length > l.inline || !w.opcode.inline()) {
		if !w.opcode.inline() {
			return faultInlineOp
		}
		return faultInline
	}
	switch w.opcode {
	case opRead:
		if !l.reads {
			return faultReads
		}
	case opCompareSwap, opFetchAdd:
		if !l.reads {
			return faultReads
		}
		if n != 1 || length != 8 {
			return faultAtomicSize
		}
		if (w.remote|sgeAt(w.sges, 0).addr)&7 != 0 {
			return faultAtomicAlign
		}
	}
	return faultNone
}

func (o opcode) inline() bool {
	return o == opSend || o == opSendImm || o == opSendInv || o == opWrite || o == opWriteImm
}

// check returns the first receive from head that has too many entries, and the reason.
func (c *RecvChain) check(sges int32) (int, fault) {
	for i := c.head; i < c.tail; i++ {
		if n := c.wrs[i].numSGE; n > sges || n < 0 {
			return i - c.head, sgeFault(n)
		}
	}
	return 0, faultNone
}

func sgeFault(n int32) fault {
	switch {
	case n == tooManySGEs:
		return faultChainSGE
	case n == tooMuchInline:
		return faultChainInline
	}
	return faultSGE
}

// total returns the length of a message in bytes, which cannot overflow 64 bits.
func total(list uint64, n int32) (sum uint64) {
	for i := range n {
		sum += uint64(sgeAt(list, i).length)
	}
	return sum
}
