//go:build linux && !(386 || arm || mips || mipsle) && (race || asan)

package ibv_test

// raceEnabled means that the build has a sanitizer, which allocates.
const raceEnabled = true
