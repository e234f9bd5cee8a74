/*
 * engine.h: one engine: registers, KV rows, the step block and the step. exec.c runs the program;
 * api.c is the only other caller. One thread, except that any may set `interrupt`.
 */
#ifndef CALDRIX_ENGINE_H
#define CALDRIX_ENGINE_H

#include <stdatomic.h>

#include "backend.h"
#include "base.h"
#include "model.h"
#include "pool.h"
#include "sample.h"

/* Far above what one machine serves; with the context limit it keeps every product in 64 bits. */
#define ENGINE_MAX_ROWS 4096
/* A longer step would only delay cancelling and other rows. */
#define ENGINE_MAX_STEP_TOKENS 16384

enum time_kind { TIME_MATMUL, TIME_ATTEND, TIME_SAMPLE, TIME_OTHER, TIME_KINDS };

struct cx_engine {
    struct cx_model *model;
    cx_limits limits;
    struct pool *pool;
    const struct cx_backend *backend;
    void *backend_self;

    /* registers */
    struct pages arena;
    float *registers[CX_MAX_REGISTERS]; /* [step_tokens or max_out, width] */

    /* rows */
    struct pages kv;
    size_t kv_row_bytes;
    struct kv_layer *layers; /* [n_layers] */
    struct pages history;
    int32_t *tokens;  /* [max_rows, context]: what each position was computed from */
    int32_t *length;  /* [max_rows]: positions that hold */
    int32_t *pending; /* [max_rows]: tokens of the step being run; 0 between steps */
    int32_t *last;    /* [max_rows]: last step token of the row in this step, or -1 */

    /* the step block, and where its arrays stand whatever its header says now */
    struct pages block;
    size_t block_bytes;
    cx_io *io;
    int32_t *token, *pos, *row, *want, *out; /* [step_tokens]; out: [max_out] */
    cx_sampling *sampling;                   /* [max_rows] */

    /* the step being run, or the last one */
    struct step step;
    int32_t *out_token; /* [max_out] */
    int32_t *failed;    /* [max_out]: 1 where no token could be sampled */
    struct tile *tiles; /* [step_tokens] */
    bool readable;      /* the last step ran to its end, its registers may be read */

    struct pages sample_memory;
    struct sample_scratch *scratch; /* [threads] */

    atomic_bool interrupt;
    uint64_t steps, n_tokens, n_outputs, step_ns;
    uint64_t time[TIME_KINDS];
};

/* model must outlive the engine. CX_ARG, CX_NOMEM. The caller frees with engine_close. */
int32_t engine_open(struct cx_engine **out, struct cx_model *model, const cx_limits *limits,
                    cx_err *err);
void engine_close(struct cx_engine *e);

/* The calls of caldrix.h with the same names; arguments other than the engine are unchecked. */
int32_t engine_step(struct cx_engine *e, cx_err *err);
int32_t engine_row_copy(struct cx_engine *e, int32_t src, int32_t dst, int32_t n, cx_err *err);
int32_t engine_row_trim(struct cx_engine *e, int32_t row, int32_t n, cx_err *err);
int32_t engine_read(struct cx_engine *e, int32_t reg, int64_t at, float *dst, int64_t n,
                    cx_err *err);

/* exec.c: runs the program over e->step. CX_OK or CX_INTERRUPTED. Adds to e->time. */
int32_t exec_program(struct cx_engine *e, cx_err *err);

/* True, and clears the request, when an interrupt was asked for. */
bool engine_interrupted(struct cx_engine *e);

#endif
