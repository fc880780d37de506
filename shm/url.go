package shm

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// socketOf returns the path of the socket that a url names. Urls come from elsewhere, and shall not have us connect to
// sockets that are no peers': the name is the one that listen gives, and the directory is ours, or one in which only
// this user or root can make files, as the default one of a process with another XDG_RUNTIME_DIR. A directory that is
// not here is named when the connection is made.
func socketOf(u driver.URL, own string) (string, error) {
	path, err := url.PathUnescape(u.Rest)
	dir, name := filepath.Split(path)
	const most = 107 // bytes, of a socket's path
	if err != nil || !filepath.IsAbs(path) || filepath.Clean(path) != path || len(path) > most ||
		name != fmt.Sprintf("%016x%s", u.Incarnation, socketSuffix) {
		return "", fmt.Errorf("%w: url %q names no socket of this driver", driver.ErrInvalid, u)
	}
	var st, ours unix.Stat_t
	switch {
	case unix.Stat(dir, &st) != nil:
	case unix.Stat(own, &ours) == nil && st.Dev == ours.Dev && st.Ino == ours.Ino:
	case st.Uid != 0 && st.Uid != uint32(os.Geteuid()) || st.Mode&0o022 != 0:
		return "", fmt.Errorf("%w: url %q names a socket in a directory that others can write "+
			"(give both ends the same option dir)", driver.ErrInvalid, u)
	}
	return path, nil
}
