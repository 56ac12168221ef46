/* XXH3 of 64 bits, after its specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md): seed 0, standard secret. */
#include "xxh3.h"

#include <string.h>

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u
#define PRIME_MX1 0x165667919E3779F9u
#define PRIME_MX2 0x9FB21C651E98DF25u

enum { SECRET = 192, LANES = 8, STRIPE = 64, STRIPES = (SECRET - STRIPE) / 8, BLOCK = STRIPE * STRIPES };

static const uint8_t secret[SECRET] __attribute__((aligned(64))) = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t
read64(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline uint32_t
read32(const uint8_t *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap32(word);
#endif
    return word;
}

static inline uint64_t
rotate(uint64_t word, int by)
{
    return word << by | word >> (64 - by);
}

static inline uint64_t
fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t
avalanche(uint64_t hash)
{
    hash = (hash ^ hash >> 37) * PRIME_MX1;
    return hash ^ hash >> 32;
}

static inline uint64_t
avalanche_xxh64(uint64_t hash)
{
    hash = (hash ^ hash >> 33) * PRIME64_2;
    hash = (hash ^ hash >> 29) * PRIME64_3;
    return hash ^ hash >> 32;
}

static uint64_t
hash_up_to_16(const uint8_t *data, size_t length)
{
    if (length > 8) {
        uint64_t low = read64(data) ^ read64(secret + 24) ^ read64(secret + 32);
        uint64_t high = read64(data + length - 8) ^ read64(secret + 40) ^ read64(secret + 48);
        return avalanche(length + __builtin_bswap64(low) + high + fold(low, high));
    }
    if (length >= 4) {
        uint64_t both = read32(data + length - 4) | (uint64_t)read32(data) << 32;
        uint64_t hash = both ^ read64(secret + 8) ^ read64(secret + 16);
        hash = (hash ^ rotate(hash, 49) ^ rotate(hash, 24)) * PRIME_MX2;
        hash = (hash ^ ((hash >> 35) + length)) * PRIME_MX2;
        return hash ^ hash >> 28;
    }
    if (length) {
        uint32_t all = (uint32_t)data[0] << 16 | (uint32_t)data[length >> 1] << 24 | data[length - 1] | (uint32_t)length << 8;
        return avalanche_xxh64(all ^ read32(secret) ^ read32(secret + 4));
    }
    return avalanche_xxh64(read64(secret + 56) ^ read64(secret + 64));
}

static inline uint64_t
mix(const uint8_t *data, const uint8_t *key)
{
    return fold(read64(data) ^ read64(key), read64(data + 8) ^ read64(key + 8));
}

static uint64_t
hash_up_to_240(const uint8_t *data, size_t length)
{
    uint64_t hash = length * PRIME64_1;
    if (length <= 128) {
        for (size_t at = 0, pairs = (length - 1) / 32; at <= pairs; at++)
            hash += mix(data + 16 * at, secret + 32 * at) + mix(data + length - 16 * (at + 1), secret + 32 * at + 16);
        return avalanche(hash);
    }
    for (size_t at = 0; at < 8; at++)
        hash += mix(data + 16 * at, secret + 16 * at);
    hash = avalanche(hash);
    for (size_t at = 8; at < length / 16; at++)
        hash += mix(data + 16 * at, secret + 16 * (at - 8) + 3);
    return avalanche(hash + mix(data + length - 16, secret + 136 - 17));
}

/* Stripes of 64 bytes go into eight lanes side by side, which is what vector units are made for. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define VECTORS
#endif

static inline __attribute__((always_inline)) void
accumulate(uint64_t *lanes, const uint8_t *data, const uint8_t *key)
{
    uint64_t words[LANES];
    for (int i = 0; i < LANES; i++)
        words[i] = read64(data + 8 * i);
    for (int i = 0; i < LANES; i++) {
        uint64_t keyed = words[i] ^ read64(key + 8 * i);
        lanes[i] += words[i ^ 1] + (uint64_t)(uint32_t)keyed * (uint32_t)(keyed >> 32);
    }
}

VECTORS static void
accumulate_all(uint64_t *result, const uint8_t *data, size_t length)
{
    uint64_t lanes[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    const uint8_t *last = data + length - STRIPE;
    size_t blocks = (length - 1) / BLOCK, rest = (length - 1) % BLOCK / STRIPE;
    for (size_t block = 0; block < blocks; block++, data += BLOCK) {
        for (int stripe = 0; stripe < STRIPES; stripe++) {
            __builtin_prefetch(data + STRIPE * stripe + 512, 0, 0);
            accumulate(lanes, data + STRIPE * stripe, secret + 8 * stripe);
        }
        for (int i = 0; i < LANES; i++)
            lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ read64(secret + SECRET - STRIPE + 8 * i)) * PRIME32_1;
    }
    for (size_t stripe = 0; stripe < rest; stripe++)
        accumulate(lanes, data + STRIPE * stripe, secret + 8 * stripe);
    accumulate(lanes, last, secret + SECRET - STRIPE - 7);
    memcpy(result, lanes, sizeof lanes);
}

uint64_t
xxh3_64(const void *start, size_t length)
{
    const uint8_t *data = start;
    if (length <= 16)
        return hash_up_to_16(data, length);
    if (length <= 240)
        return hash_up_to_240(data, length);
    uint64_t lanes[LANES], hash = length * PRIME64_1;
    accumulate_all(lanes, data, length);
    for (int i = 0; i < LANES; i += 2)
        hash += fold(lanes[i] ^ read64(secret + 11 + 8 * i), lanes[i + 1] ^ read64(secret + 11 + 8 * i + 8));
    return avalanche(hash);
}
