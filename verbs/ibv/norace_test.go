//go:build !race && !asan

package ibv_test

const raceEnabled = false
