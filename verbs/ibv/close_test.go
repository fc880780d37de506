//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/verbs/ibv"
)

func TestParentRefusesToCloseBeforeItsChildren(t *testing.T) {
	c := ok[*ibv.Context](t)(ibv.Open(deviceName(t)))
	pd := ok[*ibv.PD](t)(c.AllocPD())
	ch := ok[*ibv.CompChannel](t)(c.CreateCompChannel())
	cq := ok[*ibv.CQ](t)(c.CreateCQ(64, ch, 0))
	srq := ok[*ibv.SRQ](t)(pd.CreateSRQ(8, 1))
	mr := ok[*ibv.MR](t)(pd.RegMR(make([]byte, 100), 0))
	qp := ok[*ibv.QP](t)(pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 8}))
	qp2 := ok[*ibv.QP](t)(pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8}))

	wantErrno(t, c.Close(), syscall.EBUSY, "1 protection domain", "1 completion queue",
		"1 completion channel", "close these first")
	wantErrno(t, pd.Close(), syscall.EBUSY, "2 queue pairs (0x", "1 memory region", "+100", "1 shared receive queue")
	wantErrno(t, cq.Close(), syscall.EBUSY, "2 queue pairs")
	wantErrno(t, srq.Close(), syscall.EBUSY, "1 queue pair")
	wantErrno(t, ch.Close(), syscall.EBUSY, "1 completion queue")
	must(t, qp.Close())
	must(t, qp.Close()) // again
	must(t, srq.Close())
	wantErrno(t, cq.Close(), syscall.EBUSY, "1 queue pair")
	must(t, qp2.Close())
	must(t, cq.Close())
	must(t, ch.Close())
	wantErrno(t, pd.Close(), syscall.EBUSY, "1 memory region")
	must(t, mr.Close())
	must(t, pd.Close())
	must(t, c.Close())
	must(t, c.Close())
	if _, err := c.AllocPD(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("AllocPD on a closed device: %v", err)
	}
}

func TestUnknownDeviceIsNamedWithTheKnownOnes(t *testing.T) {
	known := deviceName(t)
	_, err := ibv.Open("nosuch0")
	wantErrno(t, err, syscall.ENODEV, "nosuch0", "there are", known)
}

func TestNothingLeaks(t *testing.T) {
	name := deviceName(t)
	cycle := func() {
		c := ok[*ibv.Context](t)(ibv.Open(name))
		pd := ok[*ibv.PD](t)(c.AllocPD())
		ch := ok[*ibv.CompChannel](t)(c.CreateCompChannel())
		cq := ok[*ibv.CQ](t)(c.CreateCQ(64, ch, 0))
		qp := ok[*ibv.QP](t)(pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8}))
		mr := ok[*ibv.MR](t)(pd.RegMR(make([]byte, 100), 0))
		for _, o := range []interface{ Close() error }{qp, mr, cq, ch, pd, c} {
			must(t, o.Close())
		}
	}
	fds := func() int { return len(ok[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd"))) }
	cycle()
	before := fds()
	for range 20 {
		cycle()
	}
	if after := fds(); after > before {
		t.Errorf("%d open files, %d before", after, before)
	}
}

// Objects are closed at random while others post and poll: errors, but no crash and no hang.
func TestCloseBesidePostAndPoll(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for round := range 15 {
		a, b := newPair(t, pairOptions{channel: true})
		var wg sync.WaitGroup
		stop := make(chan struct{})
		run := func(f func() error) {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := f(); err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.ENOMEM) &&
						!errors.Is(err, syscall.EINVAL) && !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("round %d: %v", round, err)
						return
					}
				}
			})
		}
		run(func() error {
			a.s.Reset()
			for range 4 {
				a.next(1, 0, 8).Write(b.mr.Addr(), b.mr.RKey())
			}
			_, err := a.qp.PostSend(a.s)
			return err
		})
		s := ok[*ibv.SendChain](t)(ibv.NewSendChain(4, 1, 8))
		run(func() error { // a second poster on the same queue
			s.Reset()
			w := s.Next()
			w.Inline([]byte("x"))
			w.Write(b.mr.Addr(), b.mr.RKey())
			_, err := a.qp.PostSend(s)
			return err
		})
		for range 2 {
			wcs := make([]ibv.WC, 4)
			run(func() error { _, err := a.cq.Poll(wcs); return err })
		}
		run(func() error {
			if err := a.cq.ReqNotify(false); err != nil {
				return err
			}
			_, err := a.ch.Wait(soon(t))
			return err
		})
		run(func() error { _, err := a.qp.Query(); return err })
		time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
		must(t, a.qp.Close())
		if rnd.IntN(2) == 0 {
			time.Sleep(time.Duration(rnd.IntN(3)) * time.Millisecond)
		}
		must(t, a.cq.Close())
		must(t, a.ch.Close())
		close(stop)
		wg.Wait()
	}
}
