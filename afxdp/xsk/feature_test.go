//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"errors"
	"os"
	"testing"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

func TestProbesAgreeWithTheKernel(t *testing.T) {
	for f := xsk.FeatureSocket; f <= xsk.FeatureTxBudget; f++ {
		err := xsk.Probe(f)
		if errors.Is(err, os.ErrPermission) {
			t.Skip("needs CAP_NET_RAW: ", err)
		}
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", f, err)
		}
		t.Logf("%s: %v", f, err)
		if again := xsk.Probe(f); again != err {
			t.Errorf("%s: got %v the second time, want %v", f, again, err)
		}
	}
	p := lab(t, veth.Config{})
	asking := map[xsk.Feature]xsk.Config{
		xsk.FeatureBusyPoll:    {Socket: xsk.SocketConfig{BusyPoll: xsk.BusyPoll{Time: 1000}}},
		xsk.FeatureMultiBuffer: {Socket: xsk.SocketConfig{MultiBuffer: true}},
		xsk.FeatureTxMetadata:  {Memory: xsk.UMEMConfig{TxMetadata: true}},
		xsk.FeatureTxBudget:    {Socket: xsk.SocketConfig{TxBudget: 64}},
	}
	for f, cfg := range asking {
		d, err := tryOpen(&p.Ends[0], cfg)
		if err == nil {
			d.Close()
		}
		if probed := xsk.Probe(f); (probed == nil) != (err == nil) {
			t.Errorf("%s: the probe said %v, opening %v", f, probed, err)
		}
	}
}

func TestUnknownFeatureIsAnError(t *testing.T) {
	if err := xsk.Probe(xsk.FeatureTxBudget + 1); err == nil {
		t.Error("got nil")
	}
}

func TestDeviceFeaturesOfVeth(t *testing.T) {
	p := lab(t, veth.Config{})
	var f xsk.Features
	err := p.Ends[0].Do(func() (err error) {
		f, err = xsk.DeviceFeatures(p.Ends[0].Device)
		return err
	})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !f.Native || !f.MultiBuffer || f.ZeroCopy {
		t.Errorf("got %+v, want native and multi-buffer without zero-copy", f)
	}
}

func TestDeviceQueuesAreThoseMade(t *testing.T) {
	p := lab(t, veth.Config{Queues: 3})
	err := p.Ends[0].Do(func() error {
		q, err := xsk.DeviceQueues(p.Ends[0].Device)
		if want := (xsk.Queues{Rx: 3, Tx: 3, MaxRx: 3, MaxTx: 3}); q != want {
			t.Errorf("got %+v, want %+v", q, want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nosuchdevice", "", "a name that is far too long"} {
		if _, err := xsk.DeviceQueues(name); err == nil {
			t.Errorf("%q: got no error", name)
		}
	}
}
