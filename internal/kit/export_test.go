package kit

// The parts of Small are tested by themselves.
type (
	Receives   = receives
	SendBuffer = sendBuffer
)

// SetHooks replaces the driver's part of a connection.
func (c *Conn) SetHooks(h ConnHooks) { c.hooks = h }

// EndClose is what Conn.Shut does after Close.
func (l *Life) EndClose() { close(l.shut) }
