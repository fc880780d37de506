//go:build linux && !(386 || arm || mips || mipsle) && !race && !asan

package ibv_test

const raceEnabled = false
