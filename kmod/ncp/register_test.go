//go:build linux && cgo

package ncp

import (
	"fmt"
	"strings"
	"testing"
)

func TestRegistrationCompletesWhenAllNICsKnow(t *testing.T) {
	c := newCluster(t, 3, limits)
	p, cookie := c.nodes[0].begin("p", "", 0, ordinary)
	_ = p
	c.nodes[0].nic.step(4)
	c.carry()
	c.nodes[1].nic.step(4)
	c.carry()
	c.nodes[0].nic.step(4)
	c.nodes[0].collect()
	if _, ok := c.nodes[0].results[cookie]; ok {
		t.Fatal("it completed before NIC 3 knew")
	}
	c.run()
	if r := c.nodes[0].result(t, cookie); r != 0 {
		t.Fatalf("result %d", r)
	}
}

func TestRegistrationFails(t *testing.T) {
	c := newCluster(t, 2, limits)
	c.nodes[1].register("there")
	first := c.nodes[0].register("here")
	c.nodes[0].begin("m", "g", 3, ordinary)
	c.run()
	for _, tc := range []struct {
		name, group string
		size        uint32
		want        int32
	}{
		{"there", "", 0, nameTaken},
		{"here", "", 0, nameTaken},
		{"", "", 0, int32(invalid)},
		{"a b", "", 0, int32(invalid)},
		{"tab\t", "", 0, int32(invalid)},
		{"\xc3\xa4", "", 0, int32(invalid)},
		{"x", "g", 2, int32(invalid)},
		{"x", "g", 0, int32(invalid)},
		{"x", "g h", 2, int32(invalid)},
	} {
		_, cookie := c.nodes[0].begin(tc.name, tc.group, tc.size, ordinary)
		c.run()
		if r := c.nodes[0].result(t, cookie); r != tc.want {
			t.Errorf("name %q, group %q of %d: got %d, want %d", tc.name, tc.group, tc.size, r, tc.want)
		}
	}
	for what, d := range map[string]driverCommand{
		"an entry that is in use": {command: newProcess, index: first.index, name: makeName("y"), process: first.hostProcess},
		"beyond the table":        {command: newProcess, index: uint16(limits.processes), name: makeName("y"), process: first.hostProcess},
		"no mappings":             {command: newProcess, index: 20, name: makeName("y")},
		"unknown command":         {command: 99},
		"join of nobody":          {command: joinGroup, index: 25, group: makeName("g"), size: 3},
		"leave of nobody":         {command: leaveGroup, index: 25, group: makeName("g")},
		"NIC 0":                   {command: addNIC},
		"itself":                  {command: addNIC, nic: 1},
		"a NIC twice":             {command: addNIC, nic: 2},
		"a NIC that is not there": {command: removeNIC, nic: 9},
	} {
		cookie := c.nodes[0].driver(d)
		c.run()
		if r := c.nodes[0].result(t, cookie); r != int32(invalid) {
			t.Errorf("%s: got %d, want %d", what, r, invalid)
		}
	}
	cookie := c.nodes[0].driver(driverCommand{command: deleteProcess, index: 25})
	c.run()
	if r := c.nodes[0].result(t, cookie); r != 0 {
		t.Errorf("deleting nobody: got %d, want 0", r)
	}
}

func TestTablesThatAreFull(t *testing.T) {
	l := limits
	l.processes, l.names, l.nics = 3, 4, 1
	c := newCluster(t, 2, l)
	for i := range 4 {
		c.nodes[i%2].register(fmt.Sprint("p", i))
	}
	_, cookie := c.nodes[0].begin("p4", "", 0, ordinary)
	c.run()
	if r := state(c.nodes[0].result(t, cookie)); r != noMemory {
		t.Fatalf("a full Name Table: got %v, want %v", r, noMemory)
	}
	cookie = c.nodes[0].driver(driverCommand{command: addNIC, nic: 3})
	c.run()
	if r := state(c.nodes[0].result(t, cookie)); r != noMemory {
		t.Fatalf("a full NIC Table: got %v, want %v", r, noMemory)
	}
}

