package perf

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/handshake"
)

const (
	handshakeTimeout = 5 * time.Second
	minSecret        = handshake.MinSecret
	maxSecret        = 4096
)

var errSecret = errors.New("the other side has another secret: use the same --secret-file on both")

// frames are what carries control messages.
type frames interface {
	Send([]byte) error
	// Receive returns the next one, which is valid until the next call.
	Receive() ([]byte, error)
}

var frameConfig = handshake.Config{Protocol: "bywash perf", Limit: maxFrame}

// authenticate does the handshake of two machines on conn.
func authenticate(conn net.Conn, secret []byte, listener bool) (frames, error) {
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	defer conn.SetDeadline(time.Time{})
	return introduce(conn, secret, listener)
}

func introduce(conn io.ReadWriter, secret []byte, listener bool) (frames, error) {
	key, err := handshake.NewKey(secret)
	if err != nil {
		return nil, err
	}
	var c *handshake.Conn
	if listener {
		c, _, err = handshake.Accept(conn, key.Find, &frameConfig)
	} else {
		c, err = handshake.Dial(conn, key, &frameConfig, nil)
	}
	switch {
	case errors.Is(err, handshake.ErrSecret):
		return nil, errSecret
	case errors.Is(err, handshake.ErrVersion):
		return nil, errors.New("the other side speaks another version of the protocol: use the same release on both")
	case errors.Is(err, handshake.ErrMalformed):
		return nil, errors.New("the other side is not bywash perf")
	case err != nil:
		return nil, fmt.Errorf("handshake: %w (is that bywash perf --listen?)", err)
	}
	return c, nil
}

// readSecret reads a secret file. Others may not read it: whoever has the
// secret can make this process open drivers.
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
	if len(b) < minSecret || len(b) > maxSecret {
		return nil, fmt.Errorf("secret file %s: %d bytes, want %d to %d", name, len(b), minSecret, maxSecret)
	}
	return b, nil
}

// makeSecret writes a new secret to name, or to a fresh file if it is empty.
func makeSecret(name string) (secret []byte, file string, err error) {
	var raw [32]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, "", err
	}
	secret = []byte(hex.EncodeToString(raw[:]))
	var f *os.File
	if name == "" {
		f, err = os.CreateTemp("", "bywash-secret-*")
	} else {
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return nil, "", fmt.Errorf("make a secret file: %w (name one with --secret-file)", err)
	}
	_, err = f.Write(append(bytes.Clone(secret), '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return nil, "", fmt.Errorf("make a secret file: %w", err)
	}
	return secret, f.Name(), nil
}
