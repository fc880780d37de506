// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * SipHash-2-4 with 128 bits of output, after Aumasson and Bernstein, "SipHash: a fast
 * short-input PRF" (2012), and its reference's longer variant. The kernel's function has 64
 * bits, and user space has none.
 */
#include "siphash.h"

struct sip {
	uint64_t a, b, c, d;
};

static inline uint64_t rotate(uint64_t x, int n)
{
	return x << n | x >> (64 - n);
}

static inline void sip_round(struct sip *s)
{
	s->a += s->b;
	s->c += s->d;
	s->b = rotate(s->b, 13) ^ s->a;
	s->d = rotate(s->d, 16) ^ s->c;
	s->a = rotate(s->a, 32);
	s->c += s->b;
	s->a += s->d;
	s->b = rotate(s->b, 17) ^ s->c;
	s->d = rotate(s->d, 21) ^ s->a;
	s->c = rotate(s->c, 32);
}

static inline uint64_t load(const uint8_t *p)
{
	return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 |
	       (uint64_t)p[3] << 24 | (uint64_t)p[4] << 32 |
	       (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 |
	       (uint64_t)p[7] << 56;
}

static inline void absorb(struct sip *s, uint64_t word)
{
	s->d ^= word;
	sip_round(s);
	sip_round(s);
	s->a ^= word;
}

static void squeeze(struct sip *s, uint8_t *to)
{
	uint64_t word;
	int i;

	for (i = 0; i < 4; i++)
		sip_round(s);
	word = s->a ^ s->b ^ s->c ^ s->d;
	for (i = 0; i < 8; i++)
		to[i] = (uint8_t)(word >> (8 * i));
}

void wire_siphash(const uint8_t key[16], const void *data, size_t size,
		  uint8_t tag[16])
{
	const uint64_t k0 = load(key), k1 = load(key + 8);
	struct sip s = {
		.a = k0 ^ 0x736f6d6570736575ull,
		.b = k1 ^ 0x646f72616e646f6dull ^ 0xee,
		.c = k0 ^ 0x6c7967656e657261ull,
		.d = k1 ^ 0x7465646279746573ull,
	};
	const uint8_t *p = data;
	uint64_t last = (uint64_t)size << 56;
	size_t i;

	for (; size >= 8; size -= 8, p += 8)
		absorb(&s, load(p));
	for (i = 0; i < size; i++)
		last |= (uint64_t)p[i] << (8 * i);
	absorb(&s, last);
	s.c ^= 0xee;
	squeeze(&s, tag);
	s.b ^= 0xdd;
	squeeze(&s, tag + 8);
}
