/*
 * tiny_plan.h: builds the plan of a small random transformer in memory, for unit.c alone.
 * Records can be changed before they are encoded, so a test breaks one thing at a time.
 */
#ifndef CALDRIX_TINY_PLAN_H
#define CALDRIX_TINY_PLAN_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../caldrix.h"

enum { MAX_RECORDS = 64 };

struct shape {
    int32_t vocab, dim, heads, kv_heads, head_dim, ffn, layers, context, window;
};

/* Large enough for every operation to be split over threads, and one for thousands of openings. */
static const struct shape MEDIUM = {1003, 128, 4, 2, 32, 384, 2, 96, 20};
static const struct shape SMALL = {19, 16, 2, 1, 8, 24, 1, 32, 0};

struct tiny {
    cx_plan_head head;
    cx_plan_file files[1];
    cx_plan_part parts[MAX_RECORDS];
    cx_plan_weight weights[MAX_RECORDS];
    cx_plan_register registers[16];
    cx_plan_layer layers[8];
    cx_plan_op ops[MAX_RECORDS];
    float *consts;
    char strings[512];
    /* where a test looks things up */
    int32_t x, h, qkv, o, gu, g, table, picked, logits;
    int32_t op_embed, op_table, op_norm, op_qkv, op_rope, op_attend, op_gate, op_add, op_select,
        op_softcap, op_logits;
};

static uint64_t tiny_random_state;

