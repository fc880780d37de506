//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// A wake-up ends a sleep although another goroutine takes what the poller has meanwhile.
func TestWakeUpBesideAPollingGoroutineIsNotLost(t *testing.T) {
	c := aContext(t, driver.Small, nil)
	c.watch()
	s := &c.poll.waiter
	slept := 0
	for range 2000 {
		s.woken.Store(false)
		stop, returned := make(chan struct{}), make(chan struct{})
		go func() { s.sleep(0); close(returned) }()
		over := func() bool {
			select {
			case <-returned:
				return true
			default:
				return false
			}
		}
		for k := 0; (k < 100 || !s.asleep.Load()) && !over(); k++ { // so that it sleeps, if no event comes
			runtime.Gosched()
		}
		var polls sync.WaitGroup
		polls.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					c.takeReady()
				}
			}
		})
		if s.asleep.Load() && !s.looking.Load() && !over() {
			slept++
		}
		s.wake()
		select {
		case <-returned:
		case <-time.After(20 * time.Second):
			t.Fatalf("the sleep goes on after the wake-up; %d were ended", slept-1)
		}
		close(stop)
		polls.Wait()
	}
	if slept < 100 {
		t.Errorf("only %d of 2000 goroutines slept when they were woken", slept)
	}
}

// An event of a connection that had the number before does not concern the new one.
func TestEventOfEarlierConnectionIsIgnored(t *testing.T) {
	c := aContext(t, driver.Small, nil)
	c.watch()
	c.Mu.Lock()
	before := c.newConn() // number 0
	c.Mu.Unlock()
	now, fd := c.fed(t)
	defer unix.Close(fd)
	if now.Number() != before.Number() {
		t.Fatalf("the new connection has number %d, want %d", now.Number(), before.Number())
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	if err := c.poll.control(unix.EPOLL_CTL_ADD, fds[0], unix.EPOLLIN|unix.EPOLLRDHUP, tokenOf(before)); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fds[1])
	for range 4 { // another goroutine may drain
		c.takeReady()
	}
	if now.hup.Load() {
		t.Error("the new connection has ended")
	}
}
