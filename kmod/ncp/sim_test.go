//go:build linux && cgo

package ncp

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	simSeed  = flag.Int64("sim.seed", -1, "replay this seed of TestSimulation, and trace it")
	simSeeds = flag.Int("sim.seeds", 1500, "how many seeds TestSimulation tries")
	simMost  = flag.Bool("sim.most", os.Getenv("BYWASH_SOAK") != "", "simulate up to 64 NICs and 1000 processes")
)

const (
	simTags    = 3
	simMessage = 6000 // bytes of the longest
)

// sim is a cluster under random commands, delays and deaths, with what must come out of it.
type sim struct {
	*cluster
	rng    *rand.Rand
	trace  bool
	actors []*actor
	groups []*simGroup
	flows  map[flowKey]*flow
	byID   []*simMessageSent
	lastID uint16 // coordinates
	base   map[*node]uint64
	now    int // counts events of groups
	most   int // processes
	stats  simStats
}

type simStats struct{ sent, received, takenEarly, barriers, checked, joins, deaths, steps int }

// actor is a process of the simulation; its uid is its name for all time.
type actor struct {
	*process
	uid        int
	cookie     uint64
	registered bool
	dead       bool // its end was posted, or its NIC died
	nicDead    bool
	sends      []simSend
	receives   []simReceive
	out, in    []byte
	outH, inH  uint32
	groups     map[*simGroup]*membership
}

// failure ends one seed.
type failure string

func (s *sim) failf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

func (s *sim) tracef(format string, args ...any) {
	if s.trace {
		fmt.Printf(format+"\n", args...)
	}
}

func (s *sim) chance(percent int) bool { return s.rng.IntN(100) < percent }

func newSim(t testing.TB, seed int64, trace, most bool) *sim {
	s := &sim{cluster: &cluster{t: t}, rng: rand.New(rand.NewPCG(uint64(seed), 1)), trace: trace,
		flows: map[flowKey]*flow{}, base: map[*node]uint64{}}
	nics := 1 + s.rng.IntN(4)
	s.most = 2 + s.rng.IntN(8)
	if most {
		nics = 1 + s.rng.IntN(64)
		s.most = 2 + s.rng.IntN(999)
	}
	for range nics {
		s.addNIC()
	}
	for i := range s.rng.IntN(4) {
		s.groups = append(s.groups, &simGroup{name: fmt.Sprint("g", i), size: 1 + s.rng.IntN(min(s.most, 40))})
	}
	for range s.most {
		s.register()
	}
	return s
}

func (s *sim) addNIC() {
	s.lastID++
	l := tableLimits{processes: 1024, names: 2048, groups: 8, nics: 64, packetSize: 1024,
		localMemory: uint32(s.rng.IntN(8)) * 8192}
	nic, err := newNIC(s.lastID, l, 4096+s.rng.IntN(1<<14))
	if err != nil {
		s.t.Fatal(err)
	}
	n := &node{nic: nic, cluster: s.cluster, processes: map[uint16]*process{}, results: map[uint64]int32{}}
	s.base[n] = nic.allocated()
	for _, m := range s.nodes {
		m.driver(driverCommand{command: addNIC, nic: s.lastID})
		n.driver(driverCommand{command: addNIC, nic: m.nic.id})
	}
	s.nodes = append(s.nodes, n)
	s.tracef("NIC %d", s.lastID)
}

func (s *sim) register() {
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	r := registrationSizes{commands: 8 << s.rng.IntN(3), sends: 1 + uint32(s.rng.IntN(6)), receives: 1 + uint32(s.rng.IntN(6)),
		regionSize: 512, poolEntries: 32}
	var group *simGroup
	if len(s.groups) > 0 && s.chance(50) {
		if g := s.groups[s.rng.IntN(len(s.groups))]; g.count() < g.size {
			group = g
		}
	}
	s.registerOn(n, group, r)
}

// registerOn begins a registration on NIC n, in a group if it is not nil.
func (s *sim) registerOn(n *node, g *simGroup, r registrationSizes) *actor {
	a := &actor{uid: len(s.actors), groups: map[*simGroup]*membership{}}
	group, size := "", uint32(0)
	if g != nil {
		group, size = g.name, uint32(g.size)
		g.join(a)
	}
	a.process, a.cookie = n.begin(fmt.Sprint("p", a.uid), group, size, r)
	a.sends = make([]simSend, r.sends)
	a.receives = make([]simReceive, r.receives)
	a.out, a.in = newMemory(simMessage*len(a.sends)), newMemory(simMessage*len(a.receives))
	a.outH, a.inH = a.translate(a.out, readAccess), a.translate(a.in, writeAccess)
	s.expect(a)
	s.actors = append(s.actors, a)
	s.tracef("p%d registers on NIC %d, group %q", a.uid, n.nic.id, group)
	return a
}

// kill ends a process in order: it may be in the middle of anything.
func (s *sim) kill(a *actor) {
	s.tracef("p%d ends", a.uid)
	s.listen(a)
	s.stats.deaths++
	a.dead = true
	for g := range a.groups {
		g.leave(a)
	}
	a.end()
}

