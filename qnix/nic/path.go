package nic

import (
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

// SocketPath returns the path of the socket of the i-th NIC of this user's softnic: qnixI.sock in the folder bywash of
// XDG_RUNTIME_DIR or, without that variable, in bywash-UID of the folder for temporary files.
func SocketPath(i int) string {
	dir := filepath.Join(os.TempDir(), "bywash-"+strconv.Itoa(os.Getuid()))
	if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
		dir = filepath.Join(run, "bywash")
	}
	return filepath.Join(dir, "qnix"+strconv.Itoa(i)+".sock")
}
