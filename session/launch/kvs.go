package launch

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// kvs is a launcher's key-value space. One call is in progress at a time; each blocks until the launcher has answered.
// Values are text of the URL-safe base64 alphabet, ',' and digits, so that no protocol has to quote them.
type kvs interface {
	// maxValue is the longest value in bytes that every server takes.
	maxValue() int
	put(key, value string) error
	// get returns what a rank has put, "" where it has not.
	get(rank int, key string) (string, error)
	// fence returns when all ranks are in it, and then all see what each had put.
	fence() error
	// oneHost reports whether the launcher knows that all ranks are on one host; all ranks get the same answer.
	oneHost(size int) (bool, error)
	// watch is called once, before put: lost is then called when the launcher is gone.
	watch(lost func(error))
	// abort asks the launcher to end the job, and does not wait.
	abort(code int, why string)
	// close ends the session with the launcher; hangUp, from another goroutine, makes a call in progress fail.
	close() error
	hangUp()
	traffic() Traffic
}

// Keys. A value is split over as many as the server's limit takes.
const (
	keySecret = "bw-secret"
	keyCard   = "bw-"
)

// keyExchange begins the keys of the nth exchange.
func keyExchange(n int) string { return "bw-x" + strconv.Itoa(n) + "-" }

func partKey(prefix string, rank, part int) string {
	return prefix + strconv.Itoa(rank) + "-" + strconv.Itoa(part)
}

var b64 = base64.RawURLEncoding.Strict()

// splitValue makes the values of the keys of a card, or of other data: "2,bytes," and the data in base64, cut at the
// limit. So one look-up of a short card is one request.
func splitValue(data []byte, limit int) (values []string) {
	whole := fmt.Sprintf("2,%d,%s", len(data), b64.EncodeToString(data))
	for len(whole) > limit {
		values, whole = append(values, whole[:limit]), whole[limit:]
	}
	return append(values, whole)
}

// joinValue is its inverse; get fetches the further parts.
func joinValue(first string, get func(part int) (string, error)) ([]byte, error) {
	version, rest, ok := strings.Cut(first, ",")
	length, text, ok2 := strings.Cut(rest, ",")
	if !ok {
		return nil, errFrame
	}
	if version != "2" {
		return nil, fmt.Errorf("data of version %q, this program has 2: %w", plain(version[:min(len(version), 16)]), ErrVersion)
	}
	size, err := strconv.Atoi(length)
	if !ok2 || err != nil || size < 0 || size > MaxCard {
		return nil, errFrame
	}
	var all strings.Builder
	all.WriteString(text)
	for p := 1; all.Len() < b64.EncodedLen(size); p++ {
		s, err := get(p)
		if err != nil {
			return nil, err
		}
		if s == "" {
			return nil, errFrame
		}
		all.WriteString(s)
	}
	if all.Len() > b64.EncodedLen(size) {
		return nil, errFrame
	}
	data, err := b64.DecodeString(all.String())
	if err != nil || len(data) != size {
		return nil, errFrame
	}
	return data, nil
}

// keyed is the dialect of a launcher with a key-value space.
type keyed struct {
	kvs
	client    *Client
	exchanges int
	turn      chan struct{} // held by the goroutine that talks to the launcher
}

var _ dialect = (*keyed)(nil)

func newKeyed(name string, rank, size int, kv kvs) *keyed {
	k := &keyed{kvs: kv, client: newClient(name, rank, size), turn: make(chan struct{}, 1)}
	k.client.dialect = k
	kv.watch(k.client.fail)
	return k
}

// joinKV agrees on a secret with all other ranks.
func joinKV(ctx context.Context, name string, rank, size int, kv kvs) (*Client, error) {
	k := newKeyed(name, rank, size, kv)
	r := newReply()
	k.run(ctx, r, func() ([][]byte, error) {
		secret, err := spreadSecret(kv, rank)
		return [][]byte{secret}, err
	})
	values, err := k.client.wait(ctx, r)
	if err == nil {
		err = k.client.setSecret(values[0])
	}
	if err != nil {
		kv.hangUp()
		return nil, err
	}
	return k.client, nil
}

