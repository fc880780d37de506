//go:build linux && !(386 || arm || mips || mipsle) && cgo

package softnic_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"testing"

	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

func ExampleStart() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	server, err := softnic.Start(softnic.Config{
		Sockets: []string{filepath.Join(dir, "qnix0.sock"), filepath.Join(dir, "qnix1.sock")},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	n, err := nic.Open(server.Sockets()[1])
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close()
	fmt.Printf("NIC %d of %d\n", n.Info().NIC, n.Info().NICs)
	// Output: NIC 2 of 2
}

// A program that may have to be the NIC itself calls RunIfStarted first.
func ExampleEnsure() {
	softnic.RunIfStarted()

	path := nic.DefaultPath()
	if err := softnic.Ensure(context.Background(), path); err != nil {
		log.Fatal(err)
	}
	n, err := nic.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close()
}

// The example finds a NIC: one that it starts itself would live on after the test.
func TestExampleEnsure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "qnix0.sock")
	t.Setenv(nic.EnvPath, path)
	server, err := softnic.Start(softnic.Config{Sockets: []string{path}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ExampleEnsure()
}
