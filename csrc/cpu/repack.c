/*
 * repack.c: sizes of the data layouts, and plain C that writes weight panels and copies caches.
 *
 * Called by the model opener (panels, sizes) and by the engine (KV rows). Nothing here is on the
 * path of a token. The layouts are described in panel.h; the kernels that read them are in
 * kernels.c.
 */
#include "panel.h"

#define LINE 64 /* bytes of a cache line; panels and activation rows are whole lines */

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

int32_t cx_dtype_block(uint32_t dtype) {
    switch (dtype) {
    case CX_F32:
    case CX_F16:
    case CX_BF16: return 1;
    case CX_Q4_0:
    case CX_Q4_1:
    case CX_Q5_0:
    case CX_Q5_1:
    case CX_Q8_0: return CX_QK;
    case CX_Q4_K:
    case CX_Q5_K:
    case CX_Q6_K: return CX_QK_K;
    default: return 0;
    }
}

size_t cx_dtype_block_bytes(uint32_t dtype) {
    switch (dtype) {
    case CX_F32: return 4;
    case CX_F16:
    case CX_BF16: return 2;
    case CX_Q4_0: return sizeof(cx_block_q4_0);
    case CX_Q4_1: return sizeof(cx_block_q4_1);
    case CX_Q5_0: return sizeof(cx_block_q5_0);
    case CX_Q5_1: return sizeof(cx_block_q5_1);
    case CX_Q8_0: return sizeof(cx_block_q8_0);
    case CX_Q4_K: return sizeof(cx_block_q4_k);
    case CX_Q5_K: return sizeof(cx_block_q5_k);
    case CX_Q6_K: return sizeof(cx_block_q6_k);
    default: return 0;
    }
}

size_t cx_dtype_row_bytes(uint32_t dtype, int32_t cols) {
    int32_t block = cx_dtype_block(dtype);
    if (block == 0 || cols < 0 || cols % block != 0) return 0;
    return (size_t)(cols / block) * cx_dtype_block_bytes(dtype);
}

int cx_dtype_wants_q8(uint32_t dtype) {
    return cx_dtype_block(dtype) > 1;
}

size_t cx_panel_bytes(uint32_t dtype, int32_t cols) {
    int32_t block = cx_dtype_block(dtype);
    if (block == 0) return 0;
    size_t n = (size_t)(block == 1 ? cols : cols / CX_QK);
    size_t heads = block == CX_QK_K ? n / 8 * (size_t)cx_panel_head(dtype) : 0;
    return round_up(heads + n * (size_t)cx_panel_block(dtype), LINE);
}

size_t cx_q8_bytes(int32_t cols) {
    size_t blocks = ((size_t)cols + CX_ACT_BLOCK - 1) / CX_ACT_BLOCK;
    /* An odd number of lines keeps the rows of a tile in different cache sets. */
    return (blocks | 1) * sizeof(cx_q8_block);
}

/* ---- packing -------------------------------------------------------------------------------- */

static void put_f16(uint8_t *dst, int r, uint16_t bits) {
    memcpy(dst + 2 * r, &bits, sizeof bits);
}

/* Byte of column k (0..31) of row r in a run of registers with one byte a quant. */
static size_t byte_of(int k, int r) {
    return (size_t)(k >> 2) * LINE + (size_t)r * 4 + (size_t)(k & 3);
}

/* A simple block's 16 bytes already pair column k with k + 16, as the panel does. */
static void put_nibble_bytes(uint8_t *dst, int r, const uint8_t qs[16]) {
    for (int g = 0; g < 4; g++) memcpy(dst + g * LINE + r * 4, qs + g * 4, 4);
}

/* q[32]: whole quants. Writes the low 4 bits as nibbles. */
static void put_nibbles(uint8_t *dst, int r, const uint8_t q[32]) {
    for (int k = 0; k < 16; k++)
        dst[byte_of(k, r)] = (uint8_t)((q[k] & 15) | (q[k + 16] & 15) << 4);
}

static void put_fifth_bits(uint8_t *dst, int r, const uint8_t q[32]) {
    for (int j = 0; j < 4; j++) {
        unsigned bits = 0;
        for (int g = 0; g < 8; g++) bits |= (unsigned)(q[4 * g + j] >> 4 & 1) << g;
        dst[r * 4 + j] = (uint8_t)bits;
    }
}

static void put_top_bits(uint8_t *dst, int r, const uint8_t q[32]) {
    for (int half = 0; half < 2; half++)
        for (int j = 0; j < 4; j++) {
            unsigned bits = 0;
            for (int g = 0; g < 4; g++)
                bits |= (unsigned)(q[16 * half + 4 * g + j] >> 4 & 3) << (2 * g);
            dst[half * LINE + r * 4 + j] = (uint8_t)bits;
        }
}