// The other NIC's Name Table may be the one that is full. The registration then fails and does not hang.
func TestNameTableOfAnotherNICIsFull(t *testing.T) {
	c := newCluster(t, 0, limits)
	c.add(1, limits)
	small := limits
	small.processes, small.names = 1, 1
	c.add(2, small)
	c.run()
	c.nodes[0].register("p0")
	p, cookie := c.nodes[0].begin("p1", "", 0, ordinary)
	c.run()
	if r := state(c.nodes[0].result(t, cookie)); r != noMemory {
		t.Fatalf("got %v, want %v", r, noMemory)
	}
	if p.status(statusGone) == 0 {
		t.Fatal("the registration has not ended")
	}
}

func TestOneNameAtTheSameTimeIsTheLowerNICs(t *testing.T) {
	c := newCluster(t, 4, limits)
	var cookies []uint64
	for i, n := range c.nodes {
		name := "other"
		if i > 0 {
			name = "same"
		}
		_, cookie := n.begin(name, "", 0, ordinary)
		cookies = append(cookies, cookie)
	}
	for _, n := range c.nodes {
		n.nic.step(4)
	}
	c.run()
	for i, want := range []int32{0, 0, nameTaken, nameTaken} {
		if r := c.nodes[i].result(t, cookies[i]); r != want {
			t.Errorf("NIC %d: got %d, want %d", i+1, r, want)
		}
	}
	// All NICs mean the same one.
	for i, n := range c.nodes {
		p := n.register(fmt.Sprint("p", i))
		copy(p.region(false, 0), p.name)
		p.short(0, message{peer: "same", tag: uint16(i), len: 2, flags: flagDoorbell})
		c.run()
		p.wantSend(t, 0, done, 2)
	}
	if got := c.nodes[1].nic.statistics().requestsBuffered; got != 4 {
		t.Fatalf("NIC 2 got %d of 4 messages", got)
	}
}

func TestAbandonedRegistration(t *testing.T) {
	c := newCluster(t, 2, limits)
	p, cookie := c.nodes[0].begin("p", "g", 2, ordinary)
	c.run()
	c.nodes[0].driver(driverCommand{command: abandon, cookie: cookie})
	p.end()
	c.run()
	if r := state(c.nodes[0].result(t, cookie)); r != canceled {
		t.Fatalf("got %v, want canceled", r)
	}
	c.nodes[1].register("p") // the name is free
	if got := c.nodes[0].nic.statistics().processes; got != 0 {
		t.Fatalf("%d processes are left", got)
	}
}

func TestGenerationGrowsWithEachUse(t *testing.T) {
	c := newCluster(t, 1, limits)
	for want := uint16(1); want < 4; want++ {
		p := c.nodes[0].register("p")
		if pid, generation := c.nodes[0].nic.pid(p.index); pid != 1 || generation != want {
			t.Fatalf("got pid %d, generation %d, want 1, %d", pid, generation, want)
		}
		p.end()
		c.run()
		if p.status(statusGone) != 1 || p.notified() == 0 {
			t.Fatal("the process has not been told of its end")
		}
		delete(c.nodes[0].processes, 0)
		p.free()
	}
}

func TestNICThatJoinsLaterKnowsAll(t *testing.T) {
	c, ps := crowd(t, 2, 2, true)
	n := c.add(7, limits)
	c.run()
	p := n.register("late")
	p.context(false, 0, message{tag: 1, len: 4, flags: flagDoorbell | flagInline})
	p.post(cmdBroadcast, 0, 0, "all")
	c.run()
	p.wantSend(t, 0, done, 4)
	for _, q := range ps {
		q.recv(0, message{peer: "late", tag: 1, len: 4, flags: flagDoorbell | flagInline})
		c.run()
		q.wantRecv(t, 0, done, 4)
	}
}

func TestNICThatDiesIsNotWaitedFor(t *testing.T) {
	c := newCluster(t, 3, limits)
	_, first := c.nodes[0].begin("p", "g", 1, ordinary)
	c.nodes[0].nic.step(4)
	c.carry()
	c.nodes[1].nic.step(9)
	c.carry()
	c.nodes[0].nic.step(9)
	c.nodes[0].driver(driverCommand{command: removeNIC, nic: 3})
	c.nodes[0].nic.step(9)
	if r := c.nodes[0].result(t, first); r != 0 {
		t.Fatalf("result %d", r)
	}
}

