#ifndef KVLOFT_XXH3_H
#define KVLOFT_XXH3_H
#include <stddef.h>
#include <stdint.h>

/* XXH3 of 64 bits with seed 0 and the standard secret. */
uint64_t xxh3_64(const void *data, size_t length);

#endif
