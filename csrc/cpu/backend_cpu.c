/*
 * backend_cpu.c: the operations as kernel calls, split over the pool. See backend.h.
 *
 * Splitting only ever cuts outputs: rows of a register, panels of a matrix, heads and tokens of an
 * attention. How finely is a matter of speed alone, because a kernel's result for a row does not
 * depend on what else it is given.
 */
#include "../backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "panel.h"

_Static_assert(ATTEND_TILE == CX_KV_LANES, "tiles that store keys side by side share no block");

/* Values of an elementwise operation below which waking a thread costs more than it saves. */
#define INLINE_VALUES 16384
/* Weight bytes a chunk of a matrix product reads at least: 2 us of one core's memory bandwidth. */
#define CHUNK_BYTES ((int64_t)24 << 10)
/* Multiply-adds a chunk of attention does at least: about 2 us. */
#define CHUNK_MACS 32768
/* Chunks a thread in a large operation: a thread that loses its core costs a sixth of its share. */
#define CHUNKS_PER_THREAD 6
/* Tokens that reread a weight from cache cost about a quarter of the first one's memory read. */
#define TOKENS_PER_READ 4
/* Fewest tokens in a slice of a product: under this a panel is unpacked too often. */
#define SLICE_TOKENS 16

struct cpu {
    const struct cx_kernels *kernels;
    struct pool *pool;
    bool fast;
    int32_t threads;
    struct pages q8; /* int8 rows of the product being run */
};

/* Runs fn over the n rows of an operation of `values` values a row. */
static void over_rows(const struct cpu *c, pool_fn *fn, void *arg, int32_t n, int32_t values) {
    int32_t grain = n;
    if ((int64_t)n * values >= INLINE_VALUES) {
        const int32_t least = INLINE_VALUES / 4 / values + 1;
        grain = n / (c->threads * CHUNKS_PER_THREAD) + 1;
        if (grain < least) grain = least;
    }
    pool_run(c->pool, fn, arg, n, grain);
}

static float *row_of(struct view v, int32_t row) { return v.at + (size_t)row * (size_t)v.width; }

/* ---- rows ---------------------------------------------------------------------------------- */

struct embed_job {
    const struct cx_kernels *kernels;
    struct view dst;
    const struct weight *w;
    const int32_t *token;
    float scale;
};

static void embed_rows(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct embed_job *j = arg;
    (void)thread;
    for (int32_t i = begin; i < end; i++) {
        const struct segment *s = j->w->segments;
        while (j->token[i] >= s->first + s->rows) s++;
        j->kernels->panel_row(s->dtype, s->panels, s->cols, j->token[i] - s->first, j->scale,
                              row_of(j->dst, i));
    }
}

static void cpu_embed(void *self, struct view dst, const struct weight *w, const int32_t *token,
                      float scale) {
    const struct cpu *c = self;
    struct embed_job job = {c->kernels, dst, w, token, scale};
    over_rows(c, embed_rows, &job, dst.n, dst.width);
}

struct norm_job {
    const struct cx_kernels *kernels;
    struct view dst, a;
    const float *w;
    int32_t at, group, n_groups;
    float eps, offset;
    int add;
};

static void norm_rows(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct norm_job *j = arg;
    (void)thread;
    for (int32_t i = begin; i < end; i++) {
        float *dst = row_of(j->dst, i) + j->at;
        const float *a = row_of(j->a, i) + j->at;
        for (int32_t g = 0; g < j->n_groups; g++, dst += j->group, a += j->group) {
            j->kernels->rms_norm(dst, a, j->w, j->group, j->eps, j->offset, j->add);
        }
    }
}

static void cpu_rms_norm(void *self, struct view dst, struct view a, const float *w, int32_t at,
                         int32_t group, int32_t n_groups, float eps, float offset, bool add) {
    const struct cpu *c = self;
    struct norm_job job = {c->kernels, dst, a, w, at, group, n_groups, eps, offset, add};
    over_rows(c, norm_rows, &job, dst.n, group * n_groups);
}

struct table_job {
    struct view dst;
    const int32_t *pos;
    const float *freq;
    int32_t half;
    float scale;
};

/* The angle is a float32 product, as in the reference models; its cosine is rounded once. */
static void table_rows(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct table_job *j = arg;
    (void)thread;
    for (int32_t i = begin; i < end; i++) {
        float *dst = row_of(j->dst, i);
        for (int32_t k = 0; k < j->half; k++) {
            const float angle = (float)j->pos[i] * j->freq[k];
            dst[k] = (float)cos((double)angle) * j->scale;
            dst[k + j->half] = (float)sin((double)angle) * j->scale;
        }
    }
}

