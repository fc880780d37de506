package kit

import (
	"fmt"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// OpenOnce is the one opening of a NIC that was queried, for drivers. The zero value is for a NIC that is not open yet.
type OpenOnce struct{ opened atomic.Bool }

// Open is Open of [driver.NIC], which open does; its errors get the driver's name and, unless that is empty, the
// device's.
func (o *OpenOnce) Open(name, device string, open func() (driver.Context, error)) (driver.Context, error) {
	if o.opened.Swap(true) {
		return nil, &driver.Error{Driver: name, Op: "open", Err: fmt.Errorf("%w: opened before; query again", driver.ErrInvalid)}
	}
	c, err := open()
	if err != nil {
		if device != "" {
			err = fmt.Errorf("%s: %w", device, err)
		}
		return nil, &driver.Error{Driver: name, Op: "open", Err: err}
	}
	driver.Opened(c)
	return c, nil
}
