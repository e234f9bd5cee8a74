/*
 * dtype.h: the element types of weight files: block structs and plain scalar conversions.
 *
 * A block dequantises to exactly the floats that ggml gives it. Every product of a scale and a
 * quant fits a float's 24 bits, so only the addition of a minimum rounds. Static inline only, no
 * vector types: the layout helpers and every kernel object include this.
 */
#ifndef CALDRIX_DTYPE_H
#define CALDRIX_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "caldrix.h"

#define CX_QK 32   /* values of a simple block */
#define CX_QK_K 256 /* values of a K-quant superblock */

/* The blocks of a file may start at any byte, whatever alignment its header promises. */
#define CX_FILE_BLOCK __attribute__((packed))

/* Quants j and j + 16 of a simple block share byte j: low and high nibble. qh holds bit 4 of value
 * j in bit j. */
typedef struct CX_FILE_BLOCK {
    uint16_t d;
    uint8_t qs[16];
} cx_block_q4_0;
typedef struct CX_FILE_BLOCK {
    uint16_t d, m;
    uint8_t qs[16];
} cx_block_q4_1;
typedef struct CX_FILE_BLOCK {
    uint16_t d;
    uint8_t qh[4], qs[16];
} cx_block_q5_0;
typedef struct CX_FILE_BLOCK {
    uint16_t d, m;
    uint8_t qh[4], qs[16];
} cx_block_q5_1;
typedef struct CX_FILE_BLOCK {
    uint16_t d;
    int8_t qs[32];
} cx_block_q8_0;

/* scales: eight 6-bit scales and eight 6-bit minimums, see cx_k_scale. */
typedef struct CX_FILE_BLOCK {
    uint16_t d, dmin;
    uint8_t scales[12], qs[128];
} cx_block_q4_k;
typedef struct CX_FILE_BLOCK {
    uint16_t d, dmin;
    uint8_t scales[12], qh[32], qs[128];
} cx_block_q5_k;
/* One signed scale for each 16 values; d stands last in the file. */
typedef struct CX_FILE_BLOCK {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
} cx_block_q6_k;

_Static_assert(sizeof(cx_block_q4_0) == 18 && sizeof(cx_block_q4_1) == 20, "Q4 file layout");
_Static_assert(sizeof(cx_block_q5_0) == 22 && sizeof(cx_block_q5_1) == 24, "Q5 file layout");
_Static_assert(sizeof(cx_block_q8_0) == 34 && sizeof(cx_block_q6_k) == 210, "Q8, Q6_K file layout");
_Static_assert(sizeof(cx_block_q4_k) == 144 && sizeof(cx_block_q5_k) == 176, "K file layout");

static inline float cx_bits_f32(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t cx_f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float cx_bf16_f32(uint16_t h) {
    return cx_bits_f32((uint32_t)h << 16);
}

/* Exact for every half, subnormals and infinities included; a NaN stays a (quiet) NaN. */
static inline float cx_f16_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu;
    if (mag >= 0x7c00u) {
        uint32_t quiet = mag > 0x7c00u ? 0x00400000u : 0;
        return cx_bits_f32(sign | 0x7f800000u | quiet | (mag & 0x3ffu) << 13);
    }
    if (mag >= 0x0400u) return cx_bits_f32(sign | ((mag << 13) + (112u << 23)));
    float f = (float)mag * 0x1p-24f;
    return cx_bits_f32(sign | cx_f32_bits(f));
}

/* Rounds to nearest, ties to even; above 65504 gives infinity, as the hardware conversion does. */
static inline uint16_t cx_f32_f16(float f) {
    uint32_t bits = cx_f32_bits(f), sign = bits >> 16 & 0x8000u, mag = bits & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x3ffu));
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) {
        /* Subnormal half: adding 0.5 leaves the rounded count in the low bits. */
        uint32_t r = cx_f32_bits(cx_bits_f32(mag) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | r);
    }
    uint32_t odd = mag >> 13 & 1;
    return (uint16_t)(sign | ((mag - (112u << 23) + 0xfffu + odd) >> 13));
}

/* Scale and minimum of sub-block j (0..7) of a Q4_K or Q5_K superblock. */
static inline void cx_k_scale(const uint8_t s[12], int j, uint8_t *scale, uint8_t *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

/* Quant of value k (0..31) of a simple block, without its offset. */
static inline uint8_t cx_nibble(const uint8_t qs[16], int k) {
    return k < 16 ? qs[k] & 15 : qs[k - 16] >> 4;
}

static inline uint8_t cx_q5_quant(const uint8_t qs[16], const uint8_t qh[4], int k) {
    return (uint8_t)(cx_nibble(qs, k) | (qh[k >> 3] >> (k & 7) & 1) << 4);
}

/* Quant of value k (0..255) of a superblock. Two neighbouring sub-blocks of 32 share 32 bytes. */
static inline uint8_t cx_q4_k_quant(const uint8_t qs[128], int k) {
    uint8_t pair = qs[(k >> 6) * 32 + (k & 31)];
    return k & 32 ? pair >> 4 : pair & 15;
}

static inline uint8_t cx_q5_k_quant(const cx_block_q5_k *b, int k) {
    return (uint8_t)(cx_q4_k_quant(b->qs, k) | (b->qh[k & 31] >> (k >> 5) & 1) << 4);
}

/* 0..63, offset 32. A half of 128 values: four runs of 32 whose low nibbles share two runs of
 * bytes. */
static inline uint8_t cx_q6_k_quant(const cx_block_q6_k *b, int k) {
    int half = k >> 7, run = k >> 5 & 3, l = k & 31;
    uint8_t pair = b->ql[half * 64 + (run & 1) * 32 + l];
    uint8_t low = run & 2 ? pair >> 4 : pair & 15;
    return (uint8_t)(low | (b->qh[half * 32 + l] >> (2 * run) & 3) << 4);
}

#endif
