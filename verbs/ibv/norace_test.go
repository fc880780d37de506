//go:build !race

package ibv_test

const raceEnabled = false
