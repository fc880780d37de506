//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// The option netns: two contexts of this process, in two namespaces that only a pair of devices joins.
func TestContextsInOtherNamespaces(t *testing.T) {
	_, ends := joinedBy(t, veth.Config{}, driver.Small, nil)
	moves(t, ends[0], ends[1], driver.Small, 100)
	nowhere := driver.Hints{Options: map[string]string{"netns": "/nowhere"}}
	if _, err := (tcpDriver{}).Query(nowhere); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a namespace that is not there: %v, want %v", err, driver.ErrInvalid)
	}
}