static void pack_simple(uint32_t dtype, int r, const uint8_t *src, uint8_t *dst) {
    uint8_t q[CX_QK];
    uint8_t *after = dst + CX_NIBBLES;
    switch (dtype) {
    case CX_Q4_0: {
        const cx_block_q4_0 *b = (const void *)src;
        put_nibble_bytes(dst, r, b->qs);
        put_f16(after, r, b->d);
        return;
    }
    case CX_Q4_1: {
        const cx_block_q4_1 *b = (const void *)src;
        put_nibble_bytes(dst, r, b->qs);
        put_f16(after, r, b->d);
        put_f16(after + 32, r, b->m);
        return;
    }
    case CX_Q5_0: {
        const cx_block_q5_0 *b = (const void *)src;
        for (int k = 0; k < CX_QK; k++) q[k] = cx_q5_quant(b->qs, b->qh, k);
        put_nibble_bytes(dst, r, b->qs);
        put_fifth_bits(after, r, q);
        put_f16(after + LINE, r, b->d);
        return;
    }
    case CX_Q5_1: {
        const cx_block_q5_1 *b = (const void *)src;
        for (int k = 0; k < CX_QK; k++) q[k] = cx_q5_quant(b->qs, b->qh, k);
        put_nibble_bytes(dst, r, b->qs);
        put_fifth_bits(after, r, q);
        put_f16(after + LINE, r, b->d);
        put_f16(after + LINE + 32, r, b->m);
        return;
    }
    case CX_Q8_0: {
        const cx_block_q8_0 *b = (const void *)src;
        for (int k = 0; k < CX_QK; k++) dst[byte_of(k, r)] = (uint8_t)(b->qs[k] + 128);
        put_f16(dst + 512, r, b->d);
        return;
    }
    default: return;
    }
}

/* dst: the superblock's head, followed by its 8 blocks. */
static void pack_super(uint32_t dtype, int r, const uint8_t *src, uint8_t *dst) {
    uint8_t q[CX_QK];
    for (int j = 0; j < 8; j++) {
        uint8_t *block = dst + cx_panel_at(dtype, j), *after = block + CX_NIBBLES;
        if (dtype == CX_Q6_K) {
            const cx_block_q6_k *b = (const void *)src;
            for (int k = 0; k < CX_QK; k++) q[k] = cx_q6_k_quant(b, j * CX_QK + k);
            put_top_bits(after, r, q);
            after[2 * LINE + r] = (uint8_t)b->scales[2 * j];
            after[2 * LINE + 16 + r] = (uint8_t)b->scales[2 * j + 1];
            put_f16(dst, r, b->d);
        } else if (dtype == CX_Q5_K) {
            const cx_block_q5_k *b = (const void *)src;
            for (int k = 0; k < CX_QK; k++) q[k] = cx_q5_k_quant(b, j * CX_QK + k);
            put_fifth_bits(after, r, q);
            cx_k_scale(b->scales, j, &after[LINE + r], &after[LINE + 16 + r]);
            put_f16(dst, r, b->d);
            put_f16(dst + 32, r, b->dmin);
        } else {
            const cx_block_q4_k *b = (const void *)src;
            for (int k = 0; k < CX_QK; k++) q[k] = cx_q4_k_quant(b->qs, j * CX_QK + k);
            cx_k_scale(b->scales, j, &after[r], &after[16 + r]);
            put_f16(dst, r, b->d);
            put_f16(dst + 32, r, b->dmin);
        }
        put_nibbles(block, r, q);
    }
}

void cx_panel_pack(uint32_t dtype, int32_t cols, const uint8_t *const src[CX_PANEL_ROWS],
                   uint8_t *dst) {
    static const uint8_t zeros[sizeof(cx_block_q6_k)]; /* at least any block's bytes */
    int32_t block = cx_dtype_block(dtype);
    if (block == 0) return;
    size_t block_bytes = cx_dtype_block_bytes(dtype);
    size_t used = 0;
    for (int32_t b = 0; b < cols / block; b++) {
        uint8_t *to = dst + used;
        for (int r = 0; r < CX_PANEL_ROWS; r++) {
            const uint8_t *from = src[r] ? src[r] + (size_t)b * block_bytes : zeros;
            if (block == 1)
                memcpy(to + (size_t)r * block_bytes, from, block_bytes);
            else if (block == CX_QK)
                pack_simple(dtype, r, from, to);
            else
                pack_super(dtype, r, from, to);
        }
        used += block == CX_QK_K
                    ? (size_t)cx_panel_head(dtype) + 8 * (size_t)cx_panel_block(dtype)
                    : (size_t)cx_panel_block(dtype);
    }
    memset(dst + used, 0, cx_panel_bytes(dtype, cols) - used);
}

/* ---- plain dequantisation ------------------------------------------------------------------- */

