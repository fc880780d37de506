//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func envOf(pairs ...string) environ {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return m[name] }
}

// joinFake joins a fake launcher.
func joinFake(t testing.TB, name string, f *fakePMI, rank int) (*Client, error) {
	c := &pmiConn{Conn: f.rank(rank)}
	var kv kvs
	var err error
	if name == namePMI1 {
		p := &pmi1{pmiConn: c, r: bufio.NewReaderSize(c, 4*maxLine1)}
		_, _, err = p.init(envOf(envPMIFD, "3", envPMIRank, itoa(rank), envPMISize, itoa(f.size)))
		kv = p
	} else {
		p := &pmi2{pmiConn: c, r: bufio.NewReaderSize(c, 4096)}
		err = p.init(envOf(envPMIRank, itoa(rank), envPMIJob, "x;y"))
		kv = p
	}
	if err != nil {
		return nil, err
	}
	return joinKV(t.Context(), name, rank, f.size, kv)
}

func TestCardsAreSplitByTheServersLimits(t *testing.T) {
	for _, limit := range []int{64, 100, 1024, 65536} {
		for _, size := range []int{1, 30, 700, 5000, MaxCard} {
			f := &fakePMI{values: map[string]string{}, size: 1, vallen: limit}
			j, err := joinFake(t, namePMI1, f, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := exchange(t.Context(), j, size, 1); err != nil {
				t.Errorf("card of %d, values of %d: %v", size, limit, err)
			}
			for k, v := range f.values {
				line := len("cmd=put kvsname=kvs_4711_0 key= value=\n") + len(k) + len(v)
				if len(v) >= limit || len(k) >= 64 || line >= maxLine1 {
					t.Errorf("key of %d, value of %d, line of %d bytes; limits 64, %d, %d", len(k), len(v), line, limit, maxLine1)
				}
			}
			j.Close()
		}
	}
}

func TestServersThatTakeTooLittleAreRefused(t *testing.T) {
	_, err := joinFake(t, namePMI1, &fakePMI{values: map[string]string{}, size: 1, vallen: 16}, 0)
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("values of 16 bytes: %v, want ErrInvalid", err)
	}
}

func TestSplitCardIsUndoneByJoinCard(t *testing.T) {
	for limit := 16; limit < 200; limit++ {
		for _, size := range []int{1, 2, 3, limit / 2, limit, 1000, 4096} {
			c := card("x", limit, size)
			values := splitValue(c, limit)
			got, err := joinValue(values[0], func(p int) (string, error) { return values[p], nil })
			if err != nil || !bytes.Equal(got, c) {
				t.Errorf("card of %d, limit %d: %v", size, limit, err)
			}
		}
	}
}

// A damaged card is an error.
func TestDamagedCardsAreErrors(t *testing.T) {
	whole := splitValue([]byte("a card"), 100)
	text := whole[0][len("2,6,"):]
	for _, s := range []string{"", "2", "2,", "2,6", "2,6,", "2,7," + text, "2,5," + text, "2,6," + text + "A", "2,6," + text[1:],
		"2,6,!!!!!!!!", "2,-6,YSBjYXJk", "2,999999999,YSBjYXJk", "x,6,YSBjYXJk"} {
		if c, err := joinValue(s, func(int) (string, error) { return "", nil }); err == nil {
			t.Errorf("%q: %q, want an error", s, c)
		}
	}
	if _, err := joinValue("1,6,1,YSBjYXJk", nil); !errors.Is(err, ErrVersion) {
		t.Errorf("card of version 1: %v, want ErrVersion", err)
	}
}

func TestPMI2Quoting(t *testing.T) {
	for _, v := range []string{"", ";", ";;", "a;b", "a;", "=", "a=b;;c"} {
		m, err := read2(strings.NewReader(put2("cmd", "x", "v", v, "w", "1")))
		if err != nil || m["v"] != v || m["w"] != "1" {
			t.Errorf("%q becomes %q, %v", v, m, err)
		}
	}
}

// Errors name the variable that is wrong, in one line, and never contain the secret.
func TestFindErrors(t *testing.T) {
	secret := strings.Repeat("ab", SecretSize)
	for _, c := range []struct {
		env  environ
		want string
	}{
		{envOf(EnvLauncher, "mpd"), "want embedded, pmi1, pmi2, pmix or alone"},
		{envOf(EnvLauncher, "embedded"), EnvSize + " is not set"},
		{envOf(EnvRendezvous, "127.0.0.1:1", EnvSize, "0"), "want a number from 1"},
		{envOf(EnvRendezvous, "127.0.0.1:1", EnvSize, "2", EnvRank, "2"), "want a number from 0 to 1"},
		{envOf(EnvRendezvous, "127.0.0.1:1", EnvSize, "2", EnvRank, "1"), "want 64 hexadecimal digits"},
		{envOf(EnvRendezvous, "nonsense", EnvSize, "2", EnvRank, "1", EnvSecret, secret), "want HOST:PORT"},
		{envOf(EnvRendezvous, "127.0.0.1:1", EnvSize, "2", EnvRank, "1", EnvSecret, secret), "connection refused"},
		{envOf(EnvLauncher, "pmi1"), "neither PMI_FD nor PMI_PORT"},
		{envOf(EnvLauncher, "pmi2"), "PMI_FD is not set"},
		{envOf(envPMIFD, "x"), "want a number"},
		{envOf("SLURM_STEP_NUM_TASKS", "4"), "srun --mpi=pmi2"},
		{envOf(EnvRendezvous, "rank0@127.0.0.1:0", EnvSize, "2", EnvRank, "0", EnvSecret, secret), "want a port that all ranks know"},
		{envOf(EnvSecret, secret[:30]), "want 64 hexadecimal digits"},
		{envOf(EnvSecret, secret[:33]), "want 64 hexadecimal digits"},
	} {
		pmiTaken.Store(false)
		j, err := find(t.Context(), c.env)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, %v; want %q in one line, without the secret", j, err, c.want)
		}
	}
	pmiTaken.Store(false)
	for _, env := range []environ{envOf(), envOf(EnvLauncher, nameAlone, EnvRendezvous, "x"), envOf("SLURM_STEP_NUM_TASKS", "1")} {
		if j, err := find(t.Context(), env); err != nil || j.Name() != nameAlone || j.Size() != 1 {
			t.Errorf("%v, %v; want alone", j, err)
		}
	}
	for _, secret := range []string{secret, secret[:32], secret + "ab"} { // as Serve and Join take them
		if j, err := find(t.Context(), envOf(EnvSecret, secret)); err != nil || j.Name() != nameAlone || hex.EncodeToString(j.Secret()) != secret {
			t.Errorf("alone with a secret of %d digits in the environment: %v, %v", len(secret), j, err)
		}
	}
}

func TestWhichLauncherIsTaken(t *testing.T) {
	for _, c := range []struct {
		env  environ
		want string
	}{
		{envOf(envPMIFD, "x"), "pmi1"},
		{envOf(envPMIPort, "x"), "pmi1"},
		{envOf(envPMIFD, "x", "SLURM_STEP_ID", "0"), "pmi2"},
		{envOf(envPMIFD, "x", "SLURM_STEP_ID", "0", envHydra, "7"), "pmi1"},
		{envOf(EnvRendezvous, "x", envPMIFD, "x"), "embedded"},
		{envOf(EnvLauncher, "pmi1", EnvRendezvous, "x", envPMIFD, "x"), "pmi1"},
	} {
		pmiTaken.Store(false)
		_, err := find(t.Context(), c.env)
		if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("launch %s (by ", c.want)) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	pmiTaken.Store(false)
}
