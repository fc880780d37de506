//go:build race || asan

package ibv_test

// raceEnabled says that the build has a sanitizer, which allocates.
const raceEnabled = true
