//go:build !linux || 386 || arm || mips || mipsle

package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "bywash: it needs Linux on a 64-bit machine, this is %s/%s\n", runtime.GOOS, runtime.GOARCH)
	os.Exit(1)
}
