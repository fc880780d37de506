//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// place is the rest of a url: where a context listens and which users may connect:
//
//	host,directory,view,user-namespace,users,mode,path
//
// Two contexts compare their places to know whether they reach each other (apart). The first three are 16 hexadecimal
// digits each, the namespace is hexadecimal, users are decimal with + between them, and the path is percent-encoded.
// The url discloses no more about the peer's file system than two hashes and the path.
type place struct {
	host   uint64 // the running kernel
	dir    uint64 // the directory, by device and inode
	view   uint64 // mount namespace and root directory: within one view, a path means one file
	userns uint64 // user namespace: within one, a user id means one user

	// users may connect: first the context's own, then those of option allow-uids; at most maxUsers.
	users []uint32
	mode  placeMode
	path  string // of the socket
}

// placeMode is a letter of a url.
type placeMode byte

const (
	privateDir placeMode = 'p' // only the context's user can make files in the directory, and only that user may connect
	sharedDir  placeMode = 's'
	manyUsers  placeMode = 'm' // shared, and there are more users than the url holds
)

const (
	maxUsers   = 8
	maxPath    = 107 // bytes, of a socket's path
	placeHead  = "%016x,%016x,%016x,%x,%s,%c,"
	placeParts = 6
)

// placeAt describes a socket for its url. The directory of the socket exists.
func placeAt(path string, o *options) (place, error) {
	dir := filepath.Dir(path)
	p := place{host: kit.Host(), userns: kit.Namespace("user"), path: path, mode: sharedDir}
	var st, root unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return place{}, fmt.Errorf("stat %s: %w", dir, err)
	}
	if err := unix.Stat("/", &root); err != nil {
		return place{}, fmt.Errorf("stat /: %w", err)
	}
	p.dir = kit.Identity("directory %x %x %x", p.host, st.Dev, st.Ino)
	p.view = kit.Identity("view %x %x %x %x", p.host, kit.Namespace("mnt"), root.Dev, root.Ino)
	p.users = append([]uint32{uint32(os.Geteuid())}, o.allowUIDs...)
	if len(o.allowUIDs) == 0 && st.Uid == uint32(os.Geteuid()) && st.Mode&0o022 == 0 {
		p.mode = privateDir
	}
	return p, nil
}

// fit shortens the list of users until the place has at most limit bytes.
func (p place) fit(limit int) place {
	for len(p.users) > 1 && (len(p.users) > maxUsers || len(p.String()) > limit) {
		p.users, p.mode = p.users[:len(p.users)-1], manyUsers
	}
	return p
}

// String formats the place.
func (p place) String() string {
	var users []string
	for _, u := range p.users {
		users = append(users, strconv.FormatUint(uint64(u), 10))
	}
	return fmt.Sprintf(placeHead, p.host, p.dir, p.view, p.userns, strings.Join(users, "+"), p.mode) +
		(&url.URL{Path: p.path}).EscapedPath()
}

// parsePlace reads the rest of a url that comes from elsewhere. The path is a socket's, as listen names it.
func parsePlace(u driver.URL) (p place, err error) {
	bad := fmt.Errorf("%w: url %q names no socket of this driver", driver.ErrInvalid, u)
	f := strings.SplitN(u.Rest, ",", placeParts+1)
	if len(f) != placeParts+1 || len(f[5]) != 1 {
		return place{}, bad
	}
	for k, to := range []*uint64{&p.host, &p.dir, &p.view, &p.userns} {
		if *to, err = strconv.ParseUint(f[k], 16, 64); err != nil {
			return place{}, bad
		}
	}
	for s := range strings.SplitSeq(f[4], "+") {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil || len(p.users) == maxUsers {
			return place{}, bad
		}
		p.users = append(p.users, uint32(n))
	}
	p.mode = placeMode(f[5][0])
	if p.mode != privateDir && p.mode != sharedDir && p.mode != manyUsers || p.mode == privateDir && len(p.users) > 1 {
		return place{}, bad
	}
	p.path, err = url.PathUnescape(f[6])
	if err != nil || !filepath.IsAbs(p.path) || filepath.Clean(p.path) != p.path || len(p.path) > maxPath ||
		filepath.Base(p.path) != fmt.Sprintf("%016x%s", u.Incarnation, socketSuffix) {
		return place{}, bad
	}
	return p, nil
}

// apart returns why contexts at two places cannot be connected, or "" if nothing is known against it. It is symmetric.
func (p *place) apart(q *place) string {
	dir := func(p *place) string { return filepath.Dir(p.path) }
	sameUsers := p.userns == q.userns
	switch {
	case p.host != q.host:
		return "the peer is on another host, or in a sandbox with a kernel of its own"
	case sameUsers && !(p.admits(q.users[0]) && q.admits(p.users[0])):
		return fmt.Sprintf("the peer's user is %d, this one's %d (give both the same option dir, and the other's user in allow-uids)",
			q.users[0], p.users[0])
	case p.dir == q.dir && (dir(p) == dir(q) || p.view == q.view):
		return "" // each finds the other's socket, as in containers that share the directory
	case p.view == q.view && sameUsers && p.users[0] == q.users[0] && p.mode == privateDir && q.mode == privateDir:
		return "" // as with different XDG_RUNTIME_DIR
	case p.view != q.view:
		return fmt.Sprintf("the peer, in another container, has its socket in a %s that is not the one here "+
			"(share the directory, or give both the same option dir)", dir(q))
	}
	return fmt.Sprintf("the peer's directory for sockets is %s, this one's %s (give both the same option dir)", dir(q), dir(p))
}

// admits reports whether a user may connect; true if the url does not list all users.
func (p *place) admits(user uint32) bool {
	return p.mode == manyUsers || slices.Contains(p.users, user)
}

// domain names the contexts that surely reach each other: those of one user with the same directory, at the same path.
func (p *place) domain() string {
	if p.mode == privateDir { // the owner of the directory identifies the user, whatever its id is here
		return fmt.Sprintf("%016x:%s", p.dir, filepath.Dir(p.path))
	}
	return fmt.Sprintf("%016x:%s:%x:%d", p.dir, filepath.Dir(p.path), p.userns, p.users[0])
}

// Reach implements kit.ContextHooks.
func (c *hostContext) Reach(to driver.URL) error {
	theirs, err := parsePlace(to)
	if err != nil {
		return err
	}
	if why := c.place.apart(&theirs); why != "" {
		return fmt.Errorf("%w: %s", driver.ErrUnreachable, why)
	}
	return nil
}

// stat is unix.Stat. Tests replace it.
var stat = unix.Stat

// checkDir returns an error if others can make files in the directory of a socket that a url names. Urls come from
// elsewhere, and shall not have us connect to sockets that are no peers: the directory is our own, or one in which only
// this user or root can make files, as the default one of a process with another XDG_RUNTIME_DIR. One that is not here
// is named when the connection is made. A file system of another host or user may block the call for ever.
func checkDir(dir, own string) error {
	var st, ours unix.Stat_t
	switch {
	case dir == own || stat(dir, &st) != nil:
	case stat(own, &ours) == nil && st.Dev == ours.Dev && st.Ino == ours.Ino:
	case st.Uid != 0 && st.Uid != uint32(os.Geteuid()) || st.Mode&0o022 != 0:
		return fmt.Errorf("%w: the url names a socket in a directory that others can write "+
			"(give both ends the same option dir)", driver.ErrInvalid)
	}
	return nil
}
