//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// process is a process registered with a QNIX network interface. Its contexts are divided among the connections.
type process struct {
	kit.Context[conn]

	opts options
	name nic.Name
	key  *kit.Key // of the secret

	place place // as published

	nic      *nic.NIC
	proc     *nic.Process
	cache    *regcache.Cache[nic.Handle]
	expected int           // peers; 0: it is not known
	soft     bool          // the NIC is a process
	polls    atomic.Uint32 // without a result

	polled atomic.Bool // since the background goroutine looked

	doorbells doorbells
	fence     fence
	waits     kit.Watch

	backgroundSleeps atomic.Bool
	failing          atomic.Bool                // the NIC is gone
	answers          atomic.Pointer[time.Timer] // from Close on: bounds how long the NIC may take to answer
	retry            atomic.Bool                // a post by the background goroutine found the Command Queue full
	bad              atomic.Uint64
	refusals         atomic.Uint64
	workList         workList
	backgroundWoken  chan struct{}
	progress         chan struct{} // the background goroutine has polled everything

	// Guarded by Mu.
	failed   error
	all      map[*conn]struct{} // connections that are open or being retired
	peers    map[uint64]*peer
	lost     map[uint64]peerTags // of peers that were lost, and may come back, at most maxLost
	retirees []*conn
	nextCall uint32
	sends    idAllocator
	receives idAllocator
	selfTags idAllocator
	staging  kit.Staging
	live     context.Context
	stop     context.CancelFunc
	tasks    sync.WaitGroup
}

// smallContext adds the methods of the small track to a context.
type smallContext struct {
	*process
	kit.Prober[conn]
}

var (
	_ driver.Prober          = smallContext{}
	_ kit.ContextHooks[conn] = (*process)(nil)
)

func openContext(props driver.Properties, o options, a driver.Attributes) (_ *process, err error) {
	key, err := kit.NewKey(a.Secret)
	if err != nil {
		return nil, err
	}
	c := &process{
		opts: o, key: key,
		all: make(map[*conn]struct{}), peers: make(map[uint64]*peer), lost: make(map[uint64]peerTags),
		selfTags: newIDAllocator(controlTag+1, maxTags-controlTag-1), backgroundWoken: make(chan struct{}, 1), progress: make(chan struct{}, 1),
	}
	self := driver.Context(c)
	if props.Track == driver.Small {
		self = smallContext{c, c.Prober()}
	}
	c.Init(c, func(n *conn) *kit.Conn { return &n.Conn }, self, props, urlVersion, a)
	c.waits = kit.Watch{Device: ring{c}, Spins: spins, Long: true}
	c.Anyone.Watch = &c.waits
	c.live, c.stop = context.WithCancel(context.Background())
	c.name = processName(c.Incarnation, props.Track)
	if c.nic, err = openNIC(props.Device, o); err != nil {
		return nil, err
	}
	if err = c.register(max(a.SessionSize, o.peers)); err != nil {
		_ = c.nic.Close()
		return nil, err
	}
	c.cache = regcache.New[nic.Handle](registrar{c.proc}, regcache.Config{
		Name: Name + " " + props.Device, MaxRegions: max(1, c.nic.Info().MaxTranslations/2),
	})
	c.place = place{nic: c.proc.NIC(), track: props.Track}
	if c.place.home, err = homeOf(props.Device); err == nil {
		err = c.Publish(c.place.String(), c.place.domain())
	}
	if err != nil {
		_ = c.Release()
		return nil, err
	}
	c.tasks.Go(c.background)
	return c, nil
}

