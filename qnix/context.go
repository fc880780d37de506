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
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/qnix/nic"
)

// Context is a process of a QNIX network interface: its contexts, divided among the connections.
type Context struct {
	api         driver.Context // this context, with the methods of its track
	props       driver.Properties
	opts        options
	incarnation uint64
	name        nic.Name
	url         string
	secret      []byte

	nic   *nic.NIC
	proc  *nic.Process
	cache *regcache.Cache[nic.Handle]
	soft  bool // the NIC is a process
	polls atomic.Uint32

	bells  bells
	conns  kit.Connections[conn]
	waits  kit.Watch
	anyone kit.AnyWaits

	keeperSleeps atomic.Bool
	failing      atomic.Bool // the NIC is gone
	retry        atomic.Bool // a post of the keeper's found the Command Queue full
	bad          atomic.Uint64
	refusals     atomic.Uint64
	attention    attention
	nudged       chan struct{}
	progress     chan struct{} // the keeper has looked at everything

	mu       sync.Mutex
	closed   bool
	failed   error
	all      map[*conn]struct{} // that are open, or being retired
	peers    map[uint64]*peer
	retirees []*conn
	nextCall uint32
	sends    spans
	receives spans
	selfTags spans
	staging  kit.Staging
	live     context.Context
	stop     context.CancelFunc
	tasks    sync.WaitGroup
}

// smallContext gives a context the methods of its track only.
type smallContext struct{ *Context }

var (
	_ driver.Prober  = smallContext{}
	_ driver.Context = (*Context)(nil)
)

func openContext(props driver.Properties, o options, a driver.Attributes) (_ *Context, err error) {
	c := &Context{
		props: props, opts: o, secret: a.Secret,
		all: make(map[*conn]struct{}), peers: make(map[uint64]*peer),
		selfTags: newSpans(controlTag+1, maxTags-controlTag-1), nudged: make(chan struct{}, 1), progress: make(chan struct{}, 1),
	}
	c.waits = kit.Watch{Device: ring{c}, Spins: spins, Long: true}
	c.anyone.Watch = &c.waits
	c.conns.Init(func(n *conn) *kit.Life { return &n.life })
	c.api = c
	if props.Track == driver.Small {
		c.api = smallContext{c}
	}
	c.live, c.stop = context.WithCancel(context.Background())
	c.incarnation = kit.NewIncarnation(a)
	c.name = processName(c.incarnation, props.Track)
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
	at := place{nic: c.proc.NIC(), track: props.Track}
	c.url = driver.URL{Driver: Name, Version: URLVersion, Incarnation: c.incarnation, Rest: at.String()}.String()
	c.tasks.Go(c.keep)
	return c, nil
}

// register makes the process, with contexts for so many peers.
func (c *Context) register(peers int) error {
	info := c.nic.Info()
	c.soft = info.Soft
	each, region := c.opts.window+2, roundUp(c.opts.buffer+dataHead, 64)
	if c.props.Track == driver.Large {
		each, region = transferDepth+2, largeRegion
	}
	want := max(c.opts.contexts, min(peers, 1<<16)*each)
	want = min(want, info.MaxContexts)
	commands := min(1<<bits.Len(uint(2*want)), info.MaxCommands)
	proc, err := c.nic.Register(c.live, nic.Config{
		Name: c.name.String(), Commands: commands, Sends: want, Receives: want, RegionSize: region,
	})
	if err != nil {
		return err
	}
	c.proc = proc
	c.sends, c.receives = newSpans(0, want), newSpans(0, want)
	c.bells.sends, c.bells.receives = make([]ref, want), make([]ref, want)
	return nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// Properties implements driver.Context.
func (c *Context) Properties() *driver.Properties { return &c.props }

// URL implements driver.Context.
func (c *Context) URL() string { return c.url }

func (c *Context) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Connect implements driver.Context.
func (c *Context) Connect(peer string) (driver.Instance, error) {
	incarnation, at, err := parseURL(peer)
	if err == nil && at.track != c.props.Track {
		err = fmt.Errorf("%w: the url is of a context for the %v track, this one is for the %v track", driver.ErrInvalid, at.track, c.props.Track)
	}
	if err != nil {
		return nil, &driver.Error{Driver: Name, Op: "connect", Err: err}
	}
	n, err := c.connect(peer, incarnation)
	if err != nil {
		return nil, &driver.Error{Driver: Name, Peer: peer, Op: "connect", Err: fmt.Errorf("%s: %w", c.props.Device, err)}
	}
	return n.api, nil
}

func (c *Context) connect(url string, incarnation uint64) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, driver.ErrClosed
	}
	if c.failed != nil {
		return nil, c.failed
	}
	num, err := c.conns.Free()
	if err != nil {
		return nil, err
	}
	var p *peer
	tags := &c.selfTags
	if incarnation != c.incarnation {
		if p, err = c.peerOf(incarnation); err != nil {
			return nil, err
		}
		tags = &p.tags
	}
	n, err := c.newConn(num, url, p, tags)
	if err != nil {
		return nil, err
	}
	c.all[n] = struct{}{}
	c.own(n, n)
	c.conns.Put(num, n)
	c.conns.Open(n)
	switch {
	case p == nil:
		n.theirs, n.stage = n.call, stageStanding
		n.api.prepare()
		n.resolve(kit.StateUp, nil)
	case p.gone != nil:
		p.conns[n.call.number] = n
		n.fail(p.gone)
	default:
		p.conns[n.call.number] = n
		p.mine = append(p.mine, n)
		p.tell(&control{kind: kindCall, call: n.call})
		p.join()
	}
	c.kick()
	return n, nil
}

