/*
 * engine.c: memory of an engine, checking of a step block, the step. See engine.h.
 *
 * Row lengths change only when a step has run to its end. Keys, values and tokens beyond a row's
 * length are scratch: an interrupted or refused step leaves them there and the next one writes over
 * them.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------- */

static int32_t check_limits(const struct cx_model *m, const cx_limits *l, cx_err *err) {
    const struct {
        const char *name;
        int32_t value, most;
    } limits[] = {
        {"max_rows", l->max_rows, ENGINE_MAX_ROWS},
        {"context", l->context, m->plan.head->context},
        {"step_tokens", l->step_tokens, ENGINE_MAX_STEP_TOKENS},
        {"max_out", l->max_out, l->step_tokens},
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (limits[i].value < 1 || limits[i].value > limits[i].most) {
            return err_set(err, CX_ARG, "limits.%s is %d, must be 1 to %d", limits[i].name,
                           limits[i].value, limits[i].most);
        }
    }
    return CX_OK;
}

static int32_t too_large(cx_err *err, const char *what) {
    return err_set(err, CX_NOMEM, "the size of %s leaves the address space", what);
}

static int32_t open_registers(struct cx_engine *e, cx_err *err) {
    const struct plan *p = &e->model->plan;
    size_t bytes = 0, at[CX_MAX_REGISTERS];
    for (uint32_t i = 0; i < p->head->n_registers; i++) {
        const cx_plan_register *r = &p->registers[i];
        const size_t rows =
            (size_t)(r->rows == CX_ROWS_OUT ? e->limits.max_out : e->limits.step_tokens);
        at[i] = bytes;
        if (!size_add(&bytes, rows * (size_t)r->width, sizeof(float))) {
            return too_large(err, "the registers");
        }
    }
    CX_TRY(pages_map(&e->arena, bytes, false, "the registers", err));
    for (uint32_t i = 0; i < p->head->n_registers; i++) {
        e->registers[i] = (float *)(void *)(e->arena.at + at[i]);
    }
    return CX_OK;
}

static int32_t open_rows(struct cx_engine *e, cx_err *err) {
    const struct plan *p = &e->model->plan;
    const size_t max_rows = (size_t)e->limits.max_rows, context = (size_t)e->limits.context;
    const uint32_t n_layers = p->head->n_layers;
    const int kv_f32 = !e->model->fast;
    size_t history = 0, total = 0;

    e->layers = calloc(n_layers + 1u, sizeof *e->layers);
    e->length = calloc(max_rows, sizeof *e->length);
    e->pending = calloc(max_rows, sizeof *e->pending);
    e->last = calloc(max_rows, sizeof *e->last);
    if (e->layers == NULL || e->length == NULL || e->pending == NULL || e->last == NULL) {
        return err_set(err, CX_NOMEM, "cannot allocate the tables of %zu rows", max_rows);
    }
    for (uint32_t i = 0; i < n_layers; i++) {
        const cx_plan_layer *l = &p->layers[i];
        if (!size_add(&e->kv_row_bytes, 1,
                      cx_kv_bytes(kv_f32, l->n_kv_heads, l->head_dim, e->limits.context))) {
            return too_large(err, "a KV row");
        }
    }
    if (!size_add(&total, max_rows, e->kv_row_bytes)) return too_large(err, "the KV rows");
    CX_TRY(pages_map(&e->kv, total, false, "the KV rows", err));
    size_t at = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        const cx_plan_layer *l = &p->layers[i];
        e->layers[i] = (struct kv_layer){.at = e->kv.at + at,
                                         .row_bytes = e->kv_row_bytes,
                                         .args = {.kv_f32 = kv_f32,
                                                  .n_heads = l->n_heads,
                                                  .n_kv_heads = l->n_kv_heads,
                                                  .head_dim = l->head_dim,
                                                  .context = e->limits.context}};
        (void)size_add(&at, 1, cx_kv_bytes(kv_f32, l->n_kv_heads, l->head_dim, e->limits.context));
    }
    if (!size_add(&history, max_rows * context, sizeof(int32_t))) {
        return too_large(err, "the rows' tokens");
    }
    CX_TRY(pages_map(&e->history, history, false, "the rows' tokens", err));
    e->tokens = (int32_t *)(void *)e->history.at;
    return CX_OK;
}