// register registers the process, with contexts for that many peers.
func (c *process) register(peers int) error {
	info := c.nic.Info()
	c.soft, c.expected = info.Soft, peers
	each, region := c.opts.window+3, roundUp(c.opts.buffer+dataHead, 64)
	if c.Props.Track == driver.Large {
		each, region = transferDepth+3, largeRegion
	}
	want := max(c.opts.contexts, min(peers, 1<<16)*each)
	want = min(want, info.MaxContexts)
	sends := min(want+1, info.MaxContexts) // with that of the fence
	commands := min(1<<bits.Len(uint(2*want)), info.MaxCommands)
	proc, err := c.nic.Register(c.live, nic.Config{
		Name: c.name.String(), Commands: commands, Sends: sends, Receives: want, RegionSize: region,
	})
	if err != nil {
		return err
	}
	c.proc = proc
	c.sends, c.receives = newIDAllocator(0, sends), newIDAllocator(0, want)
	c.doorbells.sends, c.doorbells.receives = make([]ref, sends), make([]ref, want)
	c.fence.context, _ = c.sends.take(1)
	return nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

func (c *process) Dial(num uint32, url string, to driver.URL) (*conn, error) {
	at, err := placeOf(to)
	switch {
	case err != nil:
		return nil, err
	case at.track != c.Props.Track:
		return nil, fmt.Errorf("%w: the url is of a context for the %v track, this one is for the %v track", driver.ErrInvalid, at.track, c.Props.Track)
	case c.failed != nil:
		return nil, c.failed
	}
	var p *peer
	tags := &c.selfTags
	if to.Incarnation != c.Incarnation {
		if p, err = c.peerOf(to.Incarnation, at.nic); err != nil {
			return nil, err
		}
		tags = &p.tags.idAllocator
	}
	n, err := c.newConn(p, tags)
	if err != nil {
		return nil, err
	}
	c.Add(n, num, url, n.api, n.api)
	c.all[n] = struct{}{}
	c.own(n, n)
	switch {
	case p == nil:
		n.theirs, n.stage = n.call, stageUp
		n.api.prepare()
		n.Resolve(kit.StateUp, nil)
	case p.gone != nil:
		p.conns[n.call.number] = n
		n.Fail(p.gone)
	default:
		p.conns[n.call.number] = n
		p.mine = append(p.mine, n)
		p.sendControl(&control{kind: kindCall, call: n.call})
		p.join()
	}
	c.kick()
	return n, nil
}

// newConn makes a connection with its contexts and tags. The caller holds Mu.
func (c *process) newConn(p *peer, tags *idAllocator) (*conn, error) {
	var n *conn
	receives, sends := transferDepth+1, transferDepth
	if c.Props.Track == driver.Large {
		l := newLarge(c)
		n, l.api = &l.conn, l
	} else {
		// With many connections each gets fewer contexts, so that some are left for further ones.
		left := min(c.sends.left, c.receives.left)
		w := min(c.opts.window, max(2, left/16))
		if others := c.expected - len(c.all); others > 0 && left < c.proc.Receives()/2 {
			w = min(w, max(2, left/others-3))
		}
		receives, sends = w+1, w+1
		s := newSmall(w)
		n, s.api = &s.conn, s
	}
	n.ctx, n.peer, n.name = c, p, c.name
	c.nextCall++
	n.call = call{from: c.Incarnation, to: c.Incarnation, number: c.nextCall, track: c.Props.Track, buffer: uint32(c.opts.buffer)}
	if p != nil {
		n.name, n.call.to = p.name, p.incarnation
	}
	n.call.receives, n.call.sends = uint16(receives-1), uint16(transferDepth)
	if c.Props.Track == driver.Small {
		n.call.sends = uint16(sends - 1)
	}
	_, _ = rand.Read(n.call.nonce[:])
	var token [8]byte
	_, _ = rand.Read(token[:])
	n.call.token = binary.LittleEndian.Uint64(token[:])
	s, ok1 := c.sends.take(sends)
	r, ok2 := c.receives.take(receives)
	t, ok3 := tags.take(tagsOf(c.Props.Track, int(n.call.receives)))
	n.sends, n.receives, n.call.tags = idRange{s, sends}, idRange{r, receives}, uint16(t)
	if !ok1 || !ok2 || !ok3 {
		n.sends.n, n.receives.n = sends*btoi(ok1), receives*btoi(ok2)
		c.giveBack(n.sends, n.receives)
		if ok3 {
			tags.put(t, tagsOf(c.Props.Track, int(n.call.receives)))
		}
		return nil, c.noContexts()
	}
	return n, nil
}

func (c *process) noContexts() error {
	remedy := "open with option contexts, or Hints.Peers"
	if c.proc.Receives() == c.nic.Info().MaxContexts {
		remedy = "the NIC gives no process more"
	}
	return fmt.Errorf("%w: all %d contexts of the process are in use: disconnect (%s)", driver.ErrBusy, c.proc.Receives(), remedy)
}

// giveBack frees contexts that have no posted operation, and no doorbell that was not drained.
func (c *process) giveBack(sends, receives idRange) {
	if sends.n > 0 {
		c.sends.put(sends.at, sends.n)
	}
	if receives.n > 0 {
		c.receives.put(receives.at, receives.n)
	}
}

// post handles the result of a post by the background goroutine. A post that found the queue full is tried again.
func (c *process) post(err error) bool {
	switch err {
	case nil:
		return true
	case nic.ErrBusy:
		c.retry.Store(true)
		return false
	}
	c.nicFailed(err)
	return false
}

func (c *process) kick() {
	if err := c.proc.Kick(); err != nil {
		c.nicFailed(err)
	}
}

func (c *process) Reach(to driver.URL) error {
	at, err := placeOf(to)
	if err != nil {
		return err
	}
	if why := c.place.apart(at); why != "" {
		return fmt.Errorf("%w: %s", driver.ErrUnreachable, why)
	}
	return nil
}

func (c *process) Count(to *driver.Counters) {
	to.BadFrames += c.bad.Load()
	to.Refused += c.refusals.Load()
	r := c.cache.Counters()
	to.RegistrationHits += r.Hits
	to.RegistrationMisses += r.Misses
	to.RegistrationEvictions += r.Evicted
}

// Close implements driver.Context. A softnic that is stopped does not answer, and calls that wait for it hold
// connections. The time limit for its answers therefore begins before the connections are closed.
func (c *process) Close() error {
	answers := time.AfterFunc(c.leaveTime()+answerTime, c.proc.Abandon)
	defer answers.Stop()
	c.answers.CompareAndSwap(nil, answers)
	return c.Context.Close()
}

func (c *process) Release() error {
	c.leaveAll()
	c.stop()
	c.wakeBackground()
	c.tasks.Wait()
	if answers := c.answers.Load(); answers != nil { // nil if opening has failed
		answers.Stop()
	}
	err := c.proc.Deregister()
	if c.failing.Swap(true) {
		err = nil // the NIC had ended before
	}
	select {
	case <-c.proc.Outside(): // from here on the NIC accesses no memory
		err = errors.Join(err, c.letGo())
	default:
		// A softnic that is stopped may be in the middle of a copy: posted memory stays posted and pinned until it
		// continues or dies.
		err = nil
		go func() {
			<-c.proc.Outside()
			_ = c.letGo()
		}()
	}
	return errors.Join(err, c.nic.Close())
}

// letGo gives all memory back. The NIC does not access it any more.
func (c *process) letGo() error {
	c.Mu.Lock()
	for n := range c.all {
		n.api.settled()
	}
	c.Mu.Unlock()
	err := c.cache.Close()
	c.staging.Close()
	return err
}

// answerTime is how long a softnic may take, during Close, for calls that it must answer.
const answerTime = 2 * time.Second

// leaveTime returns how long peers may take to confirm that this side leaves.
func (c *process) leaveTime() time.Duration { return min(c.opts.deadTime, 2*time.Second) }

// leaveAll notifies the peers that this side leaves, and waits a limited time for their confirmation.
func (c *process) leaveAll() {
	limit := time.NewTimer(c.leaveTime())
	defer limit.Stop()
	for {
		c.Mu.Lock()
		left := 0
		for n := range c.all {
			if !n.retiring {
				left++
			}
		}
		failed := c.failed
		for _, p := range c.peers {
			if s, _ := c.proc.SendDoorbell(p.send); p.gone == nil && (len(p.out) > 0 || s == nic.Pending) {
				left++
			}
		}
		c.Mu.Unlock()
		if left == 0 || failed != nil {
			return
		}
		select {
		case <-c.progress:
		case <-limit.C:
			return
		}
	}
}
