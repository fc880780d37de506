//go:build linux && !(386 || arm || mips || mipsle) && race

package regcache

const raceEnabled = true
