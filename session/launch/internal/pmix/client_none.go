//go:build !(cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x))

package pmix

import "errors"

var errNoCgo = errors.New("this binary was built without cgo, or for a platform without it; " +
	"build on 64-bit Linux with CGO_ENABLED=1 and a C compiler (Debian: gcc libc6-dev)")

// Init returns why there is no job to join. The other functions are then not called.
func Init() (rank, size, local int, err error) { return 0, 0, 0, errNoCgo }

func Put(string, []byte) error             { return errNoCgo }
func Fence() error                         { return errNoCgo }
func Get(int, string, int) ([]byte, error) { return nil, errNoCgo }
func Abort(int, string) error              { return errNoCgo }
func Finalize() error                      { return errNoCgo }
func WaitLost() error                      { return errNoCgo }
