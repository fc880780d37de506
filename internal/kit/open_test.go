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

func TestNICIsOpenedOnce(t *testing.T) {
	for device, prefix := range map[string]string{"eth7": "eth7: ", "": ""} {
		var o kit.OpenOnce
		c := &opened{}
		if got, err := o.Open("test", device, func() (driver.Context, error) { return c, nil }); err != nil || got != driver.Context(c) {
			t.Errorf("%v, %v", got, err)
		}
		if !slices.Contains(driver.Contexts(), driver.Context(c)) {
			t.Error("it is not listed")
		}
		driver.Closed(c)
		if _, err := o.Open("test", device, nil); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("again: %v", err)
		}
		var bad kit.OpenOnce
		_, err := bad.Open("test", device, func() (driver.Context, error) { return nil, errLost })
		if e, ok := errors.AsType[*driver.Error](err); !ok || e.Op != "open" || e.Err.Error() != prefix+errLost.Error() || !errors.Is(err, errLost) {
			t.Errorf("%v", err)
		}
	}
}
