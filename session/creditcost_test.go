//go:build linux && !(386 || arm || mips || mipsle)

package session

import "testing"

// docs/wire.md names what an RTS costs.
func TestCreditOfAnRTS(t *testing.T) {
	if rtsCost != 1408 {
		t.Errorf("an RTS takes %d bytes of credit, docs/wire.md says 1408", rtsCost)
	}
}
