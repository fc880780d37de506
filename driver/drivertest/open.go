package drivertest

import (
	"maps"
	"reflect"
	"slices"

	"github.com/bywash/bywash/driver"
)

func checkOpenOnce(e *end) {
	nic := e.query()
	p := *nic.Properties()
	c, err := nic.Open(e.cfg.Attributes)
	e.noErr("open", err)
	defer c.Close()
	if q := *c.Properties(); !reflect.DeepEqual(p, q) {
		e.Errorf("properties of the context %+v differ from those before open %+v", q, p)
	}
	if !slices.Contains(driver.Contexts(), c) {
		e.Errorf("driver.Contexts does not list an open context")
	}
	second, err := nic.Open(e.cfg.Attributes)
	if err == nil {
		second.Close()
	}
	e.wantErr("second open", err, driver.ErrInvalid)
	e.noErr("close", c.Close())
	e.wantErr("second close", c.Close(), driver.ErrClosed)
	if slices.Contains(driver.Contexts(), c) {
		e.Errorf("driver.Contexts lists a closed context")
	}
}

func checkProperties(e *end) {
	p := e.query().Properties()
	c := p.Capabilities
	small := p.Track == driver.Small
	want := func(ok bool, what string) {
		e.Helper()
		if !ok {
			e.Errorf("properties %+v: %s", *p, what)
		}
	}
	want(p.Driver == e.cfg.Driver && p.Device != "", "driver and device are named")
	want(p.Track == e.cfg.Hints.Track, "the track is the one in the hints")
	want(c.MaxMessage > 0 && c.SendDepth > 0 && c.RecvDepth > 0 && c.DeadTime > 0, "sizes, depths and dead time are positive")
	want(c.BufferSize > 0 == (c.BufferSend || c.BufferRecv), "BufferSize is positive exactly with buffer forms")
	want(c.BufferSize <= c.MaxMessage, "BufferSize is within MaxMessage")
	want(c.RdvSize >= 0 && (!small || c.RdvSize == 0), "rdv data is of the large track")
	want(!c.RdvUpdate || c.RdvSize > 0, "updates need rdv data")
	want(p.Profile.Latency > 0 && p.Profile.Bandwidth > 0, "the profile has latency and bandwidth")
	d, _ := driver.Lookup(e.cfg.Driver)
	if r, ok := d.(driver.Ranked); ok {
		want(p.Profile.Exclusivity <= r.MaxExclusivity(), "exclusivity is within the driver's maximum")
	}
	if o := c.OneSided; o != nil {
		want(o.KeySize > 0 && o.KeySize <= driver.MaxRemoteKey, "KeySize is within MaxRemoteKey")
		want(o.Depth > 0, "one-sided depth is positive")
		want((!o.Put || o.MaxPut > 0 && o.PutAlignment > 0) && (!o.Get || o.MaxGet > 0 && o.GetAlignment > 0), "limits of put and get")
		want(o.Fetch32&^o.Atomics32 == 0 && o.Fetch64&^o.Atomics64 == 0, "fetching atomics are atomics")
	}
	h := e.cfg.Hints
	h.Options = maps.Clone(h.Options)
	if h.Options == nil {
		h.Options = make(map[string]string)
	}
	h.Options["no-such-option"] = "x"
	e.badHints("an unknown option", h)
	h = e.cfg.Hints
	h.Device = "no-such-device"
	_, err := d.Query(h)
	e.wantErr("query of an unknown device", err, driver.ErrUnsupported)
	found := false
	for _, dev := range d.Devices() {
		found = found || dev.Name == p.Device && dev.Err == nil
	}
	want(found, "Devices lists the device as usable")
}

func (e *end) badHints(what string, h driver.Hints) {
	e.Helper()
	d, _ := driver.Lookup(e.cfg.Driver)
	_, err := d.Query(h)
	e.wantErr("query with "+what, err, driver.ErrInvalid)
}

func checkURL(e *end) {
	seen := make(map[uint64]bool)
	for range 3 {
		c := e.open()
		u, err := driver.ParseURL(c.URL(), driver.MaxURL)
		if err != nil {
			e.Errorf("url %q: %v", c.URL(), err)
			continue
		}
		if u.Driver != e.cfg.Driver || u.String() != c.URL() {
			e.Errorf("url %q does not name the driver, or is not in its usual form %q", c.URL(), u)
		}
		if seen[u.Incarnation] {
			e.Errorf("two contexts have the incarnation %016x", u.Incarnation)
		}
		seen[u.Incarnation] = true
	}
}

func checkAbsent(e *end) {
	c := e.self()
	ctx, i, caps := e.context(), c.i, e.caps
	one := caps.OneSided != nil
	for _, f := range []struct {
		name      string
		announced bool
		has       bool
	}{
		{"Prober", caps.Probe, is[driver.Prober](ctx)},
		{"Registrar", one, is[driver.Registrar](ctx)},
		{"OneSided", one, is[driver.OneSided](i)},
		{"BufferSender", caps.BufferSend, is[driver.BufferSender](i)},
		{"BufferReceiver", caps.BufferRecv, is[driver.BufferReceiver](i)},
		{"SendWaiter", caps.SendWait, is[driver.SendWaiter](i)},
		{"RecvWaiter", caps.RecvWait, is[driver.RecvWaiter](i)},
		{"Prefetcher", caps.Prefetch, is[driver.Prefetcher](i)},
		{"RdvUpdater", caps.RdvUpdate, is[driver.RdvUpdater](i)},
	} {
		if f.announced != f.has {
			e.Errorf("%s: announced %v, there %v", f.name, f.announced, f.has)
		}
	}
	refuse := func(what string, p *driver.Packet) {
		if err := i.RecvPost(p); err == nil {
			e.Errorf("%s: accepted, but not announced", what)
		}
	}
	if !caps.IOVec {
		refuse("two IOV entries", &driver.Packet{IOV: [][]byte{make([]byte, 1), make([]byte, 1)}})
	}
	if !caps.Data {
		refuse("a layout", &driver.Packet{Data: &driver.Contiguous{B: make([]byte, 1)}})
	}
	c.leave()
}

func is[T any](v any) bool {
	_, ok := v.(T)
	return ok
}