static void cpu_rope_table(void *self, struct view dst, const int32_t *pos, const float *freq,
                           int32_t half, float scale) {
    struct table_job job = {dst, pos, freq, half, scale};
    /* A cosine costs about 16 times an ordinary value. */
    over_rows(self, table_rows, &job, dst.n, 32 * half);
}

struct rope_job {
    const struct cx_kernels *kernels;
    struct view dst, table;
    int32_t at, head_dim, n_heads, half;
};

static void rope_rows(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct rope_job *j = arg;
    (void)thread;
    for (int32_t i = begin; i < end; i++) {
        j->kernels->rope(row_of(j->dst, i) + j->at, row_of(j->table, i), j->n_heads, j->head_dim,
                         j->half);
    }
}

static void cpu_rope(void *self, struct view dst, struct view table, int32_t at, int32_t head_dim,
                     int32_t n_heads, int32_t half) {
    const struct cpu *c = self;
    struct rope_job job = {c->kernels, dst, table, at, head_dim, n_heads, half};
    over_rows(c, rope_rows, &job, dst.n, n_heads * head_dim);
}

struct pair_job {
    const struct cx_kernels *kernels;
    struct view dst, a, b;
    int32_t act;
    float cap;
    const int32_t *which;
};

static void gate_rows(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct pair_job *j = arg;
    (void)thread;
    for (int32_t i = begin; i < end; i++) {
        j->kernels->gate(j->act, row_of(j->dst, i), row_of(j->a, i), j->dst.width);
    }
}

static void cpu_gate(void *self, struct view dst, struct view a, int32_t act) {
    const struct cpu *c = self;
    struct pair_job job = {.kernels = c->kernels, .dst = dst, .a = a, .act = act};
    over_rows(c, gate_rows, &job, dst.n, a.width);
}

static void add_rows(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct pair_job *j = arg;
    (void)thread;
    for (int32_t i = begin; i < end; i++) {
        j->kernels->add(row_of(j->dst, i), row_of(j->a, i), row_of(j->b, i), j->dst.width);
    }
}

static void cpu_add(void *self, struct view dst, struct view a, struct view b) {
    const struct cpu *c = self;
    struct pair_job job = {.kernels = c->kernels, .dst = dst, .a = a, .b = b};
    over_rows(c, add_rows, &job, dst.n, dst.width);
}

static void cpu_select(void *self, struct view dst, struct view a, const int32_t *which) {
    (void)self;
    for (int32_t i = 0; i < dst.n; i++) {
        memcpy(row_of(dst, i), row_of(a, which[i]), (size_t)dst.width * sizeof(float));
    }
}

static void softcap_rows(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct pair_job *j = arg;
    (void)thread;
    for (int32_t i = begin; i < end; i++) {
        j->kernels->softcap(row_of(j->dst, i), row_of(j->a, i), j->dst.width, j->cap);
    }
}

static void cpu_softcap(void *self, struct view dst, struct view a, float cap) {
    const struct cpu *c = self;
    struct pair_job job = {.kernels = c->kernels, .dst = dst, .a = a, .cap = cap};
    over_rows(c, softcap_rows, &job, dst.n, dst.width);
}

/* ---- matrix product ------------------------------------------------------------------------ */

struct quantize_job {
    const struct cx_kernels *kernels;
    const float *a;
    size_t lda;
    int32_t cols;
    uint8_t *q8;
    size_t q8_bytes;
};

static void quantize_rows(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct quantize_job *j = arg;
    (void)thread;
    for (int32_t i = begin; i < end; i++) {
        j->kernels->quantize_q8(j->a + (size_t)i * j->lda, j->cols,
                                j->q8 + (size_t)i * j->q8_bytes);
    }
}

struct matmul_job {
    const struct cpu *cpu;
    const struct weight *w;
    const float *a; /* column a_at of row 0 */
    size_t lda;
    const uint8_t *q8;
    size_t q8_bytes;
    float *y; /* column dst_at of row 0 */
    size_t ldy;
    const float *bias;
    int add;
    int32_t m, n_panels; /* tokens; panels of all segments */
    int32_t slice;       /* tokens of a slice: item = slice index * n_panels + panel */
};

static bool takes_q8(const struct cpu *c, const struct segment *s) {
    return c->fast && cx_dtype_wants_q8(s->dtype);
}

