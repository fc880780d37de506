package nic

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/bywash/bywash/internal/userdir"
)

// EnvPath names the environment variable that DefaultPath reads.
const EnvPath = "BYWASH_QNIX"

// DefaultPath returns the path of this user's NIC: the environment variable BYWASH_QNIX, else /dev/qnix0 if it exists,
// else the first socket of a softnic, whether one runs or not.
func DefaultPath() string {
	if p := os.Getenv(EnvPath); p != "" {
		return p
	}
	if _, err := os.Stat("/dev/qnix0"); err == nil {
		return "/dev/qnix0"
	}
	return SocketPath(0)
}

// errForeign means that another user's softnic answers where this user's is looked for. Whoever can make files in the
// folder for temporary ones can be there first, and would read all messages.
var errForeign = errors.New("the user-space NIC there is another user's")

// checkServer returns errForeign unless a NIC in the folder for temporary files is this user's or root's. Other paths were
// chosen by somebody who trusts them.
func checkServer(path string, user uint32) error {
	if filepath.Dir(path) != userdir.Temporary() || user == 0 || user == uint32(os.Geteuid()) {
		return nil
	}
	return errForeign
}

// SocketPath returns the path of the socket of the i-th NIC of this user's softnic: qnixI.sock in the folder bywash of
// XDG_RUNTIME_DIR or, where that is no directory, in bywash-UID of the folder for temporary files.
func SocketPath(i int) string {
	return filepath.Join(userdir.Path(), "qnix"+strconv.Itoa(i)+".sock")
}
