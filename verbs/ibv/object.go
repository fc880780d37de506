package ibv

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// object is the common part of types with a C object. Objects form a graph in which a parent cannot be closed before
// its children. The graph keeps objects alive for the garbage collector; live holds its roots.
type object struct {
	// mu lets calls in while h is valid: they hold it for reading, Close for writing.
	mu      sync.RWMutex
	h       handle
	device  string
	kind    string        // "queue pair"
	label   func() string // identifies a made object among those of its kind, such as "0x11"; may be nil
	parents []*object
	unblock func() // makes calls that wait return, before Close waits for them; may be nil

	// Guarded by tree.
	closing bool
	kids    map[*object]struct{}
}

// tree guards the graph. It is never held during a call into C.
var tree struct {
	sync.Mutex
	live map[*object]struct{}
}

// adopt enters o into the graph, before its C object is made.
func (o *object) adopt(verb string, parents ...*object) error {
	tree.Lock()
	defer tree.Unlock()
	for _, p := range parents {
		if p.closing || p.h == nil {
			return closed(verb, p)
		}
	}
	o.parents = parents
	if len(parents) == 0 {
		if tree.live == nil {
			tree.live = map[*object]struct{}{}
		}
		tree.live[o] = struct{}{}
		return nil
	}
	o.device = parents[0].device
	for _, p := range parents {
		if p.kids == nil {
			p.kids = map[*object]struct{}{}
		}
		p.kids[o] = struct{}{}
	}
	return nil
}

// disown removes o from the graph.
func (o *object) disown() {
	tree.Lock()
	defer tree.Unlock()
	delete(tree.live, o)
	for _, p := range o.parents {
		delete(p.kids, o)
	}
}

// make adopts o and calls create; o is usable when it returns nil.
func (o *object) make(verb string, create func() (handle, int), parents ...*object) error {
	if err := o.adopt(verb, parents...); err != nil {
		return err
	}
	h, r := create()
	if r < 0 {
		o.disown()
		return fail(verb, o.device, r, "")
	}
	tree.Lock()
	o.h = h
	tree.Unlock()
	return nil
}

// freed reports whether an object does not exist any more after destroy has returned r: the kernel has freed it also
// where the device is gone.
func freed(r int) bool { return r >= 0 || r == -int(syscall.EIO) || r == -int(syscall.ENODEV) }

// close refuses while there are children, else calls destroy once, which leaves the object open unless it is freed.
func (o *object) close(verb string, destroy func() int) error {
	tree.Lock()
	if o.closing || o.h == nil {
		tree.Unlock()
		return nil
	}
	if len(o.kids) > 0 {
		err := &Error{Verb: verb, Device: o.device, Errno: syscall.EBUSY, Detail: o.inUse()}
		tree.Unlock()
		return err
	}
	o.closing = true
	tree.Unlock()

	if o.unblock != nil {
		o.unblock()
	}
	o.mu.Lock()
	r := destroy()
	tree.Lock()
	if freed(r) {
		o.h = nil
	} else {
		o.closing = false
	}
	tree.Unlock()
	o.mu.Unlock()
	if !freed(r) {
		return fail(verb, o.device, r, "")
	}
	o.disown()
	return nil
}

// inUse returns the names of the live children. The caller holds tree.
func (o *object) inUse() string {
	byKind := map[string][]string{}
	for k := range o.kids {
		name := ""
		if k.label != nil && k.h != nil {
			name = k.label()
		}
		byKind[k.kind] = append(byKind[k.kind], name)
	}
	var kinds []string
	for kind, names := range byKind {
		slices.Sort(names)
		text := fmt.Sprintf("%d %s", len(names), kind)
		if len(names) > 1 {
			text += "s"
		}
		names = slices.DeleteFunc(names, func(s string) bool { return s == "" })
		if len(names) > 4 {
			names = append(names[:4], "…")
		}
		if len(names) > 0 {
			text += " (" + strings.Join(names, ", ") + ")"
		}
		kinds = append(kinds, text)
	}
	slices.Sort(kinds)
	return fmt.Sprintf("the %s is in use by %s; close these first", o.kind, strings.Join(kinds, ", "))
}

// use begins a call, or returns an error if o is closed. After nil the caller must call o.mu.RUnlock.
func (o *object) use(verb string) error {
	o.mu.RLock()
	if o.h == nil {
		o.mu.RUnlock()
		return closed(verb, o)
	}
	return nil
}

// call makes a call into C with o's object. It is not for the data path.
func (o *object) call(verb string, f func() int) error {
	if err := o.use(verb); err != nil {
		return err
	}
	defer o.mu.RUnlock()
	if r := f(); r < 0 {
		return fail(verb, o.device, r, "")
	}
	return nil
}

func closed(verb string, o *object) error {
	return &Error{Verb: verb, Device: o.device, Errno: syscall.EBADF, Detail: "the " + o.kind + " is closed"}
}
