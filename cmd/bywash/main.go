//go:build linux && !(386 || arm || mips || mipsle)

// Command bywash shows what a machine's network drivers can do.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/control"
	"github.com/bywash/bywash/cmd/bywash/internal/run"
	_ "github.com/bywash/bywash/driver/all"
	"github.com/bywash/bywash/internal/descriptors"
	"github.com/bywash/bywash/qnix/softnic"
)

// Exit statuses.
const (
	exitFailure   = 1   // something could not be done on this machine
	exitUsage     = 2   // the command line makes no sense
	exitInterrupt = 130 // Ctrl-C
)

var errInterrupt = errors.New("interrupted")

func main() {
	softnic.RunIfStarted() // by a program that needs a NIC
	os.Exit(execute())
}

func execute() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	sig := make(chan os.Signal, 2)
	if len(os.Args) > 1 && os.Args[1] == control.PeerCommand {
		// Ctrl-C and a hangup reach both processes: the leading one ends this one.
		signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	} else if len(os.Args) < 2 || os.Args[1] != "run" { // which handles signals itself
		signal.Notify(sig, syscall.SIGINT, syscall.SIGTERM)
		if !signal.Ignored(syscall.SIGHUP) { // as nohup does
			signal.Notify(sig, syscall.SIGHUP)
		}
	}
	go func() {
		<-sig
		first := time.Now()
		cancel(errInterrupt)
		for s := range sig {
			if run.Impatient(s, time.Since(first)) {
				os.Exit(exitInterrupt)
			}
		}
	}()
	err := rootCommand().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var status *statusError
	if errors.As(err, &status) {
		fmt.Fprintf(os.Stderr, "bywash: %s\n", oneLine(err))
		return status.code
	}
	if errors.Is(err, errInterrupt) || errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "bywash: interrupted")
		return exitInterrupt
	}
	fmt.Fprintf(os.Stderr, "bywash: %s%s\n", oneLine(err), descriptors.Remedy(err))
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
