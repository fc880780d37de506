package kit_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// opened is a context that is only listed.
type opened struct {
	driver.Context
	_ int
}

func (o *opened) Self() driver.Context { return o }

func TestNICIsOpenedOnce(t *testing.T) {
	c := &opened{}
	props := driver.Properties{Driver: "test", Device: "eth7"}
	n := kit.NewNIC(props, func(driver.Attributes) (*opened, error) { return c, nil })
	if got, err := n.Open(driver.Attributes{}); err != nil || got != driver.Context(c) {
		t.Errorf("%v, %v", got, err)
	}
	if !slices.Contains(driver.Contexts(), driver.Context(c)) {
		t.Error("it is not listed")
	}
	driver.Closed(c)
	if _, err := n.Open(driver.Attributes{}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("again: %v", err)
	}
	_, err := kit.NewNIC(props, func(driver.Attributes) (*opened, error) { return nil, errLost }).Open(driver.Attributes{})
	if e, ok := errors.AsType[*driver.Error](err); !ok || e.Op != "open" || e.Err.Error() != "eth7: "+errLost.Error() || !errors.Is(err, errLost) {
		t.Errorf("%v", err)
	}
}
