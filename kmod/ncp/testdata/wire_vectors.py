#!/usr/bin/env python3
# Writes wire_vectors.txt: python3 wire_vectors.py > wire_vectors.txt
#
# The datagrams of two conversations, built from docs/wire.md ("QNIX datagrams") alone, without the C
# code. In both, NIC 0x0102 (the lower one) and NIC 0x0304 have the key 00 01 .. 0f, frames of at most
# 1000 bytes, datagrams of at most 1452 (the lower) and 1400 (the higher), buffers of 4096 bytes. The clock
# of the one that is tested stands at 1 s, its random numbers are splitmix64's, seeded with 7.

M = (1 << 64) - 1


def rotate(x, n):
    return (x << n | x >> (64 - n)) & M


def sip_round(v):
    a, b, c, d = v
    a = (a + b) & M; b = rotate(b, 13) ^ a; a = rotate(a, 32)
    c = (c + d) & M; d = rotate(d, 16) ^ c
    a = (a + d) & M; d = rotate(d, 21) ^ a
    c = (c + b) & M; b = rotate(b, 17) ^ c; c = rotate(c, 32)
    v[:] = a, b, c, d


def siphash128(key, data):
    k0, k1 = (int.from_bytes(key[i:i + 8], "little") for i in (0, 8))
    v = [k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d ^ 0xee,
         k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573]
    whole = len(data) // 8 * 8
    words = [data[i:i + 8] for i in range(0, whole, 8)]
    words.append(data[whole:].ljust(7, b"\0") + bytes([len(data) & 255]))
    for w in words:
        m = int.from_bytes(w, "little")
        v[3] ^= m
        sip_round(v); sip_round(v)
        v[0] ^= m
    out = b""
    for end in (2, 1):
        if end == 2:
            v[2] ^= 0xee
        else:
            v[1] ^= 0xdd
        for _ in range(4):
            sip_round(v)
        out += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return out


def splitmix64(seed):
    while True:
        seed = (seed + 0x9e3779b97f4a7c15) & M
        x = seed
        x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & M
        x = ((x ^ x >> 27) * 0x94d049bb133111eb) & M
        yield x ^ x >> 31


KEY = bytes(range(16))
LOW, HIGH = 0x0102, 0x0304
HELLO, WELCOME, CONFIRM, CONNECT_REQUEST, DATA, CLOSE, WHO, HERE = range(1, 9)
STAMP = 1_000_000_000 >> 10  # of one second


def be(size, *numbers):
    return b"".join(n.to_bytes(size, "big") for n in numbers)


def seal(data, version=3):
    return data + siphash128(KEY, data)


def common(kind, source, destination, mine, his, flags=0, words=0, version=3):
    return bytes([version, kind]) + be(2, source, destination) + bytes([flags, words]) + be(8, mine, his)


def greeting(kind, source, mine, his, current=0, version=3):
    destination, size = (HIGH, 1452) if source == LOW else (LOW, 1400)
    head = common(kind, source, destination, mine, his, version=version)
    return seal(head + be(8, current) + be(4, 4096, 1000, size) + bytes(28))


def data(source, mine, his, number, ack, credit, sequence, position=0, stamp=STAMP, echo=0, delay=0,
         duplicates=0, flags=0, bitmap=(), fragment=b"", kind=DATA):
    destination = HIGH if source == LOW else LOW
    return seal(common(kind, source, destination, mine, his, flags, len(bitmap)) + be(8, number, ack, credit) +
                be(4, stamp, echo) + be(8, sequence) + be(4, position) + be(2, delay, duplicates) +
                be(8, *bitmap) + fragment)


def frame(content):
    record = be(4, len(content)) + content
    return record + bytes(-len(record) % 8)


def show(name, datagram):
    print(name + ": " + datagram.hex())


print("# Written by wire_vectors.py, which says what this is.")
for n in (0, 1, 7, 8, 15, 63):
    show("siphash %d" % n, siphash128(KEY, bytes(range(n))))

# The lower NIC is tested. A link takes two random numbers for its secret, then each hello one.
random = splitmix64(7)
secret = be(8, next(random), next(random))
a, b = next(random), 0x0b0b0b0b0b0b0b0b
show("lower in connect request", greeting(CONNECT_REQUEST, HIGH, 0, 0))
show("lower out hello", greeting(HELLO, LOW, a, 0))
show("lower in welcome", greeting(WELCOME, HIGH, b, a))
show("lower out confirm", greeting(CONFIRM, LOW, a, b))
first = frame(b"first")
show("lower in data", data(HIGH, b, a, 1, 0, 4096, 0, fragment=first, stamp=77, flags=1))
show("lower out ack", data(LOW, a, b, 1, 1, 4096, 0, echo=77))
out = frame(b"hello, world") + frame(b"again")
# The frame that came has been consumed: 16 bytes more of credit.
show("lower out data", data(LOW, a, b, 2, 1, 4096 + len(first), 0, echo=77, fragment=out))
# The fragments 2 and 4 come without 1 and 3.
show("lower in gap 2", data(HIGH, b, a, 2, 1, 4096 + len(out), 2, position=32, fragment=frame(b"two"), stamp=78))
show("lower in gap 4", data(HIGH, b, a, 3, 1, 4096 + len(out), 4, position=48, fragment=frame(b"four"), stamp=79))
show("lower out bitmap", data(LOW, a, b, 3, 1, 4096 + len(first), 1, echo=79, bitmap=(0b101,)))
show("lower in repeated 4", data(HIGH, b, a, 4, 1, 4096 + len(out), 4, position=48, fragment=frame(b"four"), stamp=80))
show("lower out duplicate", data(LOW, a, b, 4, 1, 4096 + len(first), 1, echo=80, duplicates=1, bitmap=(0b101,)))
show("lower out close", data(LOW, a, b, 5, 1, 4096 + len(first), 1, echo=80, kind=CLOSE, duplicates=1))

# The higher NIC is tested. What it welcomes with is its own matter; here: a MAC under its secret.
random = splitmix64(7)
secret = be(8, next(random), next(random))
a = 0x0a0a0a0a0a0a0a0a
b = int.from_bytes(siphash128(secret, be(8, a))[:8], "big")
show("higher in hello", greeting(HELLO, LOW, a, 0))
show("higher out welcome", greeting(WELCOME, HIGH, b, a))
show("higher in confirm", greeting(CONFIRM, LOW, a, b))
show("higher out data", data(HIGH, b, a, 1, 0, 4096, 0))
show("higher in hello again", greeting(HELLO, LOW, a + 1, 0))
# The secret is another one since the link came up.
secret = be(8, next(random), next(random))
other = int.from_bytes(siphash128(secret, be(8, a + 1))[:8], "big")
show("higher out welcome again", greeting(WELCOME, HIGH, other, a + 1, current=b))
show("higher in version 1", greeting(HELLO, LOW, a, 0, version=1))
show("higher in close", data(LOW, a, b, 1, 0, 4096, 0, kind=CLOSE))

# Who is there?
show("who", seal(common(WHO, LOW, 0, 0x0c0c, 0) + be(2, 5) + bytes(118)))
show("here", seal(common(HERE, 0, LOW, 0, 0x0c0c) + be(2, 2, 9, 700) + bytes(114)))
