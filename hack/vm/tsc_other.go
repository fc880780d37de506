//go:build linux && !amd64

package main

func tscKHz() int { return 0 }
