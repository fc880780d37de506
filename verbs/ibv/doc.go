// Package ibv provides RDMA verbs for Go: devices, memory registration, reliable connected (RC) queue pairs, completion
// queues and the RDMA connection manager, over rdma-core's libibverbs and librdmacm. It can be used alone.
//
// # What it needs
//
// A Linux machine with an RDMA device: InfiniBand, RoCE, or Soft-RoCE on any network interface. The libraries, of
// rdma-core 33 or newer, are opened at run time, so that one binary starts everywhere; the build uses rdma-core's
// headers (Debian: libibverbs-dev, librdmacm-dev) and cgo if they exist. If something is missing, [Available], and every
// function that opens a device, returns an error that wraps [ErrUnavailable] and names it. The environment variable
// BYWASH_LIBIBVERBS names another libibverbs.so.1 by its path, for one outside the loader's directories, and for tests;
// setuid programs ignore it.
//
// # From a device to a message
//
//	c, _ := ibv.Open("rxe0")                       // a Context
//	pd, _ := c.AllocPD()                           // a protection domain
//	cq, _ := c.CreateCQ(256, nil, 0)               // a completion queue
//	mr, _ := pd.RegMR(buf, ibv.AccessLocalWrite)   // registered memory
//	qp, _ := pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 64})
//	_ = qp.ToInit(…)                               // and ToRTR, ToRTS with the values of the peer
//	s, _ := ibv.NewSendChain(32, 2, 64)            // work requests, written in place
//	wr := s.Next()
//	wr.Send()
//	wr.AddSGE(mr.Addr(), 8, mr.LKey())
//	_, _ = qp.PostSend(s)                          // one crossing into C posts the chain
//	n, _ := cq.Poll(wcs)                           // one crossing polls a batch
//
// [CQ.Progress] posts a chain of receives, a chain of sends and polls a batch
// in a single crossing. None of these allocates.
//
// # Ownership and closing
//
// Every object is closed by its Close. A parent refuses to be closed while it has children: the error (EBUSY) names
// them, and nothing happens. A second Close does nothing and returns nil. Any other call on a closed object returns an
// error that matches [os.ErrClosed].
//
//	Context      its PDs, CQs and completion channels
//	PD           its MRs, MWs, SRQs and QPs
//	CompChannel  its CQs
//	CQ, SRQ      the QPs that use them
//	CMChannel    its CMIDs
//
// Memory named by a posted work request belongs to the device until its
// completion has been polled, or the queue pair closed.
//
// # Concurrency
//
// Every method may be called from any goroutine at any time, also beside Close; a call that is concurrent with a Close
// either happens before it or fails. Two goroutines that post to one queue wait for each other for the time of one
// post, and two that poll a CQ for that of one poll. A chain belongs to one goroutine at a time.
//
// # What is enforced here
//
// Devices differ in what they check; Soft-RoCE checks little and then loses
// completions or stays silent for ever. So this package refuses, before the
// device sees it: more outstanding work requests than a queue was created for
// (a request is outstanding until a completion that covers it was polled), more
// scatter entries, inline bytes or message bytes than announced, atomics that are
// misaligned or not of 8 bytes, reads and atomics on a queue pair that allows
// none, posts in a state that does not take them, and queue pairs whose
// completions could overrun their completion queue.
//
// # Errors
//
// Errors are *[Error] values that name the verb, the device, the errno and the
// cause in words, with a remedy where there is one; errors.Is finds the
// syscall.Errno in them. Completions that failed are explained by [WC.Err].
package ibv
