//go:build linux

package workload

import (
	"errors"
	"fmt"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// idleBatch is how many idle peers connect at a time: their addresses fit one message.
const idleBatch = 32

// idlePeers is the rank of --peers: contexts that connect to both ends and then do nothing.
type idlePeers struct {
	s        *bench.Setup
	d        driver.Driver
	contexts []driver.Context
}

func openIdlePeers(s *bench.Setup) (bench.Bench, error) {
	d, err := driver.Lookup(s.Driver)
	if err != nil {
		return nil, err
	}
	return &idlePeers{s: s, d: d}, nil
}

func (x *idlePeers) Connect(give bench.Give) error {
	replies, err := bench.ExchangeLinks(give, nil)
	if err != nil {
		return err
	}
	var ends []string
	for _, links := range replies[:2] {
		if len(links) == 0 {
			return bench.ErrOrder
		}
		ends = append(ends, links[0])
	}
	for left := x.s.Peers; left > 0; left -= idleBatch {
		links, instances, err := x.open(min(left, idleBatch), ends)
		if err == nil {
			_, err = bench.ExchangeLinks(give, links)
		}
		if err == nil {
			err = settle(x.s, instances...)
		}
		if err != nil {
			return fmt.Errorf("idle peers: %w", err)
		}
	}
	return nil
}

// open makes n contexts that begin to connect to both ends.
func (x *idlePeers) open(n int, ends []string) (links []string, instances []driver.Instance, err error) {
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

func (x *idlePeers) Check(*bench.Case) error             { return nil }
func (x *idlePeers) Prepare(*bench.Case) ([]byte, error) { return nil, nil }
func (x *idlePeers) Start([]byte) error                  { return nil }
func (x *idlePeers) Run(*bench.Round) error              { return nil }
func (x *idlePeers) Inspect(uint64, int) error           { return nil }
func (x *idlePeers) Finish() error                       { return nil }
func (x *idlePeers) Path() string                        { return "" }

func (x *idlePeers) Close() (err error) {
	for _, c := range x.contexts {
		err = errors.Join(err, c.Close())
	}
	return err
}
