package kit

// The parts of Small are tested by themselves.
type (
	Receives   = receives
	SendBuffer = sendBuffer
)
