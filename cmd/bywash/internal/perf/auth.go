package perf

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The handshake of two machines, of fixed sizes so that nothing is parsed
// before the other side has proved that it knows the secret:
//
//	dialer → listener  magic, nonce D
//	listener → dialer  magic, nonce L, HMAC(secret, "listener" D L)
//	dialer → listener  HMAC(secret, "dialer" D L)
//	listener → dialer  magic
//
// The last one tells the dialer that it was admitted. The keys that
// authenticate the frames that follow come from the same secret and nonces.
const (
	magic            = "bywash-perf 1\r\n\x00"
	nonceSize        = 32
	handshakeTimeout = 5 * time.Second
	minSecret        = 16
	maxSecret        = 4096
)

var errSecret = errors.New("the other side has another secret: use the same --secret-file on both")

func proof(secret []byte, label string, d, l []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(label))
	h.Write([]byte{0})
	h.Write(d)
	h.Write(l)
	return h.Sum(nil)
}

// authenticate does the handshake on conn.
func authenticate(conn net.Conn, secret []byte, listener bool) (*frameKeys, error) {
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	defer conn.SetDeadline(time.Time{})
	mine := make([]byte, nonceSize)
	if _, err := rand.Read(mine); err != nil {
		return nil, err
	}
	if listener {
		return admit(conn, secret, mine)
	}
	return present(conn, secret, mine)
}

func admit(conn io.ReadWriter, secret, l []byte) (*frameKeys, error) {
	d, err := readHello(conn)
	if err != nil {
		return nil, err
	}
	hello := append(append([]byte(magic), l...), proof(secret, "listener", d, l)...)
	if _, err := conn.Write(hello); err != nil {
		return nil, err
	}
	if err := readProof(conn, proof(secret, "dialer", d, l)); err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte(magic)); err != nil {
		return nil, err
	}
	return &frameKeys{send: proof(secret, "to dialer", d, l), recv: proof(secret, "to listener", d, l)}, nil
}

func present(conn io.ReadWriter, secret, d []byte) (*frameKeys, error) {
	if _, err := conn.Write(append([]byte(magic), d...)); err != nil {
		return nil, err
	}
	l, err := readHello(conn)
	if err != nil {
		return nil, err
	}
	if err := readProof(conn, proof(secret, "listener", d, l)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(proof(secret, "dialer", d, l)); err != nil {
		return nil, err
	}
	last := make([]byte, len(magic))
	if _, err := io.ReadFull(conn, last); err != nil || string(last) != magic {
		return nil, errSecret
	}
	return &frameKeys{send: proof(secret, "to listener", d, l), recv: proof(secret, "to dialer", d, l)}, nil
}

func readHello(r io.Reader) (nonce []byte, err error) {
	b := make([]byte, len(magic)+nonceSize)
	if _, err := io.ReadFull(r, b[:len(magic)]); err != nil {
		return nil, fmt.Errorf("handshake: %w (is that bywash perf --listen?)", err)
	}
	if string(b[:len(magic)]) != magic {
		if bytes.HasPrefix(b, []byte("bywash-perf ")) {
			return nil, errors.New("the other side speaks another version of the protocol: use the same release on both")
		}
		return nil, errors.New("the other side is not bywash perf")
	}
	if _, err := io.ReadFull(r, b[len(magic):]); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return b[len(magic):], nil
}

func readProof(r io.Reader, want []byte) error {
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil {
		return errSecret // the other side hung up on our proof
	}
	if !hmac.Equal(got, want) {
		return errSecret
	}
	return nil
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
