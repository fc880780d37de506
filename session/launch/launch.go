package launch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/bywash/bywash/internal/handshake"
)

// SecretSize is the size of a job's secret in bytes.
const SecretSize = 32

// MaxCard is the size in bytes of the largest business card.
const MaxCard = 64 << 10

// Errors, found with errors.Is.
var (
	// ErrClosed means that Close was called.
	ErrClosed = errors.New("job is closed")
	// ErrLauncher means that the launcher is gone or violated its protocol: no further call succeeds. Where rank 0 has
	// served the rendezvous, the error names it as a RankError, too.
	ErrLauncher = errors.New("lost connection to the launcher")
	// ErrAuth means that one side of the rendezvous does not know the job's secret.
	ErrAuth = errors.New("wrong secret")
	// ErrVersion means that the launcher uses another version of its protocol.
	ErrVersion = errors.New("version of the launch protocol differs")
	// ErrTaken means that another process has joined as the same rank.
	ErrTaken = errors.New("has already joined")
	// ErrLate means that the rank joined after the timeout of rank 0: see EnvJoinTime.
	ErrLate = errors.New("joined after the timeout (" + EnvJoinTime + " of rank 0)")
	// ErrNoCard means that the rank has published no card.
	ErrNoCard = errors.New("no card published")
	// ErrInvalid means an argument or an order of calls that can never work.
	ErrInvalid = errors.New("invalid argument")
)

// RankError means that another rank made a call fail: it died, left before the
// fence, or aborted the job.
type RankError struct {
	Rank int    // -1: not known
	Code int    // exit code given to Abort, or exit status (see End)
	Why  string // "died", "left", how it ended, or the reason given to Abort
}

func (e *RankError) Error() string {
	if e.Rank < 0 {
		return e.Why
	}
	return fmt.Sprintf("rank %d: %s", e.Rank, e.Why)
}

// Job is this process's place among the ranks that were started together: a [Client], or what a program implements
// itself. All methods may be called by several goroutines at once. Errors name the launcher and the operation.
type Job interface {
	// Rank returns this process's number, from 0 to Size()-1.
	Rank() int
	// Size is the number of ranks.
	Size() int
	// Name returns the launcher's name: embedded, pmi1, pmi2, pmix or alone.
	Name() string
	// ID returns the name of the job: 32 hexadecimal digits, the same in all ranks and different in every other job. It is
	// derived from the secret and does not reveal it.
	ID() string
	// Secret returns random bytes, the same in all ranks: SecretSize, unless Server or environment have a secret of another
	// length. They must not be changed, logged or shown.
	Secret() []byte

	// Publish makes this rank's card known: 1 to MaxCard bytes, which are copied. It is called once, before Fence. It may
	// return before the launcher has the card; Fence then reports the error.
	Publish(ctx context.Context, card []byte) error
	// Fence blocks until every rank has called it, and has so published its card, or until ctx ends. It fails with a
	// RankError or ErrLauncher if a rank cannot call it any more and the launcher reports that. Launchers with PMI end the
	// job instead; those with PMIx may leave dead ranks out, and Lookup of these fails. If ctx ends first, this rank may
	// count as having called, and the next call waits for the same fence.
	Fence(ctx context.Context) error
	// Lookup returns the card of a rank, this one's included; the caller owns the bytes. Every call asks the launcher, and
	// blocks until it answers or ctx ends. Before Fence it may fail with ErrNoCard.
	Lookup(ctx context.Context, rank int) ([]byte, error)

	// Abort ends the whole job: the launcher ends all processes as far as it can, with this exit code (1 to 255; any other
	// counts as 1). It returns after a second at most, or after ten on a rank 0 that serves the rendezvous, because
	// that notifies all ranks first. The caller then exits.
	Abort(code int, why string)
	// Close leaves the job in order. If rank 0 serves the rendezvous, its Close blocks until the other ranks have closed
	// or died; see Client.Leave. Later calls fail with ErrClosed; a second Close returns nil.
	Close() error
}

// Traffic counts what a rank exchanged with its launcher, joining included. With PMIx only requests are known.
type Traffic struct {
	Sent, Received uint64 // bytes
	Requests       uint64
}

// NewSecret returns a job's secret: SecretSize random bytes.
func NewSecret() []byte {
	s := make([]byte, SecretSize)
	rand.Read(s) // never fails
	return s
}

// jobKey returns the key of a job's secret. The error is ErrInvalid.
func jobKey(secret []byte) (*handshake.Key, error) {
	k, err := handshake.NewKey(secret)
	if err != nil {
		return nil, fmt.Errorf("%w: session secret: %w", ErrInvalid, err)
	}
	return k, nil
}

// jobID derives the job's name from its secret, without revealing it.
func jobID(k *handshake.Key) string {
	id := k.MAC("bywash job id")
	return hex.EncodeToString(id[:16])
}

func checkLen(what string, b []byte, least, most int) error {
	if len(b) < least || len(b) > most {
		return fmt.Errorf("%s of %d bytes, want %d to %d: %w", what, len(b), least, most, ErrInvalid)
	}
	return nil
}

func checkRank(rank, size int) error {
	if rank < 0 || rank >= size {
		return fmt.Errorf("rank %d in a job of %d: %w", rank, size, ErrInvalid)
	}
	return nil
}

// opError adds the names of launcher and operation to an error.
func opError(launcher, op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("launch %s: %s: %w", launcher, op, err)
}
