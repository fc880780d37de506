package perf

import (
	"context"
	"testing"
	"time"
)

// A session runs its tests and those of drivers that it has, with every byte
// checked.
func TestSessionRunsItsTests(t *testing.T) {
	tests := []Test{TagLat, TagBW, AMRate, Lat, BW, Rate, PutBW, GetBW, GetLat, FaddLat}
	c := config(SessionName, tests...)
	c.Validate = true
	c.Sizes = []int{8, 4096, 100000}
	if err := c.SetRails("shm"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var got collector
	if err := Run(ctx, c, &got); err != nil {
		t.Fatal(err)
	}
	for _, m := range got.missing {
		if m.Test != Rate && m.Test != AMRate { // too long for an active message
			t.Errorf("%s", m)
		}
	}
}

func TestRailsGoWithASession(t *testing.T) {
	if err := (&Config{Drivers: []string{"shm"}}).SetRails("shm"); err == nil {
		t.Error("rails of a driver are taken")
	}
	if err := (&Config{Drivers: []string{SessionName}}).SetRails("nothing"); err == nil {
		t.Error("a rail that does not exist is taken")
	}
}
