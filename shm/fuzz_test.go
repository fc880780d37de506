//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// A set-up message that parses is encoded to the same bytes.
func FuzzMessageParse(f *testing.F) {
	for _, g := range goldenMessages() {
		f.Add(g.m.append(nil))
	}
	f.Add([]byte{})
	f.Add([]byte{0x68, 0x53, 0x79, 0x42, 1, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		if m.parse(b) != nil {
			return
		}
		if again := m.append(nil); !bytes.Equal(again, b) {
			t.Errorf("got % x after parsing and encoding, want % x", again, b)
		}
	})
}

// A key that is damaged, forged or expired is an error, and harms nothing.
func FuzzKey(f *testing.F) {
	c, peer := open(f, driver.Small, nil), open(f, driver.Small, nil)
	a, b := join(f, c, peer)
	own, err := c.Connect(c.URL())
	if err != nil {
		f.Fatal(err)
	}
	if err := own.ConnectWait(context.Background()); err != nil {
		f.Fatal(err)
	}
	r, err := peer.(driver.Registrar).Register(make([]byte, 4096), driver.RemoteRead)
	if err != nil {
		f.Fatal(err)
	}
	mine, err := c.(driver.Registrar).Register(make([]byte, 4096), driver.RemoteRead)
	if err != nil {
		f.Fatal(err)
	}
	key := bytes.Clone(r.Key())
	f.Add(key)
	f.Add(bytes.Clone(mine.Key()))
	f.Add(key[:keyBytes-1])
	f.Add([]byte{})
	for _, i := range []int{4, 7, 8, 16, 24, 32, 40} {
		bad := bytes.Clone(key)
		bad[i] ^= 0x80
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, b2 []byte) {
		for _, i := range []driver.Instance{a, b, own} {
			remote, err := i.(driver.OneSided).Import(b2)
			if err != nil {
				if !errors.Is(err, driver.ErrRemoteKey) {
					t.Errorf("got %v, want ErrRemoteKey", err)
				}
				oneLine(t, err)
				continue
			}
			right := i == a && bytes.Equal(b2, r.Key()) || i == b && bytes.Equal(b2, mine.Key()) || i == own && bytes.Equal(b2, mine.Key())
			if !right {
				t.Errorf("a forged key % x was taken for a region of %d bytes", b2, remote.Len())
			}
		}
	})
}

// A damaged url is an error of one line. A url that is accepted is written back with the same meaning, and both ends
// agree whether they reach each other.
func FuzzURL(f *testing.F) {
	dir := f.TempDir()
	c := open(f, driver.Small, map[string]string{"dir": dir})
	f.Add(c.URL())
	const head = "0011223344556677,8899aabbccddeeff,0123456789abcdef,effffffd,1000"
	f.Add("shm:2:0000000000000001:" + head + ",p,/nowhere/0000000000000001.shm")
	f.Add("shm:3:0000000000000001:" + head + ",p,/nowhere/0000000000000001.shm")
	f.Add("shm:2:ffffffffffffffff:" + head + "+1001,s," + dir)
	f.Add("shm:2:ffffffffffffffff:" + head + "+1001,m," + dir + "/ffffffffffffffff.shm")
	f.Add("shm:2:ffffffffffffffff:" + head + "+,p,/dev/null")
	f.Add("shm:2:ffffffffffffffff:" + head + ",p,%2fa%00b")
	f.Add("shm:2:ffffffffffffffff:" + head + ",s," + strings.Repeat("/a", 100))
	f.Add("shm:2:ffffffffffffffff:" + head + ",s,relative")
	f.Add("shm:2:ffffffffffffffff:/dev/null")
	f.Add("tcp:1:ffffffffffffffff:/x")
	f.Fuzz(func(t *testing.T, url string) {
		u, err := driver.ParseURL(url, driver.MaxURL)
		if p, bad := parsePlace(u); err == nil && bad == nil {
			q, bad := parsePlace(driver.URL{Incarnation: u.Incarnation, Rest: p.String()})
			if bad != nil || !reflect.DeepEqual(p, q) {
				t.Fatalf("%q is read as %+v, and what that is written as, %q, as %+v, %v", u.Rest, p, p.String(), q, bad)
			}
			if own := core(c).place; own.apart(&p) == "" != (p.apart(&own) == "") {
				t.Fatalf("%q: this end returns %q, the other end %q", u.Rest, own.apart(&p), p.apart(&own))
			}
			if here := filepath.Dir(p.path); u.Incarnation != core(c).Incarnation && !strings.Contains(here, "nowhere") && here != dir {
				p.path = filepath.Join(dir, filepath.Base(p.path)) // no sockets of others
				u.Rest = p.String()
				url = u.String()
			}
		}
		i, err := c.Connect(url)
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) && !errors.Is(err, driver.ErrVersion) {
				t.Errorf("got %v, want ErrInvalid or ErrVersion", err)
			}
			oneLine(t, err)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := i.ConnectWait(ctx); err != nil {
			if !errors.Is(err, driver.ErrBroken) {
				t.Errorf("%q: got %v, want ErrBroken", url, err)
			}
			oneLine(t, err)
		}
		if err := i.Disconnect(); err != nil {
			t.Error(err)
		}
	})
}

// An option that is not accepted is ErrInvalid, in one line.
func FuzzOptions(f *testing.F) {
	for k, v := range map[string]string{"dir": "/tmp", "allow-uids": "1,2", "path": "cma", "ends": "both", "ptracer": "off", "membarrier": "off", "nonsense": ""} {
		f.Add(k, v)
	}
	f.Add("dir", "")
	f.Add("allow-uids", "4294967296")
	f.Add("allow-uids", "")
	f.Add("path", "Ring")
	f.Fuzz(func(t *testing.T, k, v string) {
		_, err := shmDriver{}.Query(driver.Hints{Options: map[string]string{k: v}})
		if err == nil {
			return
		}
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("option %q=%q: got %v, want ErrInvalid", k, v, err)
		}
		oneLine(t, err)
	})
}

// Rdv data other than that of the posted receive is an error of the contract.
func FuzzRdvData(f *testing.F) {
	a, b := pair(f, driver.Large, map[string]string{"path": "arena"})
	var r driver.Packet
	r.IOV = [][]byte{make([]byte, 100)}
	if err := b.RecvPost(&r); err != nil {
		f.Fatal(err)
	}
	right := bytes.Clone(r.RdvData)
	f.Add(right[:rdvBytes-1])
	f.Add([]byte{})
	f.Add(make([]byte, rdvBytes))
	for i := range rdvBytes {
		bad := bytes.Clone(right)
		bad[i] ^= 1 << (i % 8)
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Equal(data, right) {
			return
		}
		p := driver.Packet{IOV: [][]byte{make([]byte, 10)}, RdvData: data}
		err := a.SendPost(&p)
		if !errors.Is(err, driver.ErrInvalid) && !errors.Is(err, driver.ErrCanceled) {
			t.Errorf("got %v, want ErrInvalid or ErrCanceled", err)
		}
		oneLine(t, err)
		if p.Driver.Phase != driver.Idle {
			t.Error("the packet was taken")
		}
	})
}
