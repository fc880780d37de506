//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
	"github.com/bywash/bywash/internal/stat"
)

// envTransfer makes the test binary a program that moves messages over afxdp between two namespaces of its own.
const envTransfer = "BYWASH_TEST_TRANSFER"

const (
	transferSmall = 50        // messages
	transferLarge = 256 << 10 // bytes of one message
	veth1500      = 1500      // a frame has less
)

// transferMain begins at the end of its input.
func transferMain() int {
	if err := transfer(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func transfer() (err error) {
	s, err := stat.Serve()
	if err != nil {
		return err
	}
	defer s.Close()
	_, _ = io.Copy(io.Discard, os.Stdin)
	p, err := veth.New(veth.Config{})
	if err != nil {
		return err
	}
	defer p.Close()
	var hints [2]driver.Hints
	for k := range hints {
		hints[k] = driver.Hints{Device: p.Ends[k].Device, Options: map[string]string{
			"netns": fmt.Sprintf("/proc/self/fd/%d", p.Ends[k].Namespace),
		}}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		a, b, end, err := connectEnds(ctx, hints, track)
		if err != nil {
			return err
		}
		n, size := transferSmall, 64
		if track == driver.Large {
			n, size = 1, transferLarge
		}
		for range n {
			if err = move(ctx, a, b, size); err == nil {
				err = move(ctx, b, a, size)
			}
			if err != nil {
				return err
			}
		}
		if err := end(); err != nil {
			return err
		}
	}
	return nil
}

func connectEnds(
	ctx context.Context, hints [2]driver.Hints, track driver.Track,
) (a, b driver.Instance, end func() error, err error) {
	d, err := driver.Lookup("afxdp")
	if err != nil {
		return nil, nil, nil, err
	}
	var c [2]driver.Context
	for k := range c {
		hints[k].Track = track
		nic, err := d.Query(hints[k])
		if err == nil {
			c[k], err = nic.Open(driver.Attributes{})
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	if a, err = c[0].Connect(c[1].URL()); err == nil {
		b, err = c[1].Connect(c[0].URL())
	}
	if err == nil {
		err = a.ConnectWait(ctx)
	}
	if err == nil {
		err = b.ConnectWait(ctx)
	}
	return a, b, func() error {
		err := c[0].Close()
		if e := c[1].Close(); err == nil {
			err = e
		}
		return err
	}, err
}

// move carries one message.
func move(ctx context.Context, from, to driver.Instance, size int) error {
	in := driver.Packet{IOV: [][]byte{make([]byte, size)}}
	out := driver.Packet{IOV: [][]byte{bytes.Repeat([]byte("bywash "), size)[:size]}}
	err := to.RecvPost(&in)
	if err == nil {
		out.RdvData = in.RdvData
		err = from.SendPost(&out)
	}
	if err == nil {
		err = to.(driver.RecvWaiter).RecvWait(ctx, &in)
	}
	if err == nil {
		err = from.(driver.SendWaiter).SendWait(ctx, &out)
	}
	if err == nil && !bytes.Equal(in.IOV[0], out.IOV[0]) {
		err = fmt.Errorf("a message of %d bytes came damaged", size)
	}
	return err
}