/* Panels [begin, end) of the whole matrix for tokens [i0, i0 + m). */
static void multiply(const struct matmul_job *j, int32_t begin, int32_t end, int32_t i0,
                     int32_t m) {
    const struct cx_kernels *k = j->cpu->kernels;
    int32_t base = 0;
    for (const struct segment *s = j->w->segments; base < end; base += s->n_panels, s++) {
        const int32_t p0 = begin > base ? begin - base : 0;
        const int32_t p1 = end - base < s->n_panels ? end - base : s->n_panels;
        if (p0 >= p1) continue;
        float *y = j->y + (size_t)i0 * j->ldy + s->first;
        const float *bias = j->bias != NULL ? j->bias + s->first : NULL;
        if (takes_q8(j->cpu, s)) {
            k->matmul_q8(s->dtype, s->panels, p0, p1 - p0, s->rows, s->cols,
                         j->q8 + (size_t)i0 * j->q8_bytes, j->q8_bytes, m, y, j->ldy, bias, j->add);
        } else {
            k->matmul_f32(s->dtype, s->panels, p0, p1 - p0, s->rows, s->cols,
                          j->a + (size_t)i0 * j->lda, j->lda, m, y, j->ldy, bias, j->add);
        }
    }
}

static void multiply_items(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct matmul_job *j = arg;
    (void)thread;
    while (begin < end) {
        const int32_t slice = begin / j->n_panels, panel = begin % j->n_panels;
        const int32_t left = j->n_panels - panel;
        const int32_t last = panel + (end - begin < left ? end - begin : left);
        const int32_t i0 = slice * j->slice;
        multiply(j, panel, last, i0, j->m - i0 < j->slice ? j->m - i0 : j->slice);
        begin += last - panel;
    }
}

static void cpu_matmul(void *self, struct view dst, int32_t dst_at, struct view a, int32_t a_at,
                       const struct weight *w, const float *bias, bool add) {
    const struct cpu *c = self;
    struct matmul_job job = {.cpu = c,
                             .w = w,
                             .a = a.at + a_at,
                             .lda = (size_t)a.width,
                             .y = dst.at + dst_at,
                             .ldy = (size_t)dst.width,
                             .bias = bias,
                             .add = add,
                             .m = dst.n,
                             .slice = dst.n};
    int64_t bytes = 0;
    bool q8 = false;
    for (int32_t i = 0; i < w->n_segments; i++) {
        const struct segment *s = &w->segments[i];
        job.n_panels += s->n_panels;
        bytes += (int64_t)s->n_panels * (int64_t)s->panel_bytes;
        q8 = q8 || takes_q8(c, s);
    }
    if (q8) {
        job.q8 = c->q8.at;
        job.q8_bytes = cx_q8_bytes(w->cols);
        struct quantize_job quantize = {c->kernels, job.a,    job.lda,
                                        w->cols,    c->q8.at, job.q8_bytes};
        over_rows(c, quantize_rows, &quantize, dst.n, w->cols);
    }

    /* Few panels and many tokens: cut the tokens too, or most threads would idle. */
    const int32_t want = c->threads * CHUNKS_PER_THREAD;
    int32_t slices = 1;
    if (c->threads > 1 && job.n_panels < want) {
        slices = want / job.n_panels;
        if (slices > dst.n / SLICE_TOKENS) slices = dst.n / SLICE_TOKENS;
        if (slices < 1) slices = 1;
    }
    job.slice = (dst.n + slices - 1) / slices;
    slices = (dst.n + job.slice - 1) / job.slice;

    const int32_t items = job.n_panels * slices;
    int64_t chunks = bytes * (1 + dst.n / TOKENS_PER_READ) / CHUNK_BYTES;
    if (chunks > want) chunks = want;
    if (chunks < 1) chunks = 1;
    pool_run(c->pool, multiply_items, &job, items, (int32_t)((items + chunks - 1) / chunks));
}

/* ---- attention ----------------------------------------------------------------------------- */

struct attend_job {
    const struct cx_kernels *kernels;
    struct view dst, a;
    const struct kv_layer *kv;
    const struct step *step;
    int32_t splits, heads; /* pieces of a kv head's query heads, and heads of a piece */
};

static void store_tiles(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct attend_job *j = arg;
    const cx_attend_args *args = &j->kv->args;
    (void)thread;
    for (int32_t t = begin; t < end; t++) {
        const struct tile *tile = &j->step->tiles[t];
        uint8_t *kv = j->kv->at + (size_t)tile->row * j->kv->row_bytes;
        for (int32_t i = 0; i < tile->n; i++) {
            const float *k = row_of(j->a, tile->first + i) + args->n_heads * args->head_dim;
            j->kernels->kv_store(args, kv, tile->pos + i, k, k + args->n_kv_heads * args->head_dim);
        }
    }
}

/* Item = (tile from the last, kv head, piece): late tiles see most keys, so they go first. */
static void attend_items(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct attend_job *j = arg;
    const cx_attend_args *args = &j->kv->args;
    const int32_t group = args->n_heads / args->n_kv_heads;
    (void)thread;
    for (int32_t item = begin; item < end; item++) {
        const int32_t piece = item % j->splits, kv_head = item / j->splits % args->n_kv_heads;
        const int32_t back = item / j->splits / args->n_kv_heads;
        const struct tile *tile = &j->step->tiles[j->step->n_tiles - 1 - back];
        const int32_t g0 = piece * j->heads;
        if (g0 >= group) continue;
        j->kernels->attend(args, j->kv->at + (size_t)tile->row * j->kv->row_bytes, kv_head, g0,
                           group - g0 < j->heads ? group - g0 : j->heads, tile->pos, tile->n,
                           row_of(j->a, tile->first), (size_t)j->a.width,
                           row_of(j->dst, tile->first), (size_t)j->dst.width);
    }
}

