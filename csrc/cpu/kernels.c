/*
 * kernels.c: the CPU kernels, compiled once for each ISA with -DCX_ISA=<name> and its -m flags.
 *
 * Everything is static; the only symbol is the table cx_kernels_<name>, which cpu.c chooses from.
 * The small row operations stand here, the products in matmul.inc and attention in attend.inc.
 */
#include "panel.h"
#include "simd.h"

#include "matmul.inc"
#include "attend.inc"

/* Lanes left of n from i. */
CX_INLINE int lanes_at(int32_t i, int32_t n) {
    return n - i < LANES ? (int)(n - i) : LANES;
}

/* ---- int8 activations ----------------------------------------------------------------------- */

/* Below this scale a block counts as zero: its reciprocal would overflow. */
#define MIN_SCALE 0x1p-126f

/* A block with a NaN or infinity gets the scale NaN, so that it cannot pass for a number later. */
static void quantize_q8(const float *x, int32_t cols, void *dst) {
    cx_q8_block *out = dst;
    for (int32_t b = 0; b < cols / CX_ACT_BLOCK; b++, x += CX_ACT_BLOCK, out++) {
        vf x0 = vf_load(x), x1 = vf_load(x + LANES);
        /* Magnitudes order like their bits, NaN above all. */
        float most[LANES];
        vf_store(most, vi_bits(vi_max(vf_bits(vf_abs(x0)), vf_bits(vf_abs(x1)))));
        uint32_t bits = 0;
        for (int i = 0; i < LANES; i++)
            if (cx_f32_bits(most[i]) > bits) bits = cx_f32_bits(most[i]);
        float scale = cx_bits_f32(bits) / 127.0f;
        memset(out, 0, sizeof *out);
        if (bits >= 0x7f800000u) {
            out->scale = out->scaled_sum = cx_bits_f32(0x7fc00000u);
            continue;
        }
        if (scale < MIN_SCALE) continue;
        vf by = vf_set1(1.0f / scale);
        vi_store_i8(out->q, vi_round(vf_mul(x0, by)));
        vi_store_i8(out->q + LANES, vi_round(vf_mul(x1, by)));
        int32_t sum[2] = {0, 0};
        for (int i = 0; i < LANES; i++) {
            sum[0] += out->q[i];
            sum[1] += out->q[LANES + i];
        }
        const int32_t all = sum[0] + sum[1];
        out->scale = scale;
        out->scaled_sum = scale * (float)all;
        out->minus8 = -8 * all;
        out->minus16 = -16 * all;
        out->minus128 = -128 * all;
        out->minus32[0] = -32 * sum[0];
        out->minus32[1] = -32 * sum[1];
    }
}

/* ---- row operations ------------------------------------------------------------------------- */

static void rms_norm(float *dst, const float *x, const float *w, int32_t n, float eps, float offset,
                     int add) {
    vf squares = vf_zero();
    for (int32_t i = 0; i < n; i += LANES) {
        vf v = lanes_at(i, n) == LANES ? vf_load(x + i) : vf_load_n(x + i, lanes_at(i, n));
        squares = vf_fma(v, v, squares);
    }
    const vf by = vf_set1(1.0f / sqrt1(vf_hsum(squares) / (float)n + eps)), plus = vf_set1(offset);
    for (int32_t i = 0; i < n; i += LANES) {
        const int lanes = lanes_at(i, n);
        vf v = vf_mul(vf_load_n(x + i, lanes), by);
        v = vf_mul(v, vf_add(plus, vf_load_n(w + i, lanes)));
        if (add) v = vf_add(vf_load_n(dst + i, lanes), v);
        vf_store_n(dst + i, v, lanes);
    }
}

static void rope(float *x, const float *cs, int32_t n_heads, int32_t head_dim, int32_t half) {
    for (int32_t h = 0; h < n_heads; h++, x += head_dim)
        for (int32_t i = 0; i < half; i += LANES) {
            const int lanes = lanes_at(i, half);
            vf c = vf_load_n(cs + i, lanes), s = vf_load_n(cs + half + i, lanes);
            vf a = vf_load_n(x + i, lanes), b = vf_load_n(x + half + i, lanes);
            vf_store_n(x + i, vf_sub(vf_mul(a, c), vf_mul(b, s)), lanes);
            vf_store_n(x + half + i, vf_add(vf_mul(b, c), vf_mul(a, s)), lanes);
        }
}

/* x / (1 + e^-x). */
CX_INLINE vf silu(vf x) {
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

/* 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3), written as x / (1 + e^-2u), which
 * keeps its relative accuracy for negative x. */
CX_INLINE vf gelu_tanh(vf x) {
    vf cubic = vf_fma(vf_mul(x, x), vf_set1(-2.0f * 0.7978845608f * 0.044715f),
                      vf_set1(-2.0f * 0.7978845608f));
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_mul(cubic, x))));
}

static void gate(int32_t act, float *dst, const float *x, int32_t n) {
    for (int32_t i = 0; i < n; i += LANES) {
        const int lanes = lanes_at(i, n);
        vf a = vf_load_n(x + i, lanes), b = vf_load_n(x + n + i, lanes);
        vf_store_n(dst + i, vf_mul(act == CX_ACT_SILU ? silu(a) : gelu_tanh(a), b), lanes);
    }
}

static void add(float *dst, const float *a, const float *b, int32_t n) {
    for (int32_t i = 0; i < n; i += LANES) {
        const int lanes = lanes_at(i, n);
        vf_store_n(dst + i, vf_add(vf_load_n(a + i, lanes), vf_load_n(b + i, lanes)), lanes);
    }
}

static void softcap(float *dst, const float *x, int32_t n, float cap) {
    const vf c = vf_set1(cap);
    for (int32_t i = 0; i < n; i += LANES) {
        const int lanes = lanes_at(i, n);
        vf_store_n(dst + i, vf_mul(c, vf_tanh(vf_div(vf_load_n(x + i, lanes), c))), lanes);
    }
}

/* ---- the table ------------------------------------------------------------------------------ */

#define NAME_(isa) #isa
#define NAME(isa) NAME_(isa)
extern const cx_kernels CX_CAT(cx_kernels_, CX_ISA);
const cx_kernels CX_CAT(cx_kernels_, CX_ISA) = {
    .name = NAME(CX_ISA),
    .quantize_q8 = quantize_q8,
    .matmul_q8 = matmul_q8,
    .matmul_f32 = matmul_f32,
    .panel_row = panel_row,
    .rms_norm = rms_norm,
    .rope = rope,
    .gate = gate,
    .add = add,
    .softcap = softcap,
    .kv_store = kv_store,
    .attend = attend,
};