func TestIdleProcessIsToldToRing(t *testing.T) {
	c, a, _ := pair(t, 1, limits)
	if a.status(statusWakeup) != 1 {
		t.Fatal("a new process is looked at")
	}
	nic := c.nodes[0].nic
	a.short(0, message{peer: "b", len: 1})
	nic.step(2)
	if a.status(statusWakeup) != 0 {
		t.Fatal("a process that has posted must ring")
	}
	for range 2000 {
		nic.step(1)
	}
	if a.status(statusWakeup) != 1 {
		t.Fatal("an idle process is still looked at")
	}
	// Not knowing who, a host says so.
	a.context(false, 0, message{peer: "b", len: 1, flags: flagDoorbell})
	p := *a
	a.node = &node{nic: nic}
	at := a.entry()
	body := a.vni[at+4 : at+64]
	clear(body)
	*a.word(a.vni, at) = cmdSendShort
	p.tail++
	nic.step(3)
	a.wantSend(t, 0, free, 0)
	nic.ring(0xffff)
	nic.step(3)
	a.wantSend(t, 0, done, 1)
	nic.needWakeup(true)
	if a.status(statusWakeup) != 1 {
		t.Fatal("the NIC sleeps and does not say so")
	}
	nic.needWakeup(false)
	if a.status(statusWakeup) != 0 {
		t.Fatal("the NIC is awake and does not say so")
	}
}

// Before a NIC sleeps it looks at all processes, also if it has just looked at a part of them: who posted after he was
// looked at does not ring.
func TestSleepingNICHasLookedAtAll(t *testing.T) {
	l := limits
	l.processes = 70 // more than are looked at in one step
	c := newCluster(t, 1, l)
	nic := c.nodes[0].nic
	var all []*process
	for k := range int(l.processes) {
		all = append(all, c.nodes[0].register(fmt.Sprint("p", k)))
	}
	for _, p := range all {
		p.post(99, 0, 0, "")
	}
	const enough = 1000 // steps
	nic.step(enough)
	for k, p := range all {
		nic.needWakeup(false)
		if nic.step(1) != 1 {
			t.Fatal("one step has looked at all")
		}
		before := nic.statistics().commands
		p.post(99, 0, 0, "")
		nic.needWakeup(true)
		nic.step(enough)
		if n := nic.statistics().commands - before; n != 1 {
			t.Errorf("process %d: %d commands were taken before the NIC sleeps, want 1", k, n)
		}
	}
}

func TestQueueHeadIsToldEveryEighthCommand(t *testing.T) {
	c, a, _ := pair(t, 1, limits)
	for i := range uint32(20) {
		a.post(99, 0, 0, "")
		c.run()
		if got, want := a.status(statusHead), (i+1)/8*8; got != want {
			t.Fatalf("after %d commands: got %d, want %d", i+1, got, want)
		}
	}
	// The driver's likewise: its queue has 64 entries, of which up to 7 may be free and not told.
	posted := 0
	for c.nodes[0].nic.post(driverCommand{command: abandon}) {
		posted++
	}
	if posted < 57 || posted > 64 {
		t.Fatalf("the driver posted %d commands, want 57 to 64", posted)
	}
	c.run()
	if !c.nodes[0].nic.post(driverCommand{command: abandon}) {
		t.Fatal("the queue is still full")
	}
}

func TestMisuse(t *testing.T) {
	c, a, b := pair(t, 1, limits)
	_ = b
	a.recv(0, message{peer: "b", len: 1, flags: flagInline})
	a.send(0, message{peer: "b", len: 1 << 20})
	c.run()
	for what, post := range map[string]func(){
		"unknown command":            func() { a.post(14, 0, 0, "") },
		"a send context beyond":      func() { a.post(cmdSend, 8, 0, "") },
		"a receive context beyond":   func() { a.post(cmdReceive, 8, 0, "") },
		"a send under way":           func() { a.post(cmdSend, 0, 0, "") },
		"a join with a send's":       func() { a.join(0, "g", 1) },
		"a receive under way":        func() { a.post(cmdReceive, 0, 0, "") },
		"canceling a send beyond":    func() { a.post(cmdCancelSend, 9, 0, "") },
		"canceling a receive beyond": func() { a.post(cmdCancelReceive, 9, 0, "") },
		"names of no multicast":      func() { a.postNames("b") },
		"a reserved field":           func() { a.postReserved(cmdSend, 1, 6) },
		"the first reserved byte":    func() { a.postReserved(cmdReceive, 1, 32) },
		"the last reserved byte":     func() { a.postReserved(cmdCancelSend, 0, 63) },
	} {
		before, rang := a.status(statusMisuse), a.status(statusTail)
		post()
		c.run()
		if got := a.status(statusMisuse); got != before+1 {
			t.Errorf("%s: misuse is %d, want %d", what, got, before+1)
		}
		if a.status(statusTail) != rang {
			t.Errorf("%s: a doorbell rang", what)
		}
	}
	s, ok := c.nodes[0].nic.processStatistics(a.index)
	if !ok || s.misuse != 12 {
		t.Fatalf("statistics: misuse %d (%v), want 12", s.misuse, ok)
	}
	if _, ok := c.nodes[0].nic.processStatistics(30); ok {
		t.Fatal("nobody has statistics")
	}
}

