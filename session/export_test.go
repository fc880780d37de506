package session

// CloseRail closes the contexts of one rail, as if its device had gone away.
func (s *Session) CloseRail(k int) { s.nics[k].close() }
