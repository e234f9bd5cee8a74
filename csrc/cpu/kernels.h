/*
 * kernels.h: the table of CPU kernels, one per instruction set, and the data layouts they share.
 *
 * cpu/kernels.c (with its .inc files) is compiled once for each ISA and exports one table each.
 * A kernel is pure: pointers and sizes in, results out. It knows no op, layer, thread or model.
 *
 * THE LOGICAL VECTOR IS 16 LANES on every ISA (one zmm, two ymm, four NEON registers or a plain
 * array), so layouts are the same everywhere and each kernel is written once, on simd.h's words.
 *
 * ORDER OF SUMS. Each result is accumulated over its inner dimension in one order that depends on
 * that dimension alone: never on m, on the panel range, on the thread or on the chunk.
 * Instruction-level parallelism comes from several results at once. So y for a token is
 * bit-identical whatever its company.
 */
#ifndef CALDRIX_KERNELS_H
#define CALDRIX_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define CX_PANEL_ROWS 16 /* output rows of a panel = lanes of the logical vector */
#define CX_ACT_BLOCK 32  /* int8 activations: one f32 scale (and one int sum) per 32 values */
#define CX_MAX_HEAD_DIM 512 /* the largest in use (Gemma 4); attention keeps sums on its stack */

/* ---- layout helpers: repack.c, plain C, baseline flags -------------------------------------- */

/* Elements of a block of `dtype` (1 for floats, 32, 256) and its bytes; 0 for an unknown type. */
int32_t cx_dtype_block(uint32_t dtype);
size_t cx_dtype_block_bytes(uint32_t dtype);
/* Bytes of a row of cols elements in the file; 0 when cols is not a whole number of blocks. */
size_t cx_dtype_row_bytes(uint32_t dtype, int32_t cols);
/* 1 when the fast mode multiplies this type by int8 activations (all quantised types). */
int cx_dtype_wants_q8(uint32_t dtype);

/* Bytes of one panel of 16 rows x cols; a multiple of 64. */
size_t cx_panel_bytes(uint32_t dtype, int32_t cols);
/* Writes one panel from up to 16 file rows (NULL = a row of zeros, for the last panel of a part).
 * Values are kept exactly: a panel dequantises to the same floats as the file's blocks. */
void cx_panel_pack(uint32_t dtype, int32_t cols, const uint8_t *const src[CX_PANEL_ROWS],
                   uint8_t *dst);
/* Plain conversion of a file row to f32 (reference, and for CX_USE_VECTOR). */
void cx_row_to_f32(uint32_t dtype, int32_t cols, const uint8_t *src, float *dst);

/* Bytes of one int8 activation row for cols inputs (q, scales, sums; a multiple of 64). */
size_t cx_q8_bytes(int32_t cols);

/* KV cache of one layer of one row. kv_f32: 1 = float32 cache, 0 = f16. The layout (keys transposed
 * in blocks of 16 positions) stands in panel.h. `context` is rounded up inside. */
size_t cx_kv_bytes(int kv_f32, int32_t n_kv_heads, int32_t head_dim, int32_t context);
/* Copies positions [0, n) of one layer of a row; both caches have the same geometry. */
void cx_kv_copy(int kv_f32, int32_t n_kv_heads, int32_t head_dim, int32_t context, const void *src,
                void *dst, int32_t n);

/* ---- attention arguments -------------------------------------------------------------------- */

typedef struct {
    int kv_f32;
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t context; /* capacity of the cache, as given to cx_kv_bytes */
    int32_t window;  /* 0 = none */
    float scale, softcap;
} cx_attend_args;

/* ---- the table ------------------------------------------------------------------------------ */

typedef struct cx_kernels {
    const char *name; /* "scalar", "avx2", "avx512", "avx512vnni", "neon" */

    /* x[cols] -> int8 blocks. Round half to even; scale = absmax / 127; an all-zero block has scale
     * 0. cols is a multiple of 32. */
    void (*quantize_q8)(const float *x, int32_t cols, void *dst);

    /*
     * Panels [panel0, panel0 + n_panels) of a matrix part of `rows` rows:
     *   y[i*ldy + r] (=|+=) sum_k acts[i][k] * W[r][k] (+ bias[r])
     * for i < m and the rows r of the panels, r < rows.
     * panels: base of the whole part. acts_stride in bytes (q8) or floats (f32) between tokens.
     * bias may be NULL (base of the part's bias). add: += instead of =.
     */
    void (*matmul_q8)(uint32_t dtype, const uint8_t *panels, int32_t panel0, int32_t n_panels,
                      int32_t rows, int32_t cols, const void *acts, size_t acts_stride, int32_t m,
                      float *y, size_t ldy, const float *bias, int add);
    void (*matmul_f32)(uint32_t dtype, const uint8_t *panels, int32_t panel0, int32_t n_panels,
                       int32_t rows, int32_t cols, const float *acts, size_t acts_stride, int32_t m,
                       float *y, size_t ldy, const float *bias, int add);

    /* Row `row` of a packed matrix part as floats times `scale` (embedding lookup). */
    void (*panel_row)(uint32_t dtype, const uint8_t *panels, int32_t cols, int32_t row, float scale,
                      float *dst);

    /* dst (=|+=) x / sqrt(mean(x^2) + eps) * (offset + w), n values; dst may be x. */
    void (*rms_norm)(float *dst, const float *x, const float *w, int32_t n, float eps, float offset,
                     int add);
    /* In place on n_heads heads of head_dim: the first 2*half columns of each turn (rotate-half).
     * cs: cos[half] then sin[half]. */
    void (*rope)(float *x, const float *cs, int32_t n_heads, int32_t head_dim, int32_t half);
    /* dst[n] = act(x[0..n)) * x[n..2n); act = CX_ACT_SILU or CX_ACT_GELU_TANH (caldrix.h). */
    void (*gate)(int32_t act, float *dst, const float *x, int32_t n);
    void (*add)(float *dst, const float *a, const float *b, int32_t n); /* dst may be a or b */
    void (*softcap)(float *dst, const float *x, int32_t n, float cap);  /* dst may be x */

    /* Stores k and v [n_kv_heads * head_dim] of one token at position pos of the layer's cache. */
    void (*kv_store)(const cx_attend_args *args, void *kv, int32_t pos, const float *k,
                     const float *v);
    /*
     * Attention of n_q tokens of ONE row (positions pos0 .. pos0 + n_q - 1) for kv head `kv_head`,
     * i.e. query heads [kv_head*g + g0, kv_head*g + g0 + n_g), g = n_heads / n_kv_heads. q and dst
     * point at the first token's column 0 (head 0) and have strides in floats. Needs no scratch
     * beyond its stack.
     * Keys are walked in blocks cut at fixed absolute positions.
     */
    void (*attend)(const cx_attend_args *args, const void *kv, int32_t kv_head, int32_t g0,
                   int32_t n_g, int32_t pos0, int32_t n_q, const float *q, size_t ldq, float *dst,
                   size_t ld_dst);
} cx_kernels;

/* cpu.c: the best table this machine can run (cpuid and xgetbv), capped by the environment variable
 * CALDRIX_ISA (a table's name; an unknown or impossible name is refused with NULL). Chosen once. */
const cx_kernels *cx_kernels_best(void);
/* By name, or NULL when unknown, not built, or not runnable here. For tests. */
const cx_kernels *cx_kernels_named(const char *name);

#endif