func spreadSecret(kv kvs, rank int) ([]byte, error) {
	secret := NewSecret()
	if rank == 0 {
		if err := kv.put(keySecret, b64.EncodeToString(secret)); err != nil {
			return nil, err
		}
	}
	if err := kv.fence(); err != nil {
		return nil, err
	}
	if rank == 0 {
		return secret, nil
	}
	s, err := kv.get(0, keySecret)
	if err == nil {
		secret, err = b64.DecodeString(s)
	}
	if err == nil && len(secret) != SecretSize {
		err = errFrame
	}
	if err != nil {
		return nil, fmt.Errorf("the job's secret: %w", err)
	}
	return secret, nil
}

// run makes requests when it is their turn. A caller that stops waiting leaves them running: the launcher will answer,
// and the answer has to be taken before the next request.
func (k *keyed) run(ctx context.Context, r *reply, requests func() ([][]byte, error)) {
	select {
	case k.turn <- struct{}{}:
	case <-k.client.lost:
		return
	case <-k.client.left:
		return
	case <-ctx.Done():
		r.finish(context.Cause(ctx))
		return
	}
	go func() {
		values, err := requests()
		if errors.Is(err, ErrLauncher) {
			k.client.fail(err)
		}
		<-k.turn
		r.finish(err, values...)
	}()
}

// putParts puts data under the keys of this rank that begin with prefix.
func (k *keyed) putParts(prefix string, data []byte) error {
	for i, v := range splitValue(data, k.maxValue()) {
		if err := k.put(partKey(prefix, k.client.rank, i), v); err != nil {
			return err
		}
	}
	return nil
}

// getParts returns the data that a rank has put, ErrNoCard where it has not.
func (k *keyed) getParts(prefix string, rank int) ([]byte, error) {
	get := func(part int) (string, error) { return k.get(rank, partKey(prefix, rank, part)) }
	first, err := get(0)
	if err != nil {
		return nil, err
	}
	if first == "" {
		return nil, ErrNoCard
	}
	return joinValue(first, get)
}

func (k *keyed) publish(ctx context.Context, card []byte, r *reply) {
	card = bytes.Clone(card) // the caller may stop waiting
	k.run(ctx, r, func() ([][]byte, error) { return nil, k.putParts(keyCard, card) })
}

func (k *keyed) lookup(ctx context.Context, rank int, r *reply) {
	k.run(ctx, r, func() ([][]byte, error) {
		card, err := k.getParts(keyCard, rank)
		if err == nil && len(card) == 0 {
			err = errFrame
		}
		return [][]byte{card}, err
	})
}

func (k *keyed) fence(ctx context.Context, how fenceKind, data []byte, r *reply) {
	data = bytes.Clone(data) // the caller may stop waiting
	k.run(ctx, r, func() ([][]byte, error) {
		switch how {
		case fenceAgree:
			same, err := agree(k.kvs, k.client.rank, k.client.size, data)
			if same {
				return [][]byte{{1}}, err
			}
			return [][]byte{{0}}, err
		case fenceExchange:
			return k.exchange(data)
		}
		return nil, k.kvs.fence()
	})
}

func (k *keyed) exchange(data []byte) (given [][]byte, err error) {
	if k.client.size == 1 {
		return [][]byte{data}, nil
	}
	k.exchanges++ // new keys for each: launchers refuse to put a key twice
	prefix := keyExchange(k.exchanges)
	if err = k.putParts(prefix, data); err == nil {
		err = k.kvs.fence()
	}
	for rank := 0; err == nil && rank < k.client.size; rank++ {
		var d []byte
		if d, err = k.getParts(prefix, rank); errors.Is(err, ErrNoCard) { // PMIx leaves dead ranks out of a fence
			err = &RankError{Rank: rank, Why: "gave no data"}
		}
		given = append(given, d)
	}
	return given, err
}

func (k *keyed) watchEnds(func(End)) error { return errors.ErrUnsupported }

func (k *keyed) close() error {
	late := time.After(byeTime)
	select {
	case k.turn <- struct{}{}: // which stays taken
	case <-late: // a call is under way that may never return
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- k.kvs.close() }()
	select {
	case err := <-done:
		return err
	case <-late:
		return fmt.Errorf("no answer within %s: %w", byeTime, ErrLauncher)
	}
}