static void simple_to_f32(uint32_t dtype, const uint8_t *src, float *y) {
    for (int k = 0; k < CX_QK; k++) {
        switch (dtype) {
        case CX_Q4_0: {
            const cx_block_q4_0 *b = (const void *)src;
            y[k] = (float)(cx_nibble(b->qs, k) - 8) * cx_f16_f32(b->d);
            break;
        }
        case CX_Q4_1: {
            const cx_block_q4_1 *b = (const void *)src;
            y[k] = (float)cx_nibble(b->qs, k) * cx_f16_f32(b->d) + cx_f16_f32(b->m);
            break;
        }
        case CX_Q5_0: {
            const cx_block_q5_0 *b = (const void *)src;
            y[k] = (float)(cx_q5_quant(b->qs, b->qh, k) - 16) * cx_f16_f32(b->d);
            break;
        }
        case CX_Q5_1: {
            const cx_block_q5_1 *b = (const void *)src;
            y[k] = (float)cx_q5_quant(b->qs, b->qh, k) * cx_f16_f32(b->d) + cx_f16_f32(b->m);
            break;
        }
        default: {
            const cx_block_q8_0 *b = (const void *)src;
            y[k] = (float)b->qs[k] * cx_f16_f32(b->d);
        }
        }
    }
}

static void super_to_f32(uint32_t dtype, const uint8_t *src, float *y) {
    uint8_t scale, min;
    for (int k = 0; k < CX_QK_K; k++) {
        if (dtype == CX_Q6_K) {
            const cx_block_q6_k *b = (const void *)src;
            float d = cx_f16_f32(b->d) * (float)b->scales[k >> 4];
            y[k] = d * (float)(cx_q6_k_quant(b, k) - 32);
        } else if (dtype == CX_Q5_K) {
            const cx_block_q5_k *b = (const void *)src;
            cx_k_scale(b->scales, k >> 5, &scale, &min);
            float d = cx_f16_f32(b->d) * (float)scale, m = cx_f16_f32(b->dmin) * (float)min;
            y[k] = d * (float)cx_q5_k_quant(b, k) - m;
        } else {
            const cx_block_q4_k *b = (const void *)src;
            cx_k_scale(b->scales, k >> 5, &scale, &min);
            float d = cx_f16_f32(b->d) * (float)scale, m = cx_f16_f32(b->dmin) * (float)min;
            y[k] = d * (float)cx_q4_k_quant(b->qs, k) - m;
        }
    }
}

void cx_row_to_f32(uint32_t dtype, int32_t cols, const uint8_t *src, float *dst) {
    int32_t block = cx_dtype_block(dtype);
    if (block == 0) return;
    size_t block_bytes = cx_dtype_block_bytes(dtype);
    for (int32_t b = 0; b < cols / block; b++, src += block_bytes, dst += block) {
        uint16_t half;
        if (dtype == CX_F32) {
            memcpy(dst, src, sizeof *dst);
        } else if (block == 1) {
            memcpy(&half, src, sizeof half);
            *dst = dtype == CX_F16 ? cx_f16_f32(half) : cx_bf16_f32(half);
        } else if (block == CX_QK) {
            simple_to_f32(dtype, src, dst);
        } else {
            super_to_f32(dtype, src, dst);
        }
    }
}

/* ---- KV caches ------------------------------------------------------------------------------ */

size_t cx_kv_bytes(int kv_f32, int32_t n_kv_heads, int32_t head_dim, int32_t context) {
    return (size_t)n_kv_heads * cx_kv_head(head_dim, context) * (kv_f32 ? 4 : 2);
}

void cx_kv_copy(int kv_f32, int32_t n_kv_heads, int32_t head_dim, int32_t context, const void *src,
                void *dst, int32_t n) {
    size_t elem = kv_f32 ? 4 : 2, width = cx_kv_value_width(head_dim);
    size_t head_bytes = cx_kv_head(head_dim, context) * elem;
    size_t key_bytes = cx_kv_keys(head_dim, context) * elem;
    size_t whole = (size_t)n / CX_KV_LANES, rest = (size_t)n % CX_KV_LANES;
    size_t lanes = CX_KV_LANES * elem, block_bytes = (size_t)head_dim * lanes;
    for (int32_t h = 0; h < n_kv_heads; h++) {
        const uint8_t *from = (const uint8_t *)src + (size_t)h * head_bytes;
        uint8_t *to = (uint8_t *)dst + (size_t)h * head_bytes;
        memcpy(to, from, whole * block_bytes);
        for (int32_t d = 0; d < head_dim && rest; d++) {
            size_t at = whole * block_bytes + (size_t)d * lanes;
            memcpy(to + at, from + at, rest * elem);
        }
        memcpy(to + key_bytes, from + key_bytes, (size_t)n * width * elem);
    }
}
