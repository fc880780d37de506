// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The common parts of all datagrams: the first bytes, and the MAC at the end. */
#include "wire_internal.h"

/* Clears a header, and fills the fields that all types share. */
void wire_begin(uint8_t *p, uint8_t type, uint16_t from, uint16_t to,
		uint64_t mine, uint64_t his)
{
	memset(p, 0, WIRE_HEADER);
	p[0] = WIRE_VERSION;
	p[1] = type;
	put16(p + 2, from);
	put16(p + 4, to);
	put64(p + 8, mine);
	put64(p + 16, his);
}

/* Adds the MAC to a datagram of @size bytes. Returns its size. */
uint32_t wire_seal(const uint8_t key[WIRE_KEY], uint8_t *p, uint32_t size)
{
	wire_siphash(key, p, size, p + size);
	return size + WIRE_TAG;
}

/* Verifies the MAC, in time that does not depend on which byte of a forged tag is wrong. */
bool wire_genuine(const uint8_t key[WIRE_KEY], const uint8_t *p, uint32_t size)
{
	uint8_t tag[WIRE_TAG], differ = 0;
	int i;

	if (size < WIRE_COMMON + WIRE_TAG || size > WIRE_MAX_DATAGRAM)
		return false;
	size -= WIRE_TAG;
	wire_siphash(key, p, size, tag);
	for (i = 0; i < WIRE_TAG; i++)
		differ |= tag[i] ^ p[size + i];
	return differ == 0;
}

int wire_destination(const void *datagram, uint32_t size)
{
	const uint8_t *p = datagram;

	if (size < WIRE_COMMON + WIRE_TAG || size > WIRE_MAX_DATAGRAM)
		return -1;
	return get16(p + 4);
}