static uint64_t tiny_bits(void) {
    uint64_t z = (tiny_random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In [0, 1). */
static double tiny_uniform(void) { return (double)(tiny_bits() >> 11) * 0x1p-53; }

/* Nearly normal: the sum of 12 uniforms. */
static float tiny_normal(void) {
    double s = -6;
    for (int i = 0; i < 12; i++) s += tiny_uniform();
    return (float)s;
}

static void tiny_name(struct tiny *t, const char *name, uint32_t *at, uint32_t *len) {
    *at = t->head.n_string_bytes;
    *len = (uint32_t)strlen(name);
    memcpy(t->strings + *at, name, *len);
    t->head.n_string_bytes += *len;
}

static uint32_t tiny_part(struct tiny *t, const char *name, int32_t rows, int32_t cols, float scale,
                          float offset) {
    cx_plan_part *p = &t->parts[t->head.n_parts];
    const uint32_t n = (uint32_t)rows * (uint32_t)cols;
    *p = (cx_plan_part){.file = CX_FILE_CONSTS, .dtype = CX_F32, .offset = t->head.n_consts};
    p->bytes = (uint64_t)n * 4;
    p->rows = rows;
    p->cols = cols;
    tiny_name(t, name, &p->name_at, &p->name_len);
    for (uint32_t i = 0; i < n; i++) {
        t->consts[t->head.n_consts++] = offset + scale * tiny_normal();
    }
    return t->head.n_parts++;
}

static int32_t tiny_weight(struct tiny *t, uint32_t use, uint32_t first, uint32_t n) {
    cx_plan_weight *w = &t->weights[t->head.n_weights];
    *w = (cx_plan_weight){.use = use, .first_part = first, .n_parts = n, .rows = use ? 0 : 1};
    for (uint32_t i = first; i < first + n; i++) {
        if (use == CX_USE_MATRIX) {
            w->rows += t->parts[i].rows;
            w->cols = t->parts[i].cols;
        } else {
            w->cols += t->parts[i].rows * t->parts[i].cols;
        }
    }
    return (int32_t)t->head.n_weights++;
}

static int32_t tiny_matrix(struct tiny *t, const char *name, int32_t rows, int32_t cols) {
    return tiny_weight(t, CX_USE_MATRIX,
                       tiny_part(t, name, rows, cols, 1.0f / sqrtf((float)cols), 0), 1);
}

static int32_t tiny_vector(struct tiny *t, const char *name, int32_t n, float scale, float offset) {
    return tiny_weight(t, CX_USE_VECTOR, tiny_part(t, name, 1, n, scale, offset), 1);
}

static int32_t tiny_register(struct tiny *t, const char *name, int32_t width, uint32_t rows) {
    cx_plan_register *r = &t->registers[t->head.n_registers];
    *r = (cx_plan_register){.width = width, .rows = rows};
    tiny_name(t, name, &r->name_at, &r->name_len);
    return (int32_t)t->head.n_registers++;
}

static int32_t tiny_op(struct tiny *t, cx_plan_op op) {
    t->ops[t->head.n_ops] = op;
    return (int32_t)t->head.n_ops++;
}

/* dst, a, b, weight, weight2 (-1 = none), then i, f and flags by name. */
#define OP(k, dst_, a_, b_, weight_, weight2_, ...)                                                \
    tiny_op(t, (cx_plan_op){.kind = (k), .dst = (dst_), .a = (a_), .b = (b_),                      \
                            .weight = (weight_), .weight2 = (weight2_), .reserved = 0,             \
                            __VA_ARGS__})

static void tiny_layer(struct tiny *t, const struct shape *s, int32_t layer, int32_t norm) {
    const int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const float eps = 1e-5f, scale = 1.0f / sqrtf((float)s->head_dim);
    /* Three parts of one matrix, as q, k and v of a file are. */
    const uint32_t first = tiny_part(t, "q", q, s->dim, 1.0f / sqrtf((float)s->dim), 0);
    (void)tiny_part(t, "k", kv, s->dim, 1.0f / sqrtf((float)s->dim), 0);
    (void)tiny_part(t, "v", kv, s->dim, 1.0f / sqrtf((float)s->dim), 0);
    const int32_t wqkv = tiny_weight(t, CX_USE_MATRIX, first, 3);
    const int32_t bias = tiny_vector(t, "qkv_bias", q + 2 * kv, 0.1f, 0);
    const int32_t qk_norm = tiny_vector(t, "qk_norm", s->head_dim, 0.1f, 1);

    t->op_norm = OP(CX_OP_RMS_NORM, t->h, t->x, -1, norm, -1, .i = {s->dim, 0, 1, 0},
                    .f = {eps, 0, 0, 0});
    t->op_qkv = OP(CX_OP_MATMUL, t->qkv, t->h, -1, wqkv, bias, .flags = 0);
    OP(CX_OP_RMS_NORM, t->qkv, t->qkv, -1, qk_norm, -1,
       .i = {s->head_dim, 0, s->heads + s->kv_heads, 0}, .f = {eps, 0, 0, 0});
    t->op_rope = OP(CX_OP_ROPE, t->qkv, -1, t->table, -1, -1,
                    .i = {s->head_dim, 0, s->heads + s->kv_heads, s->head_dim / 2});
    t->op_attend = OP(CX_OP_ATTEND, t->o, t->qkv, -1, -1, -1,
                      .i = {layer, layer % 2 ? s->window : 0, 0, 0}, .f = {scale, 0, 0, 0});
    OP(CX_OP_MATMUL, t->x, t->o, -1, tiny_matrix(t, "attn_out", s->dim, q), -1,
       .flags = CX_FLAG_ADD);
    OP(CX_OP_RMS_NORM, t->h, t->x, -1, norm, -1, .i = {s->dim, 0, 1, 0},
                    .f = {eps, 0, 0, 0});
    OP(CX_OP_MATMUL, t->gu, t->h, -1, tiny_matrix(t, "gate_up", 2 * s->ffn, s->dim), -1,
       .flags = 0);
    t->op_gate = OP(CX_OP_GATE, t->g, t->gu, -1, -1, -1, .i = {layer % 2, 0, 0, 0});
    OP(CX_OP_MATMUL, t->h, t->g, -1, tiny_matrix(t, "down", s->dim, s->ffn), -1, .flags = 0);
    t->op_add = OP(CX_OP_ADD, t->x, t->x, t->h, -1, -1, .flags = 0);
}

/* The caller frees with tiny_free. The same seed gives the same weights. */
static struct tiny *tiny_build(const struct shape *s, uint64_t seed) {
    struct tiny *t = calloc(1, sizeof *t);
    const size_t room = 2 * (size_t)s->vocab * (size_t)s->dim +
                        (size_t)s->layers * (size_t)(s->dim + s->ffn) * (size_t)(8 * s->dim) + 4096;
    if (t == NULL || (t->consts = calloc(room, sizeof(float))) == NULL) abort();
    tiny_random_state = seed;
    const int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    t->head = (cx_plan_head){.magic = CX_PLAN_MAGIC, .version = CX_PLAN_VERSION};
    t->head.vocab = s->vocab;
    t->head.context = s->context;
    t->x = tiny_register(t, "x", s->dim, CX_ROWS_STEP);
    t->h = tiny_register(t, "h", s->dim, CX_ROWS_STEP);
    t->qkv = tiny_register(t, "qkv", q + 2 * kv, CX_ROWS_STEP);
    t->o = tiny_register(t, "o", q, CX_ROWS_STEP);
    t->gu = tiny_register(t, "gate_up", 2 * s->ffn, CX_ROWS_STEP);
    t->g = tiny_register(t, "g", s->ffn, CX_ROWS_STEP);
    t->table = tiny_register(t, "table", s->head_dim, CX_ROWS_STEP);
    t->picked = tiny_register(t, "picked", s->dim, CX_ROWS_OUT);
    t->logits = t->head.logits = tiny_register(t, "logits", s->vocab, CX_ROWS_OUT);

    const int32_t embd = tiny_weight(t, CX_USE_MATRIX,
                                     tiny_part(t, "token_embd", s->vocab, s->dim, 1, 0), 1);
    const int32_t freq = tiny_vector(t, "freq", s->head_dim / 2, 0.2f, 0.5f);
    const int32_t norm = tiny_vector(t, "norm", s->dim, 0.1f, 1);
    t->op_embed = OP(CX_OP_EMBED, t->x, -1, -1, embd, -1, .f = {1, 0, 0, 0});
    t->op_table = OP(CX_OP_ROPE_TABLE, t->table, -1, -1, freq, -1,
                     .i = {s->head_dim / 2, 0, 0, 0}, .f = {1, 0, 0, 0});
    for (int32_t l = 0; l < s->layers; l++) {
        t->layers[t->head.n_layers++] = (cx_plan_layer){s->heads, s->kv_heads, s->head_dim, 0};
        tiny_layer(t, s, l, norm);
    }
    t->op_select = OP(CX_OP_SELECT, t->picked, t->x, -1, -1, -1, .flags = 0);
    OP(CX_OP_RMS_NORM, t->picked, t->picked, -1, norm, -1, .i = {s->dim, 0, 1, 0},
       .f = {1e-5f, 0, 0, 0});
    t->op_logits = OP(CX_OP_MATMUL, t->logits, t->picked, -1,
                      tiny_matrix(t, "output", s->vocab, s->dim), -1, .flags = 0);
    t->op_softcap = OP(CX_OP_SOFTCAP, t->logits, t->logits, -1, -1, -1, .f = {30, 0, 0, 0});
    return t;
}

static void tiny_free(struct tiny *t) {
    free(t->consts);
    free(t);
}

/* The blob; *len its bytes; *consts_at where its consts start. The caller frees. */
static uint8_t *tiny_encode(const struct tiny *t, uint64_t *len, size_t *consts_at) {
    cx_plan_head head = t->head;
    const struct {
        const void *at;
        size_t bytes;
    } sections[] = {
        {t->files, head.n_files * sizeof t->files[0]},
        {t->parts, head.n_parts * sizeof t->parts[0]},
        {t->weights, head.n_weights * sizeof t->weights[0]},
        {t->registers, head.n_registers * sizeof t->registers[0]},
        {t->layers, head.n_layers * sizeof t->layers[0]},
        {t->ops, head.n_ops * sizeof t->ops[0]},
        {t->consts, head.n_consts * sizeof(float)},
        {t->strings, head.n_string_bytes},
    };
    size_t end = sizeof head;
    for (size_t i = 0; i < 8; i++) end = ((end + 7) & ~(size_t)7) + sections[i].bytes;
    end = (end + 7) & ~(size_t)7;
    uint8_t *blob = calloc(1, end);
    if (blob == NULL) abort();
    if (head.bytes == 0) head.bytes = end;
    memcpy(blob, &head, sizeof head);
    size_t at = sizeof head;
    for (size_t i = 0; i < 8; i++) {
        at = (at + 7) & ~(size_t)7;
        if (i == 6) *consts_at = at;
        if (sections[i].bytes > 0) memcpy(blob + at, sections[i].at, sections[i].bytes);
        at += sections[i].bytes;
    }
    *len = end;
    return blob;
}

#endif
