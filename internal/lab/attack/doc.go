// Package attack starts attackers as programs of their own, and bounds what they may cost the process that they attack. The
// tests of test/hostile and of verbs/internal/connect are made of it.
//
// A program is the test's own binary under another name: TestMain calls [RunIfStarted] with the programs that the tests
// start. The variables BYWASH_HOSTILE, BYWASH_SOAK and BYWASH_SEED say how long an attack goes on and which random numbers
// it draws; test/hostile/doc.go has more about them.
package attack