static int32_t open_block(struct cx_engine *e, cx_err *err) {
    const size_t tokens = (size_t)e->limits.step_tokens, rows = (size_t)e->limits.max_rows,
                 outs = (size_t)e->limits.max_out;
    /* All counts are under their limits: the block stays under a few MiB. */
    size_t bytes = align_up(sizeof(cx_io), CX_ALIGN), at[6];
    const size_t sizes[6] = {tokens * sizeof(int32_t),   tokens * sizeof(int32_t),
                             tokens * sizeof(int32_t),   tokens * sizeof(int32_t),
                             rows * sizeof(cx_sampling), outs * sizeof(int32_t)};
    for (int i = 0; i < 6; i++) {
        at[i] = bytes;
        bytes = align_up(bytes + sizes[i], CX_ALIGN);
    }
    CX_TRY(pages_map(&e->block, bytes, false, "the step block", err));
    e->block_bytes = bytes;
    uint8_t *base = e->block.at;
    e->io = (cx_io *)(void *)base;
    *e->io = (cx_io){.max_tokens = e->limits.step_tokens,
                     .max_rows = e->limits.max_rows,
                     .max_out = e->limits.max_out,
                     .vocab = e->model->plan.head->vocab,
                     .token_at = (uint32_t)at[0],
                     .pos_at = (uint32_t)at[1],
                     .row_at = (uint32_t)at[2],
                     .want_at = (uint32_t)at[3],
                     .sampling_at = (uint32_t)at[4],
                     .out_at = (uint32_t)at[5]};
    e->token = (int32_t *)(void *)(base + at[0]);
    e->pos = (int32_t *)(void *)(base + at[1]);
    e->row = (int32_t *)(void *)(base + at[2]);
    e->want = (int32_t *)(void *)(base + at[3]);
    e->sampling = (cx_sampling *)(void *)(base + at[4]);
    e->out = (int32_t *)(void *)(base + at[5]);
    e->out_token = calloc(outs, sizeof *e->out_token);
    e->failed = calloc(outs, sizeof *e->failed);
    e->tiles = calloc(tokens, sizeof *e->tiles);
    if (e->out_token == NULL || e->failed == NULL || e->tiles == NULL) {
        return err_set(err, CX_NOMEM, "cannot allocate the tables of %zu step tokens", tokens);
    }
    return CX_OK;
}

static int32_t open_sampler(struct cx_engine *e, cx_err *err) {
    const int32_t vocab = e->model->plan.head->vocab, threads = pool_threads(e->pool);
    const size_t one = sample_scratch_bytes(vocab);
    e->scratch = calloc((size_t)threads, sizeof *e->scratch);
    if (e->scratch == NULL) {
        return err_set(err, CX_NOMEM, "cannot allocate the tables of %d threads", threads);
    }
    /* At most 256 threads of 28 bytes for each of 2^22 tokens. */
    CX_TRY(pages_map(&e->sample_memory, (size_t)threads * one, false, "the sampler", err));
    for (int32_t i = 0; i < threads; i++) {
        sample_scratch_place(&e->scratch[i], vocab, e->sample_memory.at + (size_t)i * one);
    }
    return CX_OK;
}

static int32_t open_backend(struct cx_engine *e, cx_err *err) {
    const struct cx_model *m = e->model;
    int32_t q8_cols = 0;
    for (uint32_t i = 0; i < m->plan.head->n_weights; i++) {
        for (int32_t k = 0; k < m->weights[i].n_segments; k++) {
            const struct segment *s = &m->weights[i].segments[k];
            if (cx_dtype_wants_q8(s->dtype) && s->cols > q8_cols) q8_cols = s->cols;
        }
    }
    e->backend = &backend_cpu;
    return backend_cpu_open(&e->backend_self, m->kernels, e->pool, m->fast, e->limits.step_tokens,
                            q8_cols, err);
}

int32_t engine_open(struct cx_engine **out, struct cx_model *model, const cx_limits *limits,
                    cx_err *err) {
    *out = NULL;
    CX_TRY(check_limits(model, limits, err));
    struct cx_engine *e = calloc(1, sizeof *e);
    if (e == NULL) return err_memory(err, sizeof *e, "the engine");
    e->model = model;
    e->limits = *limits;
    int32_t code;
    if ((code = pool_open(&e->pool, limits->threads, err)) != CX_OK) goto fail;
    if ((code = open_backend(e, err)) != CX_OK) goto fail;
    if ((code = open_registers(e, err)) != CX_OK) goto fail;
    if ((code = open_rows(e, err)) != CX_OK) goto fail;
    if ((code = open_block(e, err)) != CX_OK) goto fail;
    if ((code = open_sampler(e, err)) != CX_OK) goto fail;
    *out = e;
    return CX_OK;
fail:
    engine_close(e);
    return code;
}