static void cpu_attend(void *self, struct view dst, struct view a, const struct kv_layer *kv,
                       const struct step *step) {
    const struct cpu *c = self;
    const cx_attend_args *args = &kv->args;
    struct attend_job job = {c->kernels, dst, a, kv, step, 1, args->n_heads / args->n_kv_heads};

    /* Two runs of one row may meet in one block of keys: then one thread stores. */
    const int32_t kv_width = args->n_kv_heads * args->head_dim;
    const bool alone = step->rows_interleave || (int64_t)step->n_tokens * kv_width < INLINE_VALUES;
    pool_run(c->pool, store_tiles, &job, step->n_tiles, alone ? step->n_tiles : 1);

    int64_t macs = 0;
    for (int32_t t = 0; t < step->n_tiles; t++) {
        int32_t keys = step->tiles[t].pos + step->tiles[t].n;
        const int64_t outside = (int64_t)keys - ATTEND_TILE - args->window;
        if (args->window > 0 && outside > 0) keys -= (int32_t)outside;
        macs += (int64_t)keys * step->tiles[t].n;
    }
    macs *= 2 * (int64_t)args->n_heads * args->head_dim;

    const int32_t units = step->n_tiles * args->n_kv_heads, group = job.heads;
    if (c->threads > 1 && units < 2 * c->threads && macs > CHUNK_MACS) {
        const int32_t pieces = (2 * c->threads + units - 1) / units;
        job.heads = (group + pieces - 1) / pieces;
        job.splits = (group + job.heads - 1) / job.heads;
    }
    const int32_t items = units * job.splits;
    int64_t chunks = macs / CHUNK_MACS + 1;
    if (chunks > items) chunks = items;
    pool_run(c->pool, attend_items, &job, items, (int32_t)((items + chunks - 1) / chunks));
}

struct copy_job {
    const struct kv_layer *layers;
    int32_t src, dst, n;
};

static void copy_layers(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct copy_job *j = arg;
    (void)thread;
    for (int32_t i = begin; i < end; i++) {
        const struct kv_layer *l = &j->layers[i];
        cx_kv_copy(l->args.kv_f32, l->args.n_kv_heads, l->args.head_dim, l->args.context,
                   l->at + (size_t)j->src * l->row_bytes, l->at + (size_t)j->dst * l->row_bytes,
                   j->n);
    }
}

static void cpu_row_copy(void *self, const struct kv_layer *layers, int32_t n_layers, int32_t src,
                         int32_t dst, int32_t n) {
    const struct cpu *c = self;
    struct copy_job job = {layers, src, dst, n};
    pool_run(c->pool, copy_layers, &job, n_layers, 1);
}

/* ---- opening ------------------------------------------------------------------------------- */

int32_t backend_cpu_open(void **self, const struct cx_kernels *kernels, struct pool *pool,
                         bool fast, int32_t q8_rows, int32_t q8_cols, cx_err *err) {
    *self = NULL;
    struct cpu *c = calloc(1, sizeof *c);
    if (c == NULL) return err_memory(err, sizeof *c, "the backend");
    *c = (struct cpu){
        .kernels = kernels, .pool = pool, .fast = fast, .threads = pool_threads(pool)};
    size_t bytes = 0;
    if (fast && q8_cols > 0 && !size_add(&bytes, (size_t)q8_rows, cx_q8_bytes(q8_cols))) {
        free(c);
        return err_set(err, CX_NOMEM, "%d int8 rows of %d leave the address space", q8_rows,
                       q8_cols);
    }
    const int32_t code = pages_map(&c->q8, bytes, false, "the int8 rows", err);
    if (code != CX_OK) {
        free(c);
        return code;
    }
    *self = c;
    return CX_OK;
}

static void cpu_close(void *self) {
    struct cpu *c = self;
    if (c == NULL) return;
    pages_unmap(&c->q8);
    free(c);
}

const struct cx_backend backend_cpu = {
    .name = "cpu",
    .close = cpu_close,
    .embed = cpu_embed,
    .rms_norm = cpu_rms_norm,
    .matmul = cpu_matmul,
    .rope_table = cpu_rope_table,
    .rope = cpu_rope,
    .attend = cpu_attend,
    .gate = cpu_gate,
    .add = cpu_add,
    .select = cpu_select,
    .softcap = cpu_softcap,
    .row_copy = cpu_row_copy,
};
