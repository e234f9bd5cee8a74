/*
 * backend.h: what a backend does for exec.c: one function for each operation, and row copies.
 *
 * Operands arrive as views of registers whose shapes plan.c has proved; a backend checks nothing.
 * Every function is called on the engine's thread and its result is complete before the next one
 * reads it. A row of a result depends on that row's inputs alone, never on n or on threads.
 */
#ifndef CALDRIX_BACKEND_H
#define CALDRIX_BACKEND_H

#include "base.h"
#include "cpu/kernels.h"
#include "model.h"
#include "pool.h"

/* Rows of a register in use: float32 [n, width], row after row. */
struct view {
    float *at;
    int32_t n, width;
};

/* Neighbouring tokens of a step in one row, inside one aligned block of ATTEND_TILE positions. */
struct tile {
    int32_t first, n; /* tokens of the step */
    int32_t row, pos; /* of the first */
};
/* Positions of a tile: the key block of the caches, so no two tiles store into one block. */
#define ATTEND_TILE 16

/* The step being run. Tokens are checked: ids, rows and positions are inside their ranges. */
struct step {
    int32_t n_tokens, n_out;
    const int32_t *token, *pos; /* [n_tokens] */
    const int32_t *out_token;   /* [n_out]: the step's token each output belongs to */
    const struct tile *tiles;   /* [n_tiles]: cover the tokens in order */
    int32_t n_tiles;
    bool rows_interleave; /* some row has tokens in more than one run */
};

/* One layer's caches: that of row r starts at at + r * row_bytes. */
struct kv_layer {
    uint8_t *at;
    size_t row_bytes;
    cx_attend_args args;
};

struct cx_backend {
    const char *name;
    void (*close)(void *self);

    /* dst[n, w] = scale * row token[n] of w */
    void (*embed)(void *self, struct view dst, const struct weight *w, const int32_t *token,
                  float scale);
    /* n_groups groups of `group` columns from column `at`: dst (=|+=) norm(a) * (offset + w) */
    void (*rms_norm)(void *self, struct view dst, struct view a, const float *w, int32_t at,
                     int32_t group, int32_t n_groups, float eps, float offset, bool add);
    /* dst[n, dst_at + r] (=|+=) sum_k a[n, a_at + k] * w[r, k] (+ bias[r]); bias may be NULL */
    void (*matmul)(void *self, struct view dst, int32_t dst_at, struct view a, int32_t a_at,
                   const struct weight *w, const float *bias, bool add);
    /* dst[n] = cos then sin of pos[n] * freq[half], times scale */
    void (*rope_table)(void *self, struct view dst, const int32_t *pos, const float *freq,
                       int32_t half, float scale);
    /* in place on n_heads heads of head_dim from column `at`; table[n, 2 * half] */
    void (*rope)(void *self, struct view dst, struct view table, int32_t at, int32_t head_dim,
                 int32_t n_heads, int32_t half);
    /* stores k and v of a = [q | k | v], then dst = attention of every token over its row */
    void (*attend)(void *self, struct view dst, struct view a, const struct kv_layer *kv,
                   const struct step *step);
    /* dst[n, w] = act(a[n, 0..w)) * a[n, w..2w) */
    void (*gate)(void *self, struct view dst, struct view a, int32_t act);
    /* dst = a + b */
    void (*add)(void *self, struct view dst, struct view a, struct view b);
    /* dst[i] = a[which[i]] */
    void (*select)(void *self, struct view dst, struct view a, const int32_t *which);
    /* dst = cap * tanh(a / cap) */
    void (*softcap)(void *self, struct view dst, struct view a, float cap);
    /* positions [0, n) of row src over those of row dst, for n_layers layers */
    void (*row_copy)(void *self, const struct kv_layer *layers, int32_t n_layers, int32_t src,
                     int32_t dst, int32_t n);
};

/*
 * The CPU backend over a pool it does not own. q8_rows, q8_cols: most rows and columns ever
 * multiplied as int8 (0 = never). CX_NOMEM.
 */
extern const struct cx_backend backend_cpu;
int32_t backend_cpu_open(void **self, const struct cx_kernels *kernels, struct pool *pool,
                         bool fast, int32_t q8_rows, int32_t q8_cols, cx_err *err);

#endif
