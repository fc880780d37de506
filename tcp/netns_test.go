package tcp

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// The option netns: two contexts of this process, in two namespaces that only a pair of devices joins.
func TestContextsInOtherNamespaces(t *testing.T) {
	p, err := veth.New(veth.Config{})
	if errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var contexts [2]driver.Context
	for k := range contexts {
		nic, err := tcpDriver{}.Query(driver.Hints{Device: p.Ends[k].Device, Options: map[string]string{
			"netns": fmt.Sprintf("/proc/self/fd/%d", p.Ends[k].Namespace),
		}})
		if err != nil {
			t.Fatal(err)
		}
		if contexts[k], err = nic.Open(driver.Attributes{}); err != nil {
			t.Fatal(err)
		}
		defer contexts[k].Close()
	}
	var ends [2]driver.Instance
	for k := range ends {
		if ends[k], err = contexts[k].Connect(contexts[1-k].URL()); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range ends {
		if err := i.ConnectWait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	out, in := driver.Packet{IOV: [][]byte{[]byte("message")}}, driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err := errors.Join(ends[0].SendPost(&out), ends[1].RecvPost(&in)); err != nil {
		t.Fatal(err)
	}
	if err := ends[1].(driver.RecvWaiter).RecvWait(t.Context(), &in); err != nil || string(in.IOV[0][:in.N]) != "message" {
		t.Errorf("%q, %v", in.IOV[0][:in.N], err)
	}
	nowhere := driver.Hints{Options: map[string]string{"netns": "/nowhere"}}
	if _, err := (tcpDriver{}).Query(nowhere); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a namespace that is not there: %v, want %v", err, driver.ErrInvalid)
	}
}
