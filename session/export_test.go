package session

// CloseRail closes the contexts of one rail, as if its device had gone away; between messages, as closing takes away the memory
// in which they lie.
func (s *Session) CloseRail(k int) {
	s.mu.lock()
	defer s.mu.unlock()
	s.nics[k].close()
}

// Knock has this session hear a knock of another one's connection with that number. It
// tells whether the gate to there is idle after it.
func (s *Session) Knock(from *Session, number uint64) (idle bool) {
	k := knock{rank: uint32(from.rank), from: from.card.incarnation, to: s.card.incarnation, dial: number}
	s.knocked(k.append(nil, s.job.Secret()))
	s.mu.lock()
	defer s.mu.unlock()
	return s.gates[from.rank].state == gateIdle
}
