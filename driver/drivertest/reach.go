package drivertest

import (
	"errors"
	"strings"

	"github.com/bywash/bywash/driver"
)

var roleReach = role("reach", func(e *end) {
	reaches(e, e.parent)
	e.parent.connectPeer().swaps(0)
	e.parent.sync()
})

// checkReaches checks the answers of a context that knows what it reaches. Those of contexts that do not reach each
// other are of the driver's own tests, which know how to make such.
func checkReaches(e *end) {
	ctx, ok := e.context().(driver.Reacher)
	if !ok {
		return
	}
	p := e.peer(roleReach, nil)
	url := reaches(e, p.link)
	c := p.connectPeer()
	c.swaps(0)
	p.sync()
	p.join()
	e.noErr("reach the peer that is gone", ctx.Reaches(url)) // it depends on the urls alone
	_ = c.i.Disconnect()
	e.noErr("close", e.ctx.Close())
	e.noErr("reach the peer from a closed context", ctx.Reaches(url))
}

// reaches compares what both ends return for each other, and returns the peer's url.
func reaches(e *end, l *link) string {
	e.Helper()
	type named struct{ URL, Domain string }
	ctx := e.context().(driver.Reacher)
	mine := named{ctx.URL(), ctx.Domain()}
	var theirs named
	l.sendNote("named", mine)
	l.recvNote("named", &theirs)
	e.noErr("reach itself", ctx.Reaches(mine.URL))
	e.noErr("reach the peer", ctx.Reaches(theirs.URL))
	u, err := driver.ParseURL(theirs.URL, driver.MaxURL)
	e.noErr("parse url", err)
	for _, bad := range []string{"", "x", theirs.URL + " ", "\x00" + theirs.URL, theirs.URL[:len(u.Driver)+4],
		strings.Replace(theirs.URL, ":", "", 1), theirs.URL + strings.Repeat("x", driver.MaxURL)} {
		e.outOfReach("a malformed url", ctx.Reaches(bad), driver.ErrInvalid)
	}
	foreign, version := u, u
	foreign.Driver = "nosuchdriver"
	version.Version++
	e.outOfReach("a foreign url", ctx.Reaches(foreign.String()), driver.ErrInvalid)
	e.outOfReach("a url of another version", ctx.Reaches(version.String()), driver.ErrVersion)
	head := len(theirs.URL) - len(u.Rest)
	for k := range u.Rest {
		b := []byte(theirs.URL)
		b[head+k] ^= 1
		if err := ctx.Reaches(string(b)); err != nil && !errors.Is(err, driver.ErrInvalid) && !errors.Is(err, driver.ErrUnreachable) {
			e.Errorf("reach the damaged url %q: got %v, want nil, %v or %v", b, err, driver.ErrInvalid, driver.ErrUnreachable)
		}
	}
	if d := ctx.Domain(); d != mine.Domain {
		e.Errorf("the domain was %q, and is %q", mine.Domain, d)
	}
	return theirs.URL
}

func (e *end) outOfReach(what string, err, want error) {
	e.Helper()
	e.wantErr("reach "+what, err, want)
	e.namesDriver("reach "+what, err)
}
