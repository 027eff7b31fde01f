/*
 * SHA-256 (FIPS 180-4), and codes that are made with it and a key (HMAC, RFC 2104).
 */
#include <string.h>

#include <ctitan/lib/secret.h>

#define BLOCK 64

struct sha {
    uint32_t state[8];
    uint8_t block[BLOCK];
    size_t used;    /* of the block */
    uint64_t bytes; /* of all */
};

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int bits)
{
    return x >> bits | x << (32 - bits);
}

static void expand(const uint8_t block[BLOCK], uint32_t w[64])
{
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];

        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
}

static void compress(struct sha *s)
{
    uint32_t w[64], v[8];

    expand(s->block, w);
    memcpy(v, s->state, sizeof(v));
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t one = v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                       ((e & v[5]) ^ (~e & v[6])) + constants[i] + w[i];
        uint32_t two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                       ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));

        memmove(v + 1, v, 7 * sizeof(*v));
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        s->state[i] += v[i];
    s->used = 0;
}

static void begin(struct sha *s)
{
    *s = (struct sha){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void add(struct sha *s, const void *data, size_t bytes)
{
    const uint8_t *at = data;

    s->bytes += bytes;
    for (size_t i = 0; i < bytes; i++) {
        s->block[s->used++] = at[i];
        if (s->used == BLOCK)
            compress(s);
    }
}

static void end(struct sha *s, uint8_t hash[CT_CODE_BYTES])
{
    uint64_t bits = s->bytes * 8;
    uint8_t length[8], one = 0x80, zero = 0;

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    add(s, &one, 1);
    while (s->used != BLOCK - sizeof(length))
        add(s, &zero, 1);
    add(s, length, sizeof(length));
    for (int i = 0; i < CT_CODE_BYTES; i++)
        hash[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void ct_code(const void *key, size_t key_bytes, const void *data, size_t bytes,
             uint8_t code[CT_CODE_BYTES])
{
    uint8_t padded[BLOCK] = {0};
    struct sha s;

    begin(&s);
    if (key_bytes > BLOCK) {
        add(&s, key, key_bytes);
        end(&s, padded);
        begin(&s);
    } else {
        memcpy(padded, key, key_bytes);
    }
    for (int i = 0; i < BLOCK; i++)
        padded[i] ^= 0x36;
    add(&s, padded, BLOCK);
    add(&s, data, bytes);
    end(&s, code);
    for (int i = 0; i < BLOCK; i++)
        padded[i] ^= 0x36 ^ 0x5c;
    begin(&s);
    add(&s, padded, BLOCK);
    add(&s, code, CT_CODE_BYTES);
    end(&s, code);
}

bool ct_code_is(const uint8_t a[CT_CODE_BYTES], const uint8_t b[CT_CODE_BYTES])
{
    uint8_t difference = 0;

    for (int i = 0; i < CT_CODE_BYTES; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}