// killNIC ends a NIC without a word; the others hear it from their hosts, each in its own time.
func (s *sim) killNIC(n *node) {
	s.tracef("NIC %d dies", n.nic.id)
	for _, a := range s.actors {
		if a.node == n && !a.nicDead {
			s.listen(a)
			a.nicDead = true
			if !a.dead {
				a.dead = true
				for g := range a.groups {
					g.leave(a)
				}
			}
		}
	}
	for i, m := range s.nodes {
		if m == n {
			s.nodes = append(s.nodes[:i:i], s.nodes[i+1:]...)
			break
		}
	}
	for _, m := range s.nodes {
		m.driver(driverCommand{command: removeNIC, nic: n.nic.id})
	}
	if leaked := n.nic.close(); leaked != 0 {
		s.failf("NIC %d leaks %d bytes when it is closed", n.nic.id, leaked)
	}
}

func (s *sim) alive() (all []*actor) {
	for _, a := range s.actors {
		if !a.dead && a.registered {
			all = append(all, a)
		}
	}
	return all
}

// move runs some NICs a little and carries some frames: order holds only between two NICs.
func (s *sim) move() {
	for range 1 + s.rng.IntN(2*len(s.nodes)) {
		n := s.nodes[s.rng.IntN(len(s.nodes))]
		s.stats.steps += n.nic.step(1 + s.rng.IntN(6))
		n.collect()
		if s.chance(5) {
			n.nic.needWakeup(s.chance(50))
		}
	}
	for range len(s.nodes) * 2 {
		n, m := s.nodes[s.rng.IntN(len(s.nodes))], s.nodes[s.rng.IntN(len(s.nodes))]
		if n != m {
			n.nic.carry(m.nic, 1+s.rng.IntN(4))
		}
	}
	for _, a := range s.actors {
		s.listen(a)
	}
}

func (s *sim) round() {
	live := s.alive()
	if s.chance(3) && len(s.actors) < 2*s.most {
		s.register()
	}
	if s.chance(2) && len(live) > 2 {
		s.kill(live[s.rng.IntN(len(live))])
		live = s.alive()
	}
	if s.chance(1) && len(s.nodes) > 2 {
		s.killNIC(s.nodes[s.rng.IntN(len(s.nodes))])
		live = s.alive()
	}
	if s.chance(1) && len(s.nodes) < 8 {
		s.addNIC()
	}
	for range s.rng.IntN(2 + min(len(live), 50)) {
		if len(live) > 0 {
			s.act(live[s.rng.IntN(len(live))])
		}
	}
	s.move()
}

// settle lets everything happen that can.
func (s *sim) settle() {
	s.run()
	for _, a := range s.actors {
		s.listen(a)
	}
}

func (s *sim) free() {
	for _, n := range s.nodes {
		n.nic.close()
	}
	for _, a := range s.actors {
		freeMemory(a.out)
		freeMemory(a.in)
		a.free()
	}
}

// simulate runs one seed; it gives back what went wrong.
func simulate(t testing.TB, seed int64, trace, most bool) (wrong failure, stats simStats) {
	s := newSim(t, seed, trace, most)
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			wrong = f
		}
		stats = s.stats
		s.free()
	}()
	rounds := 40 + s.rng.IntN(80)
	if most {
		s.settle() // with so many, registering alone would take all rounds
		rounds *= 2
	}
	for range rounds {
		s.round()
	}
	s.settle()
	s.checkGroups()
	s.drain()
	s.checkFlows()
	s.checkEmpty()
	for _, n := range s.nodes {
		s.stats.takenEarly += n.nic.takenEarly()
	}
	return "", stats
}

func TestSimulation(t *testing.T) {
	if *simSeed >= 0 {
		if wrong, _ := simulate(t, *simSeed, true, *simMost); wrong != "" {
			t.Fatal(wrong)
		}
		return
	}
	seeds, most := *simSeeds, *simMost
	if testing.Short() && seeds > 300 {
		seeds = 300
	}
	if most && seeds > 20 && os.Getenv("BYWASH_SOAK_SEEDS") == "" {
		seeds = 20
	}
	if n, err := strconv.Atoi(os.Getenv("BYWASH_SOAK_SEEDS")); err == nil {
		seeds = n
	}
	var next atomic.Int64
	var all simStats
	var lock sync.Mutex
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for !t.Failed() {
				seed := next.Add(1)
				if seed > int64(seeds) {
					return
				}
				wrong, stats := simulate(t, seed, false, most)
				if wrong != "" {
					t.Errorf("seed %d: %s (replay: go test ./kmod/ncp -run TestSimulation -sim.seed %d -sim.most=%v)",
						seed, wrong, seed, most)
				}
				lock.Lock()
				all.sent += stats.sent
				all.received += stats.received
				all.takenEarly += stats.takenEarly
				all.barriers += stats.barriers
				all.checked += stats.checked
				all.joins += stats.joins
				all.deaths += stats.deaths
				all.steps += stats.steps
				lock.Unlock()
			}
		})
	}
	wait.Wait()
	t.Logf("%d seeds: %+v", seeds, all)
	tried := min(all.received, all.takenEarly, all.checked, all.joins, all.deaths) > 0
	if !t.Failed() && seeds >= 100 && !tried {
		t.Fatal("the simulation has not tried all that it is for")
	}
}