func TestLayoutRefusesWhatIsBeyondTheLimits(t *testing.T) {
	most := registrationSizes{commands: 4096, sends: 4096, receives: 4096, regionSize: 16384, poolEntries: 65536}
	for _, r := range []registrationSizes{most, {commands: 1, sends: 1, receives: 1}, ordinary} {
		info, err := layoutOf(r)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		end := info.bufferPool + 16*r.poolEntries
		if info.sendContexts != info.commandQueue+64*r.commands || info.receiveContexts != info.sendContexts+64*r.sends ||
			info.sendRegions != info.receiveContexts+64*r.receives || info.receiveRegions != info.sendRegions+r.sends*r.regionSize ||
			info.bufferPool != info.receiveRegions+r.receives*r.regionSize || info.vniSize < end || info.vniSize%4096 != 0 {
			t.Errorf("the interface of %+v: %+v", r, info)
		}
		if info.status < 80 || info.sendDoorbells < info.status+192 || info.receiveDoorbells < info.sendDoorbells+8*r.sends ||
			info.doorbellRing < info.receiveDoorbells+8*r.receives || info.ringEntries < r.sends+r.receives ||
			info.hpsSize < info.doorbellRing+4*info.ringEntries || info.hpsSize%4096 != 0 {
			t.Errorf("the host page of %+v: %+v", r, info)
		}
	}
	for what, change := range map[string]func(*registrationSizes){
		"no command":               func(r *registrationSizes) { r.commands = 0 },
		"commands no power of two": func(r *registrationSizes) { r.commands = 48 },
		"commands":                 func(r *registrationSizes) { r.commands = 8192 },
		"no send":                  func(r *registrationSizes) { r.sends = 0 },
		"sends":                    func(r *registrationSizes) { r.sends = 4097 },
		"no receive":               func(r *registrationSizes) { r.receives = 0 },
		"receives":                 func(r *registrationSizes) { r.receives = 1 << 31 },
		"region":                   func(r *registrationSizes) { r.regionSize = 16384 + 64 },
		"region of no lines":       func(r *registrationSizes) { r.regionSize = 100 },
		"pool":                     func(r *registrationSizes) { r.poolEntries = 65537 },
	} {
		r := ordinary
		change(&r)
		if _, err := layoutOf(r); err == nil {
			t.Errorf("%s: allowed", what)
		}
	}
}

func TestLimitsThatAreNotAllowed(t *testing.T) {
	for what, change := range map[string]func(*tableLimits){
		"no process":            func(l *tableLimits) { l.processes = 0 },
		"65536 processes":       func(l *tableLimits) { l.processes, l.names = 65536, 65536 },
		"fewer names":           func(l *tableLimits) { l.names = l.processes - 1 },
		"no NIC":                func(l *tableLimits) { l.nics = 0 },
		"no group":              func(l *tableLimits) { l.groups = 0 },
		"packets of 1023 bytes": func(l *tableLimits) { l.packetSize = 1023 },
		"packets of 65537":      func(l *tableLimits) { l.packetSize = 65537 },
	} {
		l := limits
		change(&l)
		if n, err := newNIC(1, l, 4096); err == nil {
			n.close()
			t.Errorf("%s: allowed", what)
		} else if !strings.Contains(err.Error(), "NIC 1") {
			t.Errorf("%s: the error %q does not say which NIC", what, err)
		}
	}
	if n, err := newNIC(0, limits, 4096); err == nil {
		n.close()
		t.Error("NIC 0: allowed")
	}
}
