package launch

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// Variables of the environment.
const (
	EnvRendezvous = "BYWASH_RENDEZVOUS" // HOST:PORT, or rank0@HOST:PORT
	EnvRank       = "BYWASH_RANK"
	EnvSize       = "BYWASH_SIZE"
	EnvSecret     = "BYWASH_SECRET" // in hexadecimal
	EnvLauncher   = "BYWASH_LAUNCHER"
	EnvExplain    = "BYWASH_EXPLAIN"    // 1: a session reports which drivers and rails it chose, and why
	EnvJoinTime   = "BYWASH_JOIN_TIME"  // how long a rank 0 that serves waits for the others to join, as 90s; 0: no limit; 5m unless set
	EnvLocalRank  = "BYWASH_LOCAL_RANK" // this process's number among the job's ranks on this host, from 0
	EnvLocalSize  = "BYWASH_LOCAL_SIZE" // how many these are
	EnvDrivers    = "BYWASH_DRIVERS"    // DRIVER[:DEVICE],…: the drivers of a session that names no rails
)

// rank0Prefix marks an address at which rank 0 serves the rendezvous itself.
const rank0Prefix = "rank0@"

// MaxSize is the largest number of ranks.
const MaxSize = 1 << 24

type environ func(string) string

// launcher is one way to join; seen returns the variable by which it would be chosen, or "".
type launcher struct {
	name string
	seen func(environ) string
	join func(context.Context, environ) (*Client, error)
}

// In the order in which they are looked for: the innermost launcher first.
var launchers = []launcher{
	{nameEmbedded, func(env environ) string { return firstOf(env, EnvRendezvous) }, findEmbedded},
	{namePMIx, func(env environ) string { return firstOf(env, "PMIX_RANK") }, findPMIx},
	{namePMI2, seenPMI2, findPMI2},
	{namePMI1, func(env environ) string { return firstOf(env, envPMIFD, envPMIPort) }, findPMI1},
}

// Find joins the job that this process was started in, according to its environment; without any launcher that is a
// job of one rank. It blocks until the launcher has answered (PMI and PMIx: until all ranks have called Find), ctx
// ends, or 30 seconds have passed without the rendezvous being reachable. A process joins once: another Find fails,
// except alone.
//
// The error names the launcher, the variable by which it was found, and the cause.
func Find(ctx context.Context) (*Client, error) { return find(ctx, os.Getenv) }

func find(ctx context.Context, env environ) (*Client, error) {
	want := env(EnvLauncher)
	if want == nameAlone {
		return findSingle(env)
	}
	for _, l := range launchers {
		seen := l.seen(env)
		if want != "" && l.name != want || want == "" && seen == "" {
			continue
		}
		by := seen
		if want != "" {
			by = EnvLauncher
		}
		j, err := l.join(ctx, env)
		if err != nil {
			return nil, fmt.Errorf("launch %s (by %s): join: %w", l.name, by, err)
		}
		return j, nil
	}
	if want != "" {
		return nil, fmt.Errorf("launch: %s=%s: want embedded, pmi1, pmi2, pmix or alone: %w", EnvLauncher, plain(want), ErrInvalid)
	}
	if err := startedWithoutPMI(env); err != nil {
		return nil, err
	}
	return findSingle(env)
}

// findSingle returns a job of one rank, with the secret of the environment, if it has one.
func findSingle(env environ) (*Client, error) {
	if env(EnvSecret) == "" {
		return Alone(), nil
	}
	secret, err := secretOf(env)
	if err != nil {
		return nil, fmt.Errorf("launch: %w", err)
	}
	return aloneWith(secret), nil
}

// secretOf reads the job's secret, of any length that Serve and Join take.
func secretOf(env environ) ([]byte, error) {
	secret, err := hex.DecodeString(env(EnvSecret))
	if err == nil {
		_, err = jobKey(secret)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: want %d hexadecimal digits, or another even number from 32 on: %w", EnvSecret, 2*SecretSize, ErrInvalid)
	}
	return secret, nil
}

// startedWithoutPMI returns an error for processes that srun has started together without PMI: each would be a job of
// one rank.
func startedWithoutPMI(env environ) error {
	n, _ := strconv.Atoi(env("SLURM_STEP_NUM_TASKS"))
	if n > 1 {
		return fmt.Errorf("launch: srun started %d tasks without PMI: use srun --mpi=pmi2 (or --mpi=pmix), or set %s=%s for %d jobs of one rank: %w",
			n, EnvLauncher, nameAlone, n, ErrInvalid)
	}
	return nil
}

func firstOf(env environ, names ...string) string {
	for _, n := range names {
		if env(n) != "" {
			return n
		}
	}
	return ""
}

// number reads a variable that must be set.
func number(env environ, name string, least, most int) (int, error) {
	s := env(name)
	if s == "" {
		return 0, fmt.Errorf("%s is not set: %w", name, ErrInvalid)
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s=%s: want a number from %d to %d: %w", name, plain(s), least, most, ErrInvalid)
	}
	return n, nil
}

// RankEnv returns the variables, as NAME=value, that let a process join a job whose rendezvous is at addr.
func RankEnv(addr string, rank, size int, secret []byte) []string {
	return []string{
		EnvRendezvous + "=" + addr,
		EnvRank + "=" + strconv.Itoa(rank),
		EnvSize + "=" + strconv.Itoa(size),
		EnvSecret + "=" + hex.EncodeToString(secret),
	}
}

func findEmbedded(ctx context.Context, env environ) (*Client, error) {
	size, err := number(env, EnvSize, 1, MaxSize)
	if err != nil {
		return nil, err
	}
	rank, err := number(env, EnvRank, 0, size-1)
	if err != nil {
		return nil, err
	}
	secret, err := secretOf(env)
	if err != nil {
		return nil, err
	}
	addr, byRank0 := strings.CutPrefix(env(EnvRendezvous), rank0Prefix)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%s: want HOST:PORT or %sHOST:PORT: %w: %w", EnvRendezvous, rank0Prefix, err, ErrInvalid)
	}
	if n, err := strconv.Atoi(port); err == nil && n == 0 {
		return nil, fmt.Errorf("%s=%s: want a port that all ranks know, not 0: %w", EnvRendezvous, plain(env(EnvRendezvous)), ErrInvalid)
	}
	var server *Server
	if byRank0 && rank == 0 {
		limit, err := joinLimit(env)
		if err != nil {
			return nil, err
		}
		ln, err := Listen(ctx, addr)
		if err != nil {
			return nil, err
		}
		server = Serve(ln, size, secret)
		server.limitJoining(printToStderr, waitNoticeTime, limit)
	}
	c, err := joinEmbedded(ctx, addr, rank, size, secret, byRank0)
	if err != nil {
		if server != nil {
			server.Close()
		}
		return nil, err
	}
	c.server = server
	return c, nil
}
