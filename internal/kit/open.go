package kit

import (
	"fmt"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// NIC is a NIC that a driver was queried for.
type NIC struct {
	props  driver.Properties
	open   func(driver.Attributes) (driver.Context, error)
	opened atomic.Bool
}

// NewNIC makes a NIC that open opens, once; its errors get the names of the driver and of the device.
func NewNIC[C interface{ Self() driver.Context }](props driver.Properties, open func(driver.Attributes) (C, error)) *NIC {
	return &NIC{props: props, open: func(a driver.Attributes) (driver.Context, error) {
		c, err := open(a)
		if err != nil {
			return nil, err
		}
		return c.Self(), nil
	}}
}

// Properties implements [driver.NIC].
func (n *NIC) Properties() *driver.Properties { return &n.props }

// Open implements [driver.NIC].
func (n *NIC) Open(a driver.Attributes) (driver.Context, error) {
	fail := func(err error) error { return &driver.Error{Driver: n.props.Driver, Op: "open", Err: err} }
	if n.opened.Swap(true) {
		return nil, fail(fmt.Errorf("%w: opened before; query again", driver.ErrInvalid))
	}
	c, err := n.open(a)
	if err != nil {
		return nil, fail(fmt.Errorf("%s: %w", n.props.Device, err))
	}
	driver.Opened(c)
	return c, nil
}