void engine_close(struct cx_engine *e) {
    if (e == NULL) return;
    pages_unmap(&e->sample_memory);
    free(e->scratch);
    free(e->tiles);
    free(e->failed);
    free(e->out_token);
    pages_unmap(&e->block);
    pages_unmap(&e->history);
    pages_unmap(&e->kv);
    free(e->last);
    free(e->pending);
    free(e->length);
    free(e->layers);
    pages_unmap(&e->arena);
    if (e->backend != NULL) e->backend->close(e->backend_self);
    pool_close(e->pool);
    free(e);
}

/* ---- the step block ------------------------------------------------------------------------ */

static int32_t *row_tokens(const struct cx_engine *e, int32_t row) {
    return e->tokens + (size_t)row * (size_t)e->limits.context;
}

static int32_t check_token(struct cx_engine *e, int32_t i, cx_err *err) {
    const int32_t vocab = e->model->plan.head->vocab;
    const int32_t token = e->token[i], row = e->row[i], pos = e->pos[i], want = e->want[i];
    if (token < 0 || token >= vocab) {
        return err_set(err, CX_ARG, "token[%d] is %d, must be 0 to %d", i, token, vocab - 1);
    }
    if (row < 0 || row >= e->limits.max_rows) {
        return err_set(err, CX_ARG, "row[%d] is %d, must be 0 to %d", i, row,
                       e->limits.max_rows - 1);
    }
    if (pos < 0 || pos >= e->limits.context) {
        return err_set(err, CX_ARG, "pos[%d] is %d, must be 0 to %d (the context)", i, pos,
                       e->limits.context - 1);
    }
    if (pos != e->length[row] + e->pending[row]) {
        return err_set(err, CX_ARG, "pos[%d] is %d, row %d has %d positions by then", i, pos, row,
                       e->length[row] + e->pending[row]);
    }
    if (want == CX_WANT_NOTHING) return CX_OK;
    if (want != CX_WANT_SAMPLE && want != CX_WANT_LOGITS) {
        return err_set(err, CX_ARG, "want[%d] is %d, known are 0, 1 and 2", i, want);
    }
    if (e->step.n_out == e->limits.max_out) {
        return err_set(err, CX_ARG, "want[%d] is output %d, at most %d fit a step", i,
                       e->step.n_out + 1, e->limits.max_out);
    }
    if (want == CX_WANT_SAMPLE) CX_TRY(sample_check(&e->sampling[row], row, err));
    e->out_token[e->step.n_out++] = i;
    return CX_OK;
}

/* Puts token i into the last tile or a new one. */
static void add_to_tile(struct cx_engine *e, int32_t i) {
    const int32_t row = e->row[i], pos = e->pos[i];
    struct step *s = &e->step;
    struct tile *last = s->n_tiles > 0 ? &e->tiles[s->n_tiles - 1] : NULL;
    if (e->last[row] >= 0 && e->last[row] != i - 1) s->rows_interleave = true;
    e->last[row] = i;
    if (last != NULL && last->row == row && pos % ATTEND_TILE != 0) {
        last->n++;
        return;
    }
    e->tiles[s->n_tiles++] = (struct tile){.first = i, .n = 1, .row = row, .pos = pos};
}

/* Proves the block and fills e->step. e->pending counts the rows' tokens whatever is returned. */
static int32_t check_step(struct cx_engine *e, cx_err *err) {
    const int32_t n = e->io->n_tokens;
    e->step = (struct step){
        .token = e->token, .pos = e->pos, .out_token = e->out_token, .tiles = e->tiles};
    if (n < 1 || n > e->limits.step_tokens) {
        return err_set(err, CX_ARG, "n_tokens is %d, must be 1 to %d", n, e->limits.step_tokens);
    }
    for (int32_t row = 0; row < e->limits.max_rows; row++) e->last[row] = -1;
    for (int32_t i = 0; i < n; i++) {
        CX_TRY(check_token(e, i, err));
        add_to_tile(e, i);
        row_tokens(e, e->row[i])[e->pos[i]] = e->token[i];
        e->pending[e->row[i]]++;
        e->step.n_tokens++;
    }
    return CX_OK;
}

/* ---- the step ------------------------------------------------------------------------------ */

static void sample_outputs(void *arg, int32_t begin, int32_t end, int32_t thread) {
    struct cx_engine *e = arg;
    const struct plan *p = &e->model->plan;
    const float *logits = e->registers[p->head->logits];
    for (int32_t i = begin; i < end; i++) {
        const int32_t t = e->out_token[i], row = e->row[t];
        e->out[i] = -1;
        e->failed[i] = 0;
        if (e->want[t] != CX_WANT_SAMPLE) continue;
        e->out[i] = sample_token(&e->scratch[thread], logits + (size_t)i * (size_t)p->head->vocab,
                                 row_tokens(e, row), e->pos[t] + 1, &e->sampling[row]);
        e->failed[i] = e->out[i] < 0;
    }
}

