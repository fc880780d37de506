//go:build linux

package control

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/handshake"
)

const maxSecret = 4096

// readSecret reads a secret file. Other users must not be able to read it: with the secret they could make this process
// open drivers.
func readSecret(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("secret file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("secret file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("secret file %s is not a regular file", name)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("secret file %s can be read by others: chmod 600 %s", name, name)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return nil, fmt.Errorf("secret file: %w", err)
	}
	b = bytes.TrimSpace(b)
	if len(b) > maxSecret {
		return nil, fmt.Errorf("secret file %s: %d bytes, want at most %d", name, len(b), maxSecret)
	}
	if _, err := handshake.NewKey(b); err != nil {
		return nil, fmt.Errorf("secret file %s: %w", name, err)
	}
	return b, nil
}

// listenerSecret reads the secret file of a listener, or makes it if it is missing.
func listenerSecret(name string, info io.Writer) ([]byte, error) {
	secret, err := readSecret(name)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return secret, err
	}
	if secret, err = makeSecret(name); err != nil {
		return nil, fmt.Errorf("make a secret file: %w", err)
	}
	fmt.Fprintf(info, "bywash: made the secret file %s; copy it to the other machine: scp %s HOST:\n", name, name)
	return secret, nil
}

func makeSecret(name string) ([]byte, error) {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	secret := []byte(hex.EncodeToString(raw[:]))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(append(bytes.Clone(secret), '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(name)
		return nil, err
	}
	return secret, nil
}
