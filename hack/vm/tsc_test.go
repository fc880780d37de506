//go:build linux

package main

import "testing"

func TestCounterIsMeasuredAlikeTwice(t *testing.T) {
	first, second := tscKHz(), tscKHz()
	if first == 0 {
		t.Skip("needs amd64: there is no time stamp counter")
	}
	if ratio := float64(first) / float64(second); ratio < 0.999 || ratio > 1.001 {
		t.Errorf("%d kHz, then %d kHz", first, second)
	}
}
