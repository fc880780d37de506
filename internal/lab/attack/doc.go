// Package attack starts attackers as separate programs, and bounds the resources that they may cost the attacked
// process. The tests of test/hostile and of verbs/internal/connect use it.
//
// A program is the test's own binary under another name: TestMain calls [RunIfStarted] with the programs that the tests
// start. The variables BYWASH_HOSTILE and BYWASH_SOAK set how long an attack goes on, and BYWASH_SEED its random
// numbers; test/hostile/doc.go describes them.
package attack