// newConn takes what a connection needs. The caller holds mu.
func (c *Context) newConn(num uint32, url string, p *peer, tags *spans) (*conn, error) {
	var n *conn
	receives, sends := transferDepth+1, transferDepth
	if c.props.Track == driver.Large {
		l := newLarge()
		n, l.api = &l.conn, l
	} else {
		// With many connections each has less, so that there is something left for further ones.
		w := min(c.opts.window, max(2, min(c.sends.left, c.receives.left)/16))
		receives, sends = w+1, w+1
		s := newSmall(w)
		n, s.api = &s.conn, s
	}
	n.ctx, n.num, n.peer, n.name = c, num, p, c.name
	c.nextCall++
	n.call = call{from: c.incarnation, to: c.incarnation, number: c.nextCall, track: c.props.Track, buffer: uint32(c.opts.buffer)}
	if p != nil {
		n.name, n.call.to = p.name, p.incarnation
	}
	n.call.receives, n.call.sends = uint16(receives-1), uint16(transferDepth)
	if c.props.Track == driver.Small {
		n.call.sends = uint16(sends - 1)
	}
	_, _ = rand.Read(n.call.nonce[:])
	var token [8]byte
	_, _ = rand.Read(token[:])
	n.call.token = binary.LittleEndian.Uint64(token[:])
	s, ok1 := c.sends.take(sends)
	r, ok2 := c.receives.take(receives)
	t, ok3 := tags.take(tagsOf(c.props.Track, int(n.call.receives)))
	n.sends, n.receives, n.call.tags = span{s, sends}, span{r, receives}, uint16(t)
	if !ok1 || !ok2 || !ok3 {
		n.sends.n, n.receives.n = sends*btoi(ok1), receives*btoi(ok2)
		c.giveBack(n.sends, n.receives)
		if ok3 {
			tags.put(t, tagsOf(c.props.Track, int(n.call.receives)))
		}
		return nil, c.noContexts()
	}
	n.life.Init(Name, url, num, &c.conns.Ready)
	return n, nil
}

func (c *Context) noContexts() error {
	return fmt.Errorf("%w: all %d contexts of the process are in use: disconnect, or open with option contexts, or Hints.Peers",
		driver.ErrBusy, c.proc.Sends())
}

func (c *Context) giveBack(sends, receives span) {
	if sends.n > 0 {
		c.sends.put(sends.at, sends.n)
	}
	if receives.n > 0 {
		c.receives.put(receives.at, receives.n)
	}
}

// post looks at what a post of the keeper's said; what found the queue full is tried again.
func (c *Context) post(err error) bool {
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

func (c *Context) kick() {
	if err := c.proc.Kick(); err != nil {
		c.nicFailed(err)
	}
}

// Counters implements driver.Context.
func (c *Context) Counters(to *driver.Counters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns.Counters(to)
	to.Waits += c.anyone.Slept()
	to.BadFrames += c.bad.Load()
	to.Refused += c.refusals.Load()
	r := c.cache.Counters()
	to.RegistrationHits += r.Hits
	to.RegistrationMisses += r.Misses
	to.RegistrationEvictions += r.Evicted
}

// Close implements driver.Context.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return &driver.Error{Driver: Name, Op: "close", Err: driver.ErrClosed}
	}
	c.closed = true
	open := c.conns.List()
	c.mu.Unlock()
	driver.Closed(c.api)
	// A softnic that is stopped answers nobody, and calls wait for it.
	answers := time.AfterFunc(c.goodbyeTime()+answerTime, c.proc.Abandon)
	for _, n := range open {
		n.shut()
	}
	c.anyone.Wake(false)
	c.sayGoodbye()
	c.stop()
	c.nudge()
	c.tasks.Wait()
	answers.Stop()
	err := c.proc.Deregister()
	if c.failing.Swap(true) {
		err = nil // it was gone
	}
	select {
	case <-c.proc.Outside(): // from here on the NIC touches nothing
		err = errors.Join(err, c.letGo())
	default:
		// A softnic that is stopped may be inside of what is posted: that stays posted, and pinned, until it goes on or dies.
		err = nil
		go func() {
			<-c.proc.Outside()
			_ = c.letGo()
		}()
	}
	err = errors.Join(err, c.nic.Close())
	if err != nil {
		return &driver.Error{Driver: Name, Op: "close", Err: err}
	}
	return nil
}

// letGo gives all memory back. The NIC is outside.
func (c *Context) letGo() error {
	c.mu.Lock()
	for n := range c.all {
		n.api.settled()
	}
	c.mu.Unlock()
	err := c.cache.Close()
	c.staging.Close()
	return err
}

// answerTime is how long a softnic may take at Close for calls that it has to answer.
const answerTime = 2 * time.Second

// goodbyeTime is how long peers have.
func (c *Context) goodbyeTime() time.Duration { return min(c.opts.deadTime, 2*time.Second) }

// sayGoodbye gives peers a moment to hear that we leave, and to say so.
func (c *Context) sayGoodbye() {
	limit := time.NewTimer(c.goodbyeTime())
	defer limit.Stop()
	for {
		c.mu.Lock()
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
		c.mu.Unlock()
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
