package nic

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
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
	if filepath.Dir(path) != temporaryDir() || user == 0 || user == uint32(os.Geteuid()) {
		return nil
	}
	return errForeign
}

// temporaryDir is the folder of this user's sockets in the one for temporary files.
func temporaryDir() string { return filepath.Join(os.TempDir(), "bywash-"+strconv.Itoa(os.Getuid())) }

// SocketPath returns the path of the socket of the i-th NIC of this user's softnic: qnixI.sock in the folder bywash of
// XDG_RUNTIME_DIR or, without that variable, in bywash-UID of the folder for temporary files.
func SocketPath(i int) string {
	dir := temporaryDir()
	if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
		dir = filepath.Join(run, "bywash")
	}
	return filepath.Join(dir, "qnix"+strconv.Itoa(i)+".sock")
}
