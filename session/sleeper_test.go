package session

import (
	"testing"
	"time"
)

// A sleep reports whether a notification ended it, before it began or while it lasts.
func TestSleeperReportsNotifications(t *testing.T) {
	p := newSleeper()
	defer p.close()
	if p.sleep(100 * time.Microsecond) {
		t.Error("a sleep that nobody ended reports a notification")
	}
	p.notify()
	if !p.sleep(time.Minute) {
		t.Error("a notification before the sleep is not reported")
	}
	for range 100 {
		go p.notify()
		if !p.sleep(time.Minute) {
			t.Fatal("a notification during the sleep is not reported")
		}
	}
}
