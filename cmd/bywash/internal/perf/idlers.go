package perf

import (
	"context"
	"errors"
	"fmt"

	"github.com/bywash/bywash/driver"
)

// idleBatch is how many idle peers connect at a time: their addresses fit one message.
const idleBatch = 32

// idlers is the rank of --peers: contexts that connect to both ends and then do nothing.
type idlers struct {
	s        *setup
	d        driver.Driver
	contexts []driver.Context
}

func openIdlers(s *setup) (bench, error) {
	d, err := driver.Lookup(s.Driver)
	if err != nil {
		return nil, err
	}
	return &idlers{s: s, d: d}, nil
}

func (x *idlers) connect(give func([]byte) ([][]byte, error)) error {
	said, err := meetLinks(give, nil)
	if err != nil {
		return err
	}
	var ends []string
	for _, links := range said[:2] {
		if len(links) == 0 {
			return errOrder
		}
		ends = append(ends, links[0])
	}
	for left := x.s.Peers; left > 0; left -= idleBatch {
		links, instances, err := x.open(min(left, idleBatch), ends)
		if err == nil {
			_, err = meetLinks(give, links)
		}
		if err == nil {
			err = x.settle(instances)
		}
		if err != nil {
			return fmt.Errorf("idle peers: %w", err)
		}
	}
	return nil
}

// open makes n contexts that begin to connect to both ends.
func (x *idlers) open(n int, ends []string) (links []string, instances []driver.Instance, err error) {
	s := *x.s
	s.Peers = len(ends)
	for range n {
		c, err := openTrack(x.d, &s, driver.Small)
		if err != nil {
			return nil, nil, err
		}
		x.contexts = append(x.contexts, c)
		links = append(links, c.URL())
		for _, u := range ends {
			i, err := c.Connect(u)
			if err != nil {
				return nil, nil, err
			}
			instances = append(instances, i)
		}
	}
	return links, instances, nil
}

func (x *idlers) settle(instances []driver.Instance) error {
	ctx, cancel := context.WithTimeout(x.s.stop.ctx, connectTimeout)
	defer cancel()
	for _, i := range instances {
		if err := i.ConnectWait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (x *idlers) check(*Case) error             { return nil }
func (x *idlers) prepare(*Case) ([]byte, error) { return nil, nil }
func (x *idlers) start([]byte) error            { return nil }
func (x *idlers) run(*job) error                { return nil }
func (x *idlers) inspect(uint64, int) error     { return nil }
func (x *idlers) finish() error                 { return nil }
func (x *idlers) path() string                  { return "" }

func (x *idlers) close() (err error) {
	for _, c := range x.contexts {
		err = errors.Join(err, c.Close())
	}
	return err
}
