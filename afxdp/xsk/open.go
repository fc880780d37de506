//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// A Device is a network device opened for AF_XDP: a program, and a socket on
// each queue, over one UMEM.
type Device struct {
	UMEM    *UMEM
	Program *Program
	Sockets []*Socket // in the order of the queues

	ownUMEM bool
	closing sync.Once
	err     error
}

// Open attaches a program to a device and opens the sockets. [Device.Mode] reports the result: native or generic, with
// or without a copy.
//
// The fill rings are empty: no frame is received before [Socket.Fill].
func Open(cfg Config) (*Device, error) {
	d := &Device{UMEM: cfg.UMEM}
	if err := d.open(cfg); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Device) open(cfg Config) (err error) {
	queues, err := chooseQueues(cfg.Device, cfg.Queues, cfg.Socket.Tx >= 0)
	if err != nil {
		return fmt.Errorf("xsk: open %s: %w", cfg.Device, err)
	}
	if d.UMEM == nil {
		d.ownUMEM = true
		if d.UMEM, err = NewUMEM(cfg.Memory); err != nil {
			return err
		}
	}
	d.Program, err = Attach(ProgramConfig{
		Device: cfg.Device, Match: cfg.Match, Attach: cfg.Attach, MultiBuffer: cfg.Socket.MultiBuffer,
	})
	if err != nil {
		return err
	}
	if how, _ := d.Program.Attached(); how == AttachGeneric && cfg.Socket.Copying == CopyAuto {
		// Drivers pass frames to zero-copy sockets only from native programs.
		cfg.Socket.Copying = CopyAlways
	}
	for _, q := range queues {
		cfg.Socket.Device, cfg.Socket.Queue = cfg.Device, q
		s, err := NewSocket(d.UMEM, cfg.Socket)
		if err != nil {
			return err
		}
		d.Sockets = append(d.Sockets, s)
		if err := d.Program.Add(s); err != nil {
			return err
		}
	}
	return nil
}

func chooseQueues(name string, want []int, send bool) ([]int, error) {
	_, have, err := inspect(name)
	if err != nil {
		return nil, err
	}
	if want == nil {
		for q := range have.Rx {
			want = append(want, q)
		}
	}
	if len(want) == 0 {
		return nil, errors.New("no receive queue")
	}
	for i, q := range want {
		switch {
		case q < 0 || q >= have.Rx:
			return nil, fmt.Errorf("queue %d of %d: too few queues (ethtool -L %s combined N)", q, have.Rx, name)
		case send && q >= have.Tx:
			return nil, fmt.Errorf("queue %d: %w", q, ErrNoTxQueue)
		case slices.Contains(want[:i], q):
			return nil, fmt.Errorf("queue %d is asked for twice", q)
		}
	}
	return want, nil
}

// Mode returns how frames travel: "native-zerocopy", "native-copy" or
// "skb-copy".
func (d *Device) Mode() string {
	attached, _ := d.Program.Attached()
	how := "copy"
	if d.Sockets[0].ZeroCopy() {
		how = "zerocopy"
	}
	return attached.String() + "-" + how
}

// Close closes the sockets and the program, and the UMEM unless the caller passed it to Open. See [Socket.Close].
// Further calls return the same result.
func (d *Device) Close() error {
	d.closing.Do(func() {
		var errs []error
		for _, s := range d.Sockets {
			errs = append(errs, s.Close())
		}
		if d.Program != nil {
			errs = append(errs, d.Program.Close())
		}
		if d.ownUMEM && d.UMEM != nil {
			errs = append(errs, d.UMEM.Close())
		}
		d.err = errors.Join(errs...)
	})
	return d.err
}
