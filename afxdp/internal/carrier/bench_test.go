//go:build linux && !(386 || arm || mips || mipsle)

package carrier

import (
	"fmt"
	"testing"
)

func BenchmarkSum(b *testing.B) {
	for _, n := range []int{64, 1400, 8900} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data, total := make([]byte, n), uint64(0)
			b.SetBytes(int64(n))
			for b.Loop() {
				total += uint64(sum(data))
			}
			_ = total
		})
	}
}

func eachFrame(b *testing.B, f func(b *testing.B, p *Path, frame []byte, payload int)) {
	for _, k := range []Kind{UDP4, UDP6, Ether} {
		for _, check := range []Checksum{ChecksumFull, ChecksumNone} {
			if k != UDP4 && check != ChecksumFull {
				continue
			}
			for _, n := range []int{64, 1400} {
				b.Run(fmt.Sprintf("%v/%s/%d", k, [...]string{"sum", "nosum"}[check], n), func(b *testing.B) {
					p, err := NewPath(with(aConfig(k), func(c *Config) { c.Checksum = check }))
					if err != nil {
						b.Fatal(err)
					}
					frame := make([]byte, p.HeaderLen()+n)
					p.Put(frame, n)
					b.ReportAllocs()
					f(b, &p, frame, n)
				})
			}
		}
	}
}

func BenchmarkPut(b *testing.B) {
	eachFrame(b, func(b *testing.B, p *Path, frame []byte, payload int) {
		for b.Loop() {
			p.Put(frame, payload)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	f := &Filter{Kinds: allKinds, MAC: mac2, Port: 7070}
	eachFrame(b, func(b *testing.B, _ *Path, frame []byte, _ int) {
		for b.Loop() {
			if _, code := Parse(frame, f); code != OK {
				b.Fatal(code)
			}
		}
	})
}