static int32_t sample_all(struct cx_engine *e, cx_err *err) {
    const uint64_t before = now_ns();
    pool_run(e->pool, sample_outputs, e, e->step.n_out, 1);
    e->time[TIME_SAMPLE] += now_ns() - before;
    for (int32_t i = 0; i < e->step.n_out; i++) {
        if (e->failed[i] == 0) continue;
        return err_set(err, CX_NUMERIC,
                       "output %d (row %d): the logits hold a NaN or no finite value", i,
                       e->row[e->out_token[i]]);
    }
    return CX_OK;
}

bool engine_interrupted(struct cx_engine *e) {
    return atomic_load_explicit(&e->interrupt, memory_order_relaxed) &&
           atomic_exchange(&e->interrupt, false);
}

int32_t engine_step(struct cx_engine *e, cx_err *err) {
    const uint64_t start = now_ns();
    e->readable = false;
    e->io->n_out = 0;
    int32_t code = check_step(e, err);
    if (code == CX_OK) code = exec_program(e, err);
    if (code == CX_OK) {
        e->readable = true;
        for (int32_t i = 0; i < e->step.n_tokens; i++) e->length[e->row[i]]++;
        e->io->n_out = e->step.n_out;
        e->steps++;
        e->n_tokens += (uint64_t)e->step.n_tokens;
        e->n_outputs += (uint64_t)e->step.n_out;
        code = sample_all(e, err);
    }
    memset(e->pending, 0, (size_t)e->limits.max_rows * sizeof *e->pending);
    e->step_ns += now_ns() - start;
    return code;
}

/* ---- rows ---------------------------------------------------------------------------------- */

static int32_t check_row(const struct cx_engine *e, const char *name, int32_t row, cx_err *err) {
    if (row >= 0 && row < e->limits.max_rows) return CX_OK;
    return err_set(err, CX_ARG, "%s is %d, must be 0 to %d", name, row, e->limits.max_rows - 1);
}

static int32_t check_cut(const struct cx_engine *e, int32_t row, int32_t n, cx_err *err) {
    if (n < 0) return err_set(err, CX_ARG, "n_tokens is %d, must be 0 or more", n);
    if (n <= e->length[row]) return CX_OK;
    return err_set(err, CX_STATE, "n_tokens is %d, row %d has %d positions", n, row,
                   e->length[row]);
}

int32_t engine_row_copy(struct cx_engine *e, int32_t src, int32_t dst, int32_t n, cx_err *err) {
    CX_TRY(check_row(e, "src", src, err));
    CX_TRY(check_row(e, "dst", dst, err));
    CX_TRY(check_cut(e, src, n, err));
    if (src != dst && n > 0) {
        e->backend->row_copy(e->backend_self, e->layers, (int32_t)e->model->plan.head->n_layers,
                             src, dst, n);
        memcpy(row_tokens(e, dst), row_tokens(e, src), (size_t)n * sizeof(int32_t));
    }
    e->length[dst] = n;
    return CX_OK;
}

int32_t engine_row_trim(struct cx_engine *e, int32_t row, int32_t n, cx_err *err) {
    CX_TRY(check_row(e, "row", row, err));
    CX_TRY(check_cut(e, row, n, err));
    e->length[row] = n;
    return CX_OK;
}

int32_t engine_read(struct cx_engine *e, int32_t reg, int64_t at, float *dst, int64_t n,
                    cx_err *err) {
    const struct plan *p = &e->model->plan;
    if (reg < 0 || (uint32_t)reg >= p->head->n_registers) {
        return err_set(err, CX_ARG, "reg is %d, must be 0 to %u", reg, p->head->n_registers - 1);
    }
    if (!e->readable) return err_set(err, CX_STATE, "no step has filled the registers");
    const cx_plan_register *r = &p->registers[reg];
    const int64_t rows = r->rows == CX_ROWS_OUT ? e->step.n_out : e->step.n_tokens;
    const int64_t have = rows * r->width;
    if (at < 0 || n < 0 || at > have || n > have - at) {
        return err_set(err, CX_ARG, "%lld floats at %lld, register %d holds %lld",
                       (long long)n, (long long)at, reg, (long long)have);
    }
    memcpy(dst, e->registers[reg] + at, (size_t)n * sizeof(float));
    return CX_OK;
}
