/*
 * panel.h: where things stand in a weight panel, an int8 activation row and a KV cache.
 *
 * Shared by repack.c, which writes these layouts with plain C, and by the kernel objects, which
 * read them.
 *
 * A quantised panel is a run of blocks of 32 columns x 16 rows. A 64-byte register of quants is 16
 * int32 lanes, one for each row; a lane holds 4 neighbouring columns, a "group". So one broadcast
 * of 4 int8 activations multiplies all 16 rows. Register j of a nibble type holds group j low and
 * group j + 4 high.
 */
#ifndef CALDRIX_PANEL_H
#define CALDRIX_PANEL_H

#include "../dtype.h"
#include "kernels.h"

#define CX_NIBBLES 256 /* bytes of 4-bit quants of a block: 4 registers */

/* Bytes before the blocks of a superblock: f16 d[16] (and f16 dmin[16]); 0 for simple types. */
static inline int32_t cx_panel_head(uint32_t dtype) {
    return dtype == CX_Q4_K || dtype == CX_Q5_K ? 64 : dtype == CX_Q6_K ? 32 : 0;
}

/*
 * Bytes of a block of 32 columns (of one column for the float types):
 *   Q4_0 nibbles, f16 d[16]            Q4_1 nibbles, d, f16 m[16]
 *   Q5_0 nibbles, fifth bits 64, d     Q5_1 nibbles, fifth bits, d, m     Q8_0 bytes + 128, d
 *   Q4_K nibbles, u8 scale[16], u8 min[16]                Q5_K nibbles, fifth bits, scale, min
 *   Q6_K nibbles, bits 4-5 of groups 0-3 then 4-7 (64 each), i8 scale[2][16]
 * Fifth bits: bit g of byte j belongs to byte j of group g. Bits 4-5: bits 2*(g & 3).. of byte j.
 */
static inline int32_t cx_panel_block(uint32_t dtype) {
    switch (dtype) {
    case CX_F32: return 64;
    case CX_F16:
    case CX_BF16: return 32;
    case CX_Q4_0: return CX_NIBBLES + 32;
    case CX_Q4_1: return CX_NIBBLES + 64;
    case CX_Q5_0: return CX_NIBBLES + 64 + 32;
    case CX_Q5_1: return CX_NIBBLES + 64 + 64;
    case CX_Q8_0: return 512 + 32;
    case CX_Q4_K: return CX_NIBBLES + 32;
    case CX_Q5_K: return CX_NIBBLES + 64 + 32;
    case CX_Q6_K: return CX_NIBBLES + 128 + 32;
    default: return 0;
    }
}

/* Bytes from the panel's start to block b, which is a block of superblock b / 8 for K-quants. */
static inline size_t cx_panel_at(uint32_t dtype, int32_t b) {
    size_t head = (size_t)cx_panel_head(dtype), block = (size_t)cx_panel_block(dtype);
    if (head == 0) return (size_t)b * block;
    return (size_t)(b >> 3) * (head + 8 * block) + head + (size_t)(b & 7) * block;
}

/* int8 activations: one cache line a block. The offsets of unsigned quants are paid for by
 * starting an integer sum at minus offset * sum(q). */
typedef struct {
    int8_t q[CX_ACT_BLOCK];
    float scale;
    float scaled_sum; /* scale * sum(q) */
    int32_t minus8, minus16, minus128; /* -8 * sum(q) ... */
    int32_t minus32[2];                /* of values 0..15 and 16..31 */
    int32_t unused;
} cx_q8_block;
_Static_assert(sizeof(cx_q8_block) == 64, "one cache line");

/* KV cache: for each kv head the keys, then the values. Keys: blocks of 16 positions, each
 * [head_dim][16]. Values: [position][head_dim rounded up to 16]. */
#define CX_KV_LANES 16
#define CX_KEY_BLOCK 64 /* positions of a softmax block; the cache holds a whole number of them */

static inline size_t cx_kv_positions(int32_t context) {
    return ((size_t)context + CX_KEY_BLOCK - 1) / CX_KEY_BLOCK * CX_KEY_BLOCK;
}
static inline size_t cx_kv_value_width(int32_t head_dim) {
    return ((size_t)head_dim + CX_KV_LANES - 1) / CX_KV_LANES * CX_KV_LANES;
}
/* Elements of the keys, and of keys and values, of one kv head. */
static inline size_t cx_kv_keys(int32_t head_dim, int32_t context) {
    return cx_kv_positions(context) * (size_t)head_dim;
}
static inline size_t cx_kv_head(int32_t head_dim, int32_t context) {
    return cx_kv_positions(context) * ((size_t)head_dim + cx_kv_value_width(head_dim));
}

#endif
