/*
 * unit.c: tests of the C core alone: plan verifier, pool, sampler, step, rows, files. Standalone:
 * links with the library's objects, needs no model and no network; meant for ASan+UBSan and TSan.
 *
 * Prints "N passed, N failed"; exit code 1 when any failed. Every random case has a fixed seed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "../engine.h"
#include "tiny_plan.h"

static int passed, failed;

static bool check(bool ok, int line, const char *what) {
    if (ok) {
        passed++;
    } else {
        failed++;
        printf("FAILED line %d: %s\n", line, what);
    }
    return ok;
}
#define CHECK(condition) check(condition, __LINE__, #condition)

/* code and a piece of the message. */
static void expect(int line, int32_t code, const cx_err *err, int32_t want, const char *text) {
    if (code == want && strstr(err->msg, text) != NULL) {
        passed++;
        return;
    }
    failed++;
    printf("FAILED line %d: code %d '%s', wanted %d '%s'\n", line, code, code ? err->msg : "", want,
           text);
}

/* ---- plan ---------------------------------------------------------------------------------- */

static int32_t verify(const struct tiny *t, cx_err *err) {
    uint64_t len;
    size_t at;
    uint8_t *blob = tiny_encode(t, &len, &at);
    struct plan p;
    const int32_t code = plan_open(&p, blob, len, err);
    plan_close(&p);
    free(blob);
    return code;
}

/* Builds the small plan, changes one thing, expects one refusal. t is the plan in `change`. */
#define REFUSES(code, text, change)                                                                \
    do {                                                                                           \
        struct tiny *t = tiny_build(&SMALL, 1);                                                    \
        cx_err err = {0};                                                                          \
        change;                                                                                    \
        const int32_t got = verify(t, &err);                                                       \
        expect(__LINE__, got, &err, code, text);                                                   \
        tiny_free(t);                                                                              \
    } while (0)

static void test_plan_header(void) {
    struct tiny *valid = tiny_build(&SMALL, 1);
    cx_err none = {0};
    CHECK(verify(valid, &none) == CX_OK);
    struct plan p;
    CHECK(plan_open(&p, &valid->head, 10, &none) == CX_PLAN);
    tiny_free(valid);

    REFUSES(CX_PLAN, "magic", t->head.magic++);
    REFUSES(CX_PLAN, "version is 2", t->head.version++);
    REFUSES(CX_PLAN, "header says 9 bytes", t->head.bytes = 9);
    REFUSES(CX_PLAN, "vocab is 0", t->head.vocab = 0);
    REFUSES(CX_PLAN, "context is 1048577", t->head.context = CX_MAX_CONTEXT + 1);
    REFUSES(CX_PLAN, "logits is register 99", t->head.logits = 99);
    REFUSES(CX_PLAN, "the logits (register 0)", t->head.logits = 0);
    REFUSES(CX_PLAN, "no op writes the logits", {
        t->head.logits = (int32_t)t->head.n_registers;
        t->registers[t->head.n_registers++] = t->registers[t->logits];
    });
    /* Counts and sizes that the sections do not hold. */
    struct tiny *t = tiny_build(&SMALL, 1);
    uint64_t len;
    size_t at;
    uint8_t *blob = tiny_encode(t, &len, &at);
    cx_plan_head *head = (cx_plan_head *)(void *)blob;
    uint32_t *counts[] = {&head->n_files, &head->n_parts, &head->n_weights, &head->n_registers,
                          &head->n_layers, &head->n_ops, &head->n_consts, &head->n_string_bytes};
    static const uint32_t VALUES[] = {0, 3, 1000, 0x7fffffff, 0xffffffff};
    for (size_t i = 0; i < 8; i++) {
        const uint32_t before = *counts[i];
        for (size_t k = 0; k < 5; k++) {
            if (before == VALUES[k]) continue;
            *counts[i] = VALUES[k];
            CHECK(plan_open(&p, blob, len, &none) == CX_PLAN);
        }
        *counts[i] = before;
    }
    for (uint64_t n = 0; n < len; n += 7) CHECK(plan_open(&p, blob, n, &none) == CX_PLAN);
    CHECK(plan_open(&p, blob, len, &none) == CX_OK);
    plan_close(&p);
    free(blob);
    tiny_free(t);
}

static void test_plan_sections(void) {
    REFUSES(CX_PLAN, "part 0: its name is outside", t->parts[0].name_at = 0xfffffff0);
    REFUSES(CX_UNSUPPORTED, "element type 9 is not supported", t->parts[0].dtype = 9);
    REFUSES(CX_PLAN, "(token_embd): rows is 0", t->parts[0].rows = 0);
    REFUSES(CX_PLAN, "cols is -1", t->parts[0].cols = -1);
    REFUSES(CX_PLAN, "comes in blocks of 32", t->parts[0].dtype = CX_Q8_0);
    REFUSES(CX_PLAN, "bytes is 7", t->parts[0].bytes = 7);
    REFUSES(CX_PLAN, "consts hold type 0", {
        t->parts[0].dtype = CX_F16;
        t->parts[0].bytes /= 2;
    });
    REFUSES(CX_PLAN, "part 0 (token_embd): needs consts", t->parts[0].offset = UINT64_MAX - 3);
    REFUSES(CX_PLAN, "file is 0, there are 0", t->parts[0].file = 0);
    REFUSES(CX_PLAN, "cannot be unpermuted as 3 heads", {
        t->parts[0].transform = CX_TRANSFORM_UNPERMUTE_ROPE;
        t->parts[0].transform_arg = 3;
    });
    REFUSES(CX_PLAN, "transform is 2", t->parts[0].transform = 2);

    static const char *const PATH = "weights.bin";
    for (int kind = 0; kind < 4; kind++) {
        struct tiny *t = tiny_build(&SMALL, 1);
        cx_err err = {0};
        t->head.n_files = 1;
        tiny_name(t, PATH, &t->files[0].name_at, &t->files[0].name_len);
        t->files[0].bytes = 100;
        t->parts[0].file = 0;
        const char *text = "end after the file's 100";
        if (kind == 1) {
            t->files[0].name_len = 0;
            text = "must be 1 to 4095";
        }
        if (kind == 2) {
            t->strings[t->files[0].name_at + 3] = '\0';
            text = "holds a NUL";
        }
        if (kind == 3) {
            t->files[0].name_at = 0x80000000u;
            text = "file 0: its name is outside";
        }
        const int32_t code = verify(t, &err);
        expect(__LINE__, code, &err, CX_PLAN, text);
        tiny_free(t);
    }

    REFUSES(CX_PLAN, "weight 0: use is 7", t->weights[0].use = 7);
    REFUSES(CX_PLAN, "weight 0: takes parts", t->weights[0].n_parts = 0);
    REFUSES(CX_PLAN, "weight 0: takes parts", t->weights[0].first_part = 0xffffffff);
    REFUSES(CX_PLAN, "is a matrix of 20 rows", t->weights[0].rows++);
    REFUSES(CX_PLAN, "part 0 has 16 cols", t->weights[0].cols++);
    REFUSES(CX_PLAN, "is a vector [1, 5]", t->weights[1].cols++);
    REFUSES(CX_PLAN, "is a vector [2, 4]", t->weights[1].rows++);
    REFUSES(CX_PLAN, "register 0: its name", t->registers[0].name_len = 10000);
    REFUSES(CX_PLAN, "register 0 (x): rows is 2", t->registers[0].rows = 2);
    REFUSES(CX_PLAN, "width is 0", t->registers[0].width = 0);
    REFUSES(CX_PLAN, "width is 1048577", t->registers[0].width = CX_MAX_WIDTH + 1);
    REFUSES(CX_PLAN, "2 heads cannot share 3 kv heads", t->layers[0].n_kv_heads = 3);
    REFUSES(CX_PLAN, "2 heads cannot share 0 kv heads", t->layers[0].n_kv_heads = 0);
    REFUSES(CX_PLAN, "head_dim is 12", t->layers[0].head_dim = 12);
    REFUSES(CX_PLAN, "head_dim is 520", t->layers[0].head_dim = 520);
}

static void test_plan_ops(void) {
    REFUSES(CX_PLAN, "op 0: kind 0 is unknown", t->ops[0].kind = 0);
    REFUSES(CX_PLAN, "kind 4000000000 is unknown", t->ops[0].kind = 4000000000u);
    REFUSES(CX_PLAN, "op 0 (embed): flags are 0x1", t->ops[0].flags = 1);
    REFUSES(CX_PLAN, "flags are 0x2", t->ops[t->op_qkv].flags = 2);
    REFUSES(CX_PLAN, "f3 is not finite", t->ops[t->op_gate].f[3] = NAN);
    REFUSES(CX_PLAN, "f0 is not finite", t->ops[0].f[0] = INFINITY);
    REFUSES(CX_PLAN, "dst is register 16", t->ops[0].dst = 16);
    REFUSES(CX_PLAN, "dst is register -2", t->ops[0].dst = -2);
    REFUSES(CX_PLAN, "dst is register -1", t->ops[0].dst = -1);
    REFUSES(CX_PLAN, "a is 0, the op takes none", t->ops[0].a = 0);
    REFUSES(CX_PLAN, "weight2 is 1, the op takes none", t->ops[0].weight2 = 1);
    REFUSES(CX_PLAN, "weight is weight -1", t->ops[0].weight = -1);
    REFUSES(CX_PLAN, "weight is weight 64", t->ops[0].weight = 64);
    REFUSES(CX_PLAN, "which is no matrix", t->ops[0].weight = 1);
    REFUSES(CX_PLAN, "which is no vector", t->ops[t->op_table].weight = 0);
    REFUSES(CX_PLAN, "which nothing has written", t->ops[t->op_norm].a = t->g);
    REFUSES(CX_PLAN, "dst is register 2, which nothing", t->ops[t->op_qkv].flags = CX_FLAG_ADD);
    REFUSES(CX_PLAN, "(embed): the weight has 19 rows", {
        t->head.vocab++;
        t->registers[t->logits].width++;
    });
    REFUSES(CX_PLAN, "dst has a row for outputs", t->ops[0].dst = t->picked);
    REFUSES(CX_PLAN, "dst has 24 columns, the weight needs 16", t->ops[0].dst = t->g);
    REFUSES(CX_PLAN, "a has a row for step tokens", t->ops[t->op_logits].a = t->x);
    REFUSES(CX_PLAN, "(select): dst has a row for step", t->ops[t->op_select].dst = t->h);
    REFUSES(CX_PLAN, "do not fit", t->ops[t->op_norm].i[1] = -1);
    REFUSES(CX_PLAN, "do not fit", t->ops[t->op_norm].i[1] = 1);
    REFUSES(CX_PLAN, "do not fit", t->ops[t->op_norm].i[2] = 0x7fffffff);
    REFUSES(CX_PLAN, "a group 8 columns", t->ops[t->op_norm].i[0] = 8);
    REFUSES(CX_PLAN, "epsilon is -1", t->ops[t->op_norm].f[0] = -1);
    REFUSES(CX_PLAN, "a has 16 columns, the weight needs 16 from column 1",
            t->ops[t->op_qkv].i[1] = 1);
    REFUSES(CX_PLAN, "dst has 32 columns, the weight writes 32 from column 8",
            t->ops[t->op_qkv].i[0] = 8);
    REFUSES(CX_PLAN, "from column -1", t->ops[t->op_qkv].i[0] = -1);
    REFUSES(CX_PLAN, "the bias has 16 elements", t->ops[t->op_qkv].weight2 = 2);
    REFUSES(CX_PLAN, "dst and a are both register 0", {
        t->ops[t->op_add - 1].a = t->x;
        t->ops[t->op_add - 1].dst = t->x;
        t->ops[t->op_add - 1].weight = t->ops[t->op_attend + 1].weight;
    });
    REFUSES(CX_PLAN, "i0 is 3, the weight has 4 freq", t->ops[t->op_table].i[0] = 3);
    REFUSES(CX_PLAN, "half is 5", t->ops[t->op_rope].i[3] = 5);
    REFUSES(CX_PLAN, "b has 8 columns, the table needs 6", t->ops[t->op_rope].i[3] = 3);
    REFUSES(CX_PLAN, "4 x 8 from column 8 do not fit", {
        t->ops[t->op_rope].i[1] = 8;
        t->ops[t->op_rope].i[2] = 4;
    });
    REFUSES(CX_PLAN, "layer is 1, there are 1", t->ops[t->op_attend].i[0] = 1);
    REFUSES(CX_PLAN, "window is -1", t->ops[t->op_attend].i[1] = -1);
    REFUSES(CX_PLAN, "softcap is -1", t->ops[t->op_attend].f[1] = -1);
    REFUSES(CX_PLAN, "a has 16 columns, [q | k | v]", t->ops[t->op_attend].a = t->h);
    REFUSES(CX_PLAN, "dst has 24 columns, the layer needs 16", t->ops[t->op_attend].dst = t->g);
    REFUSES(CX_PLAN, "is attended twice", t->ops[t->head.n_ops++] = t->ops[t->op_attend]);
    REFUSES(CX_PLAN, "activation is 2", t->ops[t->op_gate].i[0] = 2);
    REFUSES(CX_PLAN, "(gate): a has 16 columns", t->ops[t->op_gate].a = t->x);
    REFUSES(CX_PLAN, "(add): b has 24 columns", t->ops[t->op_add].b = t->g);
    REFUSES(CX_PLAN, "b is register -1", t->ops[t->op_add].b = -1);
    REFUSES(CX_PLAN, "cap is 0", t->ops[t->op_softcap].f[0] = 0);
}

/* A plan that verifies must run: opens it and takes one step. */
static void run_blob(const uint8_t *blob, uint64_t len) {
    cx_err err;
    const cx_open opts = {.activations = CX_ACTIVATIONS_F32, .threads = 1};
    cx_model *m = cx_model_open(blob, len, &opts, &err);
    if (m == NULL) return;
    const int32_t context = m->plan.head->context < 8 ? m->plan.head->context : 8;
    const cx_limits limits = {1, context, 2, 1, 1, {0}};
    cx_engine *e = cx_engine_open(m, &limits, &err);
    if (e != NULL) {
        e->io->n_tokens = context < 2 ? 1 : 2;
        for (int32_t i = 0; i < 2; i++) {
            e->token[i] = i % m->plan.head->vocab;
            e->pos[i] = i;
        }
        e->want[e->io->n_tokens - 1] = CX_WANT_SAMPLE;
        e->sampling[0] = (cx_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
        const int32_t code = cx_step(e, &err);
        if (code != CX_OK && code != CX_NUMERIC) CHECK(code == CX_OK);
    }
    cx_engine_close(e);
    cx_model_close(m);
}

static void test_plan_mutations(void) {
    struct tiny *t = tiny_build(&SMALL, 1);
    uint64_t len;
    size_t consts_at;
    uint8_t *blob = tiny_encode(t, &len, &consts_at), *mutant = malloc(len);
    const size_t consts_end = consts_at + t->head.n_consts * sizeof(float);
    static const uint8_t EDGES[] = {0, 1, 0x7f, 0x80, 0xff, 0xfe, 2, 16};
    int survived = 0;
    tiny_random_state = 7;
    for (int round = 0; round < 10000; round++) {
        memcpy(mutant, blob, len);
        for (uint64_t n = 1 + tiny_bits() % 3; n > 0; n--) {
            /* The consts are only numbers; the bytes of records are what matters. */
            size_t at = tiny_bits() % (len - (consts_end - consts_at));
            if (at >= consts_at) at += consts_end - consts_at;
            mutant[at] = tiny_bits() % 2 ? EDGES[tiny_bits() % 8] : (uint8_t)tiny_bits();
        }
        struct plan p;
        cx_err err;
        const int32_t code = plan_open(&p, mutant, len, &err);
        plan_close(&p);
        if (code == CX_OK && survived++ % 8 == 0) run_blob(mutant, len);
    }
    CHECK(survived > 100 && survived < 9000);
    free(mutant);
    free(blob);
    tiny_free(t);
}

/* ---- pool ---------------------------------------------------------------------------------- */

struct count_job {
    atomic_int *hits;
    atomic_int bad;
    int32_t n, threads;
};

static void count_items(void *arg, int32_t begin, int32_t end, int32_t thread) {
    struct count_job *j = arg;
    if (begin < 0 || begin >= end || end > j->n || thread < 0 || thread >= j->threads) {
        atomic_fetch_add(&j->bad, 1);
        return;
    }
    for (int32_t i = begin; i < end; i++) atomic_fetch_add(&j->hits[i], 1);
}

static void test_pool(void) {
    enum { MOST = 301 };
    cx_err err;
    struct pool *none;
    CHECK(pool_open(&none, -1, &err) == CX_ARG && none == NULL);
    CHECK(pool_open(&none, POOL_MAX_THREADS + 1, &err) == CX_ARG);
    CHECK(pool_cores() >= 1);
    for (int32_t threads = 1; threads <= 5; threads++) {
        struct pool *p;
        if (!CHECK(pool_open(&p, threads, &err) == CX_OK)) continue;
        CHECK(pool_threads(p) == threads);
        atomic_int hits[MOST] = {0};
        struct count_job job = {.hits = hits, .threads = threads};
        int runs = 0, wrong = 0;
        for (int32_t n = 0; n <= MOST; n += n < 10 ? 1 : 97) {
            for (int32_t grain = 0; grain <= 40; grain += 13) {
                for (int again = 0; again < 20; again++, runs++) {
                    job.n = n;
                    for (int32_t i = 0; i < n; i++) atomic_store(&hits[i], 0);
                    pool_run(p, count_items, &job, n, grain);
                    for (int32_t i = 0; i < n; i++) wrong += atomic_load(&hits[i]) != 1;
                }
                /* Long enough for the workers to fall asleep. */
                if (grain == 13) usleep(400);
            }
        }
        CHECK(runs > 500 && wrong == 0 && atomic_load(&job.bad) == 0);
        pool_close(p);
    }
}

/* ---- sampler ------------------------------------------------------------------------------- */

struct ranked {
    double x;
    int32_t id;
};

static int by_rank(const void *a, const void *b) {
    const struct ranked *p = a, *q = b;
    if (p->x != q->x) return p->x > q->x ? -1 : 1;
    return p->id < q->id ? -1 : 1;
}

/* The text of sample.h, word by word: a full sort, doubles, no shortcut. */
static int32_t reference_sample(const float *logits, int32_t vocab, const int32_t *history,
                                int32_t n, const cx_sampling *p) {
    struct ranked *r = malloc((size_t)vocab * sizeof *r);
    double *w = malloc((size_t)vocab * sizeof *w);
    if (r == NULL || w == NULL) abort();
    for (int32_t i = 0; i < vocab; i++) {
        float x = logits[i];
        bool in = false;
        for (int32_t k = 0; k < n && !in; k++) in = history[k] == i;
        if (in) x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
        r[i] = (struct ranked){(double)x, i};
    }
    qsort(r, (size_t)vocab, sizeof *r, by_rank);
    int32_t m = vocab;
    if (p->top_k > 0 && p->top_k < m) m = p->top_k;
    while (m > 1 && r[m - 1].x == -INFINITY) m--;
    if (r[0].x == INFINITY) {
        for (m = 1; m < vocab && r[m].x == INFINITY; m++) {}
        if (p->top_k > 0 && p->top_k < m) m = p->top_k;
        for (int32_t i = 0; i < m; i++) r[i].x = 0;
    }
    double sum = 0, mass = 0;
    for (int32_t i = 0; i < m; i++) sum += exp(r[i].x - r[0].x);
    if (p->top_p < 1) {
        int32_t keep = 0;
        do mass += exp(r[keep++].x - r[0].x) / sum;
        while (keep < m && mass < (double)p->top_p * (1 - 0x1p-24) - 1e-12);
        m = keep;
    }
    while (m > 1 && exp(r[m - 1].x - r[0].x) < (double)p->min_p) m--;
    if (p->temperature == 0) m = 1;
    sum = 0;
    for (int32_t i = 0; i < m; i++) {
        w[i] = exp((r[i].x - r[0].x) / (double)p->temperature);
        sum += w[i];
    }
    const double u = (double)sample_bits(p->seed, p->draw) * 0x1p-53;
    int32_t i = 0;
    if (m > 1) {
        for (double walked = w[0]; i < m - 1 && walked <= u * sum; walked += w[++i]) {}
    }
    const int32_t id = r[i].id;
    free(w);
    free(r);
    return id;
}

struct sampler {
    uint8_t *memory;
    struct sample_scratch scratch;
};

static struct sampler sampler_open(int32_t vocab) {
    struct sampler s;
    const size_t bytes = sample_scratch_bytes(vocab);
    if ((s.memory = aligned_alloc(CX_ALIGN, bytes)) == NULL) abort();
    memset(s.memory, 0, bytes);
    sample_scratch_place(&s.scratch, vocab, s.memory);
    return s;
}

static void test_sampler_against_reference(void) {
    static const int32_t VOCABS[] = {1, 2, 3, 17, 64, 1000, 5003};
    static const float TEMPERATURES[] = {0, 0.2f, 0.7f, 1, 1.5f, 10, 1e6f};
    static const float TOP_P[] = {1, 1, 0.999f, 0.95f, 0.9f, 0.5f, 0.1f, 0};
    static const float MIN_P[] = {0, 0, 0, 0.05f, 0.3f, 1};
    static const int32_t TOP_K[] = {0, 0, 1, 2, 5, 40, 700, 100000};
    static const float PENALTY[] = {1, 1, 1.1f, 1.3f, 0.8f};
    enum { CASES = 4000 };
    float *logits = malloc(5003 * sizeof *logits);
    int32_t history[50];
    if (logits == NULL) abort();
    tiny_random_state = 11;
    int wrong = 0, zeros = 0;
    for (int round = 0; round < CASES; round++) {
        const int32_t vocab = VOCABS[tiny_bits() % 7];
        struct sampler s = sampler_open(vocab);
        const uint64_t kind = tiny_bits() % 4;
        for (int32_t i = 0; i < vocab; i++) {
            logits[i] = tiny_normal() * (kind == 0 ? 1.0f : 4.0f);
            if (kind == 1) logits[i] = roundf(logits[i] * 2) / 2; /* many ties, some of -0 and 0 */
            if (kind == 2 && tiny_bits() % 3 == 0) logits[i] = -INFINITY;
        }
        if (kind == 2) logits[tiny_bits() % (uint64_t)vocab] = 1;
        const int32_t n = (int32_t)(tiny_bits() % 50);
        for (int32_t i = 0; i < n; i++) history[i] = (int32_t)(tiny_bits() % (uint64_t)vocab);
        const cx_sampling p = {.temperature = TEMPERATURES[tiny_bits() % 7],
                               .top_p = TOP_P[tiny_bits() % 8],
                               .min_p = MIN_P[tiny_bits() % 6],
                               .repetition_penalty = PENALTY[tiny_bits() % 5],
                               .top_k = TOP_K[tiny_bits() % 8],
                               .seed = tiny_bits(),
                               .draw = tiny_bits() % 1000};
        const int32_t got = sample_token(&s.scratch, logits, history, n, &p);
        const int32_t want = reference_sample(logits, vocab, history, n, &p);
        if (got != want && wrong++ < 5) {
            printf("case %d: got %d, wanted %d: vocab %d T %g p %g min %g k %d penalty %g\n", round,
                   got, want, vocab, (double)p.temperature, (double)p.top_p, (double)p.min_p,
                   p.top_k, (double)p.repetition_penalty);
        }
        for (int32_t i = 0; i < (vocab + 63) / 64; i++) zeros += s.scratch.seen[i] != 0;
        free(s.memory);
    }
    CHECK(wrong == 0);
    CHECK(zeros == 0);
    free(logits);
}

static void test_sampler_edges(void) {
    struct sampler s = sampler_open(6);
    const cx_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    cx_sampling p = plain;
    const float nan[6] = {1, 2, NAN, 3, 0, 0}, low[6] = {-INFINITY, -INFINITY, -INFINITY,
                                                         -INFINITY, -INFINITY, -INFINITY};
    const float one[6] = {-INFINITY, -INFINITY, -5, -INFINITY, -INFINITY, -INFINITY};
    const float top[6] = {1, 3, 3, 2, 3, 0}, inf[6] = {1, INFINITY, 3, 2, INFINITY, 0};
    const float all_inf[6] = {INFINITY, INFINITY, INFINITY, INFINITY, INFINITY, INFINITY};
    for (int greedy = 0; greedy < 2; greedy++) {
        p.temperature = greedy ? 0 : 1;
        CHECK(sample_token(&s.scratch, nan, NULL, 0, &p) == -1);
        CHECK(sample_token(&s.scratch, low, NULL, 0, &p) == -1);
        CHECK(sample_token(&s.scratch, all_inf, NULL, 0, &p) == -1);
        CHECK(sample_token(&s.scratch, one, NULL, 0, &p) == 2);
    }
    /* Greedy: the smaller id of equals, and so at any temperature too small to divide by. */
    static const float TINY[] = {0, 1e-45f, 1e-38f, 1e-30f};
    for (int i = 0; i < 4; i++) {
        p.temperature = TINY[i];
        for (p.draw = 0; p.draw < 20; p.draw++) {
            if (sample_token(&s.scratch, top, NULL, 0, &p) != 1) break;
        }
        CHECK(p.draw == 20);
    }
    /* Huge temperatures: uniform over all that is finite. +inf: only those. */
    static const float HUGE_T[] = {3e38f, INFINITY};
    for (int i = 0; i < 2; i++) {
        int seen[6] = {0}, only[6] = {0};
        p = plain;
        p.temperature = HUGE_T[i];
        for (p.draw = 0; p.draw < 3000; p.draw++) {
            seen[sample_token(&s.scratch, top, NULL, 0, &p)]++;
            only[sample_token(&s.scratch, inf, NULL, 0, &p)]++;
        }
        bool even = true;
        for (int k = 0; k < 6; k++) even = even && seen[k] > 400 && seen[k] < 600;
        CHECK(even);
        CHECK(only[1] > 1400 && only[4] > 1400 && only[1] + only[4] == 3000);
    }
    /* A penalty that makes everything infinite is refused, not walked. */
    const float negative[6] = {-2, -3, -4, -5, -6, -7};
    const int32_t every[6] = {0, 1, 2, 3, 4, 5};
    p = plain;
    p.repetition_penalty = 3e38f;
    CHECK(sample_token(&s.scratch, negative, every, 6, &p) == -1);
    /* Exact masses: two of four equal tokens reach one half, one of ten a tenth. */
    struct sampler ten = sampler_open(10);
    const float flat[10] = {0};
    p = plain;
    p.top_p = 0.1f;
    bool first = true;
    for (p.draw = 0; p.draw < 50; p.draw++) {
        first = first && sample_token(&ten.scratch, flat, NULL, 0, &p) == 0;
    }
    CHECK(first);
    free(ten.memory);
    free(s.memory);

    /* The generator as documented: a fixed value, and draws that are independent of each other. */
    CHECK(sample_bits(0, 0) != sample_bits(0, 1) && sample_bits(0, 0) != sample_bits(1, 0));
    double mean = 0;
    for (uint64_t i = 0; i < 10000; i++) mean += (double)sample_bits(42, i) * 0x1p-53 / 10000;
    CHECK(mean > 0.49 && mean < 0.51);
}

static void test_sampling_check(void) {
    const cx_sampling good = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    cx_sampling p = good;
    cx_err err = {0};
    CHECK(sample_check(&p, 3, &err) == CX_OK);
#define BAD(field, value, text)                                                                    \
    p = good;                                                                                      \
    p.field = value;                                                                               \
    expect(__LINE__, sample_check(&p, 3, &err), &err, CX_ARG, "sampling[3]." text)
    BAD(temperature, -1, "temperature is -1");
    BAD(temperature, NAN, "temperature");
    BAD(top_p, 1.5f, "top_p is 1.5");
    BAD(top_p, NAN, "top_p");
    BAD(min_p, -0.5f, "min_p is -0.5");
    BAD(repetition_penalty, 0, "repetition_penalty is 0");
    BAD(repetition_penalty, INFINITY, "repetition_penalty");
    BAD(top_k, -1, "top_k is -1");
#undef BAD
}

/* ---- steps --------------------------------------------------------------------------------- */

static cx_model *open_tiny(const struct tiny *t, uint32_t activations, cx_err *err) {
    uint64_t len;
    size_t at;
    uint8_t *blob = tiny_encode(t, &len, &at);
    int32_t progress = -1;
    const cx_open opts = {
        .activations = activations, .threads = 2, .progress = (uint64_t)(uintptr_t)&progress};
    cx_model *m = cx_model_open(blob, len, &opts, err);
    free(blob);
    if (m != NULL) CHECK(progress == 1000);
    return m;
}

static cx_engine *open_engine(cx_model *m, int32_t threads) {
    const cx_limits limits = {4, 96, 64, 64, threads, {0}};
    cx_err err;
    cx_engine *e = cx_engine_open(m, &limits, &err);
    CHECK(e != NULL);
    return e;
}

/* Appends one token to the block. */
static void put(cx_engine *e, int32_t token, int32_t row, int32_t pos, int32_t want) {
    const int32_t i = e->io->n_tokens++;
    e->token[i] = token;
    e->row[i] = row;
    e->pos[i] = pos;
    e->want[i] = want;
}

static int32_t step(cx_engine *e, cx_err *err) {
    const int32_t code = cx_step(e, err);
    e->io->n_tokens = 0;
    return code;
}

enum { LENGTH = 50 };

/* A token of sequence `s` at position p; sequences share their first 20 tokens. */
static int32_t token_at(int32_t s, int32_t p) {
    return (p * 37 + (p < 20 ? 0 : s * 11) + 3) % 1003;
}

/* Runs sequence s on `row` in chunks and keeps its logits, [LENGTH, vocab]. */
static void run_sequence(cx_engine *e, int32_t s, int32_t row, int32_t from, int32_t chunk,
                         float *logits) {
    const int32_t vocab = e->io->vocab, reg = e->model->plan.head->logits;
    cx_err err = {0};
    for (int32_t p = from; p < LENGTH; p += chunk) {
        const int32_t n = LENGTH - p < chunk ? LENGTH - p : chunk;
        for (int32_t i = 0; i < n; i++) put(e, token_at(s, p + i), row, p + i, CX_WANT_LOGITS);
        const int32_t code = step(e, &err);
        expect(__LINE__, code, &err, CX_OK, "");
        CHECK(e->io->n_out == n && e->out[0] == -1);
        float *at = logits + (size_t)p * (size_t)vocab;
        CHECK(cx_read(e, reg, 0, at, (int64_t)n * vocab, &err) == CX_OK);
    }
}

static void test_equality(uint32_t activations) {
    struct tiny *t = tiny_build(&MEDIUM, 5);
    cx_err err = {0};
    cx_model *m = open_tiny(t, activations, &err);
    if (!CHECK(m != NULL)) {
        printf("%s\n", err.msg);
        return;
    }
    const size_t vocab = (size_t)MEDIUM.vocab, bytes = LENGTH * vocab * sizeof(float);
    float *want[3], *got = malloc(bytes);
    cx_engine *one = open_engine(m, 1);
    for (int32_t s = 0; s < 3; s++) {
        want[s] = malloc(bytes);
        run_sequence(one, s, s, 0, 1, want[s]);
    }
    bool finite = true;
    for (size_t i = 0; i < LENGTH * vocab; i++) finite = finite && isfinite(want[0][i]);
    CHECK(finite);
    CHECK(memcmp(want[0], want[1], 20 * vocab * 4) == 0);
    CHECK(memcmp(want[0], want[1], bytes) != 0);
    cx_engine_close(one);

    static const int32_t THREADS[] = {1, 2, 3, 5}, CHUNKS[] = {1, 3, 7, 16, 17, 50};
    for (int ti = 0; ti < 4; ti++) {
        cx_engine *e = open_engine(m, THREADS[ti]);
        for (int ci = 0; ci < 6; ci++) {
            memset(got, 0, bytes);
            run_sequence(e, 1, ci % 4, 0, CHUNKS[ci], got);
            CHECK(memcmp(want[1], got, bytes) == 0);
            CHECK(cx_row_trim(e, ci % 4, 0, &err) == CX_OK);
        }
        /* Three sequences in one step, token by token in turn, then chunk after chunk. */
        for (int32_t chunk = 1; chunk <= 9; chunk += 4) {
            bool same = true;
            for (int32_t row = 0; row < 4; row++) CHECK(cx_row_trim(e, row, 0, &err) == CX_OK);
            for (int32_t p = 0; p < LENGTH;) {
                const int32_t from = p;
                for (int32_t turn = 0; turn < 2 && p < LENGTH; turn++) {
                    const int32_t n = LENGTH - p < chunk ? LENGTH - p : chunk;
                    for (int32_t s = 0; s < 3; s++) {
                        for (int32_t i = 0; i < n; i++) {
                            const int32_t want_it = i + 1 == n ? CX_WANT_LOGITS : 0;
                            put(e, token_at(s, p + i), 3 - s, p + i, want_it);
                        }
                    }
                    p += n;
                }
                CHECK(step(e, &err) == CX_OK);
                for (int32_t k = 0; k < e->io->n_out; k++) {
                    const int32_t s = k % 3;
                    int32_t at = from + chunk * (k / 3 + 1) - 1;
                    if (at >= LENGTH) at = LENGTH - 1;
                    CHECK(cx_read(e, t->logits, (int64_t)k * (int64_t)vocab, got, (int64_t)vocab,
                                  &err) == CX_OK);
                    same = same && memcmp(got, want[s] + (size_t)at * vocab, vocab * 4) == 0;
                }
            }
            CHECK(same);
        }
        /* A held prefix: sequence 2 after the 20 tokens it shares with sequence 0. */
        CHECK(cx_row_copy(e, 3, 0, 20, &err) == CX_OK);
        run_sequence(e, 2, 0, 20, 11, got);
        CHECK(memcmp(want[2] + 20 * vocab, got + 20 * vocab, (LENGTH - 20) * vocab * 4) == 0);
        /* Cut and run on, over keys that are still there. */
        CHECK(cx_row_trim(e, 0, 33, &err) == CX_OK);
        run_sequence(e, 2, 0, 33, 5, got);
        CHECK(memcmp(want[2] + 33 * vocab, got + 33 * vocab, (LENGTH - 33) * vocab * 4) == 0);
        cx_engine_close(e);
    }
    for (int32_t s = 0; s < 3; s++) free(want[s]);
    free(got);
    cx_model_close(m);
    tiny_free(t);
}

static void test_step_checks(void) {
    struct tiny *t = tiny_build(&MEDIUM, 5);
    cx_err err = {0};
    cx_model *m = open_tiny(t, CX_ACTIVATIONS_F32, &err);
    cx_limits limits = {2, 40, 8, 2, 1, {0}};
    cx_engine *e = cx_engine_open(m, &limits, &err);
    if (!CHECK(e != NULL)) return;
    float x[4];
    expect(__LINE__, cx_read(e, 0, 0, x, 1, &err), &err, CX_STATE, "no step");

#define STEP(want_code, text, ...)                                                                 \
    do {                                                                                           \
        __VA_ARGS__;                                                                               \
        expect(__LINE__, step(e, &err), &err, want_code, text);                                    \
        CHECK(want_code == CX_OK || (e->length[0] == 0 && e->io->n_out == 0));                     \
    } while (0)
    const cx_sampling good = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    e->sampling[0] = e->sampling[1] = good;
    STEP(CX_ARG, "n_tokens is 0", (void)0);
    STEP(CX_ARG, "n_tokens is 9", e->io->n_tokens = 9);
    STEP(CX_ARG, "n_tokens is -1", e->io->n_tokens = -1);
    STEP(CX_ARG, "token[1] is 1003, must be 0 to 1002", put(e, 1, 0, 0, 0), put(e, 1003, 0, 1, 0));
    STEP(CX_ARG, "token[0] is -1", put(e, -1, 0, 0, 0));
    STEP(CX_ARG, "row[0] is 2", put(e, 1, 2, 0, 0));
    STEP(CX_ARG, "row[0] is -1", put(e, 1, -1, 0, 0));
    STEP(CX_ARG, "pos[0] is 1, row 0 has 0", put(e, 1, 0, 1, 0));
    STEP(CX_ARG, "pos[1] is 0, row 0 has 1", put(e, 1, 0, 0, 0), put(e, 1, 0, 0, 0));
    STEP(CX_ARG, "pos[0] is 40, must be 0 to 39", put(e, 1, 0, 40, 0));
    STEP(CX_ARG, "want[0] is 3", put(e, 1, 0, 0, 3));
    STEP(CX_ARG, "want[2] is output 3, at most 2", put(e, 1, 0, 0, 1), put(e, 1, 0, 1, 2),
         put(e, 1, 0, 2, 1));
    e->sampling[0].top_p = 2;
    STEP(CX_ARG, "sampling[0].top_p is 2", put(e, 1, 0, 0, CX_WANT_SAMPLE));
    /* Not looked at when nothing of that row is sampled. */
    STEP(CX_OK, "", put(e, 1, 0, 0, CX_WANT_LOGITS), put(e, 2, 1, 0, CX_WANT_SAMPLE));
    CHECK(e->io->n_out == 2 && e->out[0] == -1 && e->out[1] >= 0);
    CHECK(e->length[0] == 1 && e->length[1] == 1);
#undef STEP
    expect(__LINE__, cx_read(e, 99, 0, x, 1, &err), &err, CX_ARG, "reg is 99");
    expect(__LINE__, cx_read(e, t->logits, 2005, x, 2, &err), &err, CX_ARG, "holds 2006");
    expect(__LINE__, cx_read(e, t->logits, -1, x, 2, &err), &err, CX_ARG, "2 floats at -1");
    CHECK(cx_read(e, t->logits, 2004, x, 2, &err) == CX_OK);
    expect(__LINE__, cx_row_trim(e, 0, 2, &err), &err, CX_STATE, "row 0 has 1");
    expect(__LINE__, cx_row_trim(e, 2, 0, &err), &err, CX_ARG, "row is 2");
    expect(__LINE__, cx_row_copy(e, 0, 5, 1, &err), &err, CX_ARG, "dst is 5");
    expect(__LINE__, cx_row_copy(e, 0, 1, -1, &err), &err, CX_ARG, "n_tokens is -1");
    expect(__LINE__, cx_embed_image(e, (const uint8_t *)"", 1, 0, &err), &err, CX_UNSUPPORTED,
           "no vision program");
    cx_counters_out figures;
    CHECK(cx_counters(e, &figures) == CX_OK && figures.steps == 1 && figures.tokens == 2);
    CHECK(figures.outputs == 2 && figures.weight_bytes > 0 && figures.kv_row_bytes > 0);

    /* Nothing wanted: the head is skipped, the row grows. */
    put(e, 4, 0, 1, 0);
    CHECK(step(e, &err) == CX_OK && e->io->n_out == 0 && e->length[0] == 2);
    /* Asked for before the step: stops at once, changes nothing, and only once. */
    cx_interrupt(e);
    put(e, 4, 0, 2, 0);
    expect(__LINE__, step(e, &err), &err, CX_INTERRUPTED, "before op 0 (embed)");
    CHECK(e->length[0] == 2);
    put(e, 4, 0, 2, 0);
    CHECK(step(e, &err) == CX_OK && e->length[0] == 3);
    cx_engine_close(e);

    static const cx_limits BAD[] = {{0, 40, 8, 2, 1, {0}}, {1, 97, 8, 2, 1, {0}},
                                    {1, 40, 0, 2, 1, {0}}, {1, 40, 8, 9, 1, {0}},
                                    {1, 40, 8, 2, -1, {0}}};
    static const char *const TEXT[] = {"max_rows is 0", "context is 97, must be 1 to 96",
                                       "step_tokens is 0", "max_out is 9", "threads is -1"};
    for (int i = 0; i < 5; i++) {
        CHECK(cx_engine_open(m, &BAD[i], &err) == NULL);
        expect(__LINE__, err.code, &err, CX_ARG, TEXT[i]);
    }
    cx_model_close(m);

    /* An embedding of NaNs: the output is refused by its index, the row has grown. */
    t->consts[7 * MEDIUM.dim] = NAN;
    m = open_tiny(t, CX_ACTIVATIONS_F32, &err);
    e = cx_engine_open(m, &limits, &err);
    e->sampling[0] = e->sampling[1] = good;
    put(e, 1, 1, 0, CX_WANT_SAMPLE);
    put(e, 7, 0, 0, CX_WANT_SAMPLE);
    expect(__LINE__, step(e, &err), &err, CX_NUMERIC, "output 1 (row 0)");
    CHECK(e->out[0] >= 0 && e->out[1] == -1 && e->length[0] == 1 && e->length[1] == 1);
    cx_engine_close(e);
    cx_model_close(m);
    tiny_free(t);
}

struct interrupter {
    cx_engine *engine;
    atomic_bool stop;
};

/* Ever more rarely, so that steps get through on a machine of any speed. */
static void *interrupt_often(void *arg) {
    struct interrupter *i = arg;
    for (useconds_t pause = 100; !atomic_load(&i->stop); pause += pause / 8) {
        cx_interrupt(i->engine);
        usleep(pause < 100000 ? pause : 100000);
    }
    return NULL;
}

static void test_interrupt_thread(void) {
    struct tiny *t = tiny_build(&MEDIUM, 5);
    cx_err err = {0};
    cx_model *m = open_tiny(t, CX_ACTIVATIONS_F32, &err);
    cx_engine *e = open_engine(m, 2);
    const size_t vocab = (size_t)MEDIUM.vocab;
    float *want = malloc(LENGTH * vocab * 4), *got = malloc(vocab * 4);
    run_sequence(e, 0, 0, 0, 50, want);
    struct interrupter with = {.engine = e};
    pthread_t thread;
    cx_interrupt(e); /* one is certain, however the threads are scheduled */
    CHECK(pthread_create(&thread, NULL, interrupt_often, &with) == 0);
    int stopped = 0;
    int32_t p = 0;
    for (int tries = 0; tries < 100000 && p < LENGTH; tries++) {
        put(e, token_at(0, p), 1, p, CX_WANT_LOGITS);
        const int32_t code = step(e, &err);
        if (code == CX_INTERRUPTED) stopped++;
        else if (CHECK(code == CX_OK)) p++;
    }
    atomic_store(&with.stop, true);
    (void)pthread_join(thread, NULL);
    CHECK(p == LENGTH && stopped > 0);
    CHECK(cx_read(e, t->logits, 0, got, (int64_t)vocab, &err) == CX_OK);
    CHECK(memcmp(got, want + (LENGTH - 1) * vocab, vocab * 4) == 0);
    free(want);
    free(got);
    cx_engine_close(e);
    cx_model_close(m);
    tiny_free(t);
}

/* The token history behind the penalty follows copies and trims. */
static void test_penalty_history(void) {
    struct tiny *t = tiny_build(&MEDIUM, 9);
    cx_err err = {0};
    cx_model *m = open_tiny(t, CX_ACTIVATIONS_F32, &err);
    cx_engine *e = open_engine(m, 2);
    const int32_t vocab = MEDIUM.vocab;
    struct sampler s = sampler_open(vocab);
    float *logits = malloc((size_t)vocab * 4);
    int32_t history[3] = {5, 600, 7};
    const cx_sampling strong = {.temperature = 0, .top_p = 1, .repetition_penalty = 5};
    for (int32_t row = 0; row < 4; row++) e->sampling[row] = strong;
    for (int round = 0; round < 2; round++) {
        if (round == 0) {
            put(e, 5, 0, 0, 0);
            put(e, 600, 0, 1, 0);
            put(e, 9, 0, 2, 0);
            CHECK(step(e, &err) == CX_OK);
            CHECK(cx_row_copy(e, 0, 2, 2, &err) == CX_OK);
        } else {
            CHECK(cx_row_trim(e, 2, 2, &err) == CX_OK);
            history[2] = 8;
        }
        put(e, history[2], 2, 2, CX_WANT_SAMPLE);
        CHECK(step(e, &err) == CX_OK);
        CHECK(cx_read(e, t->logits, 0, logits, vocab, &err) == CX_OK);
        CHECK(e->out[0] == reference_sample(logits, vocab, history, 3, &strong));
        CHECK(e->out[0] == sample_token(&s.scratch, logits, history, 3, &strong));
    }
    free(logits);
    free(s.memory);
    cx_engine_close(e);
    cx_model_close(m);
    tiny_free(t);
}

/* ---- files --------------------------------------------------------------------------------- */

static int32_t open_code(const struct tiny *t, cx_err *err) {
    cx_model *m = open_tiny(t, CX_ACTIVATIONS_F32, err);
    cx_model_close(m);
    return m == NULL ? err->code : CX_OK;
}

static void test_files(void) {
    struct tiny *t = tiny_build(&MEDIUM, 5);
    cx_err err = {0};
    const size_t vocab = (size_t)MEDIUM.vocab, bytes = LENGTH * vocab * 4;
    float *want = malloc(bytes), *got = malloc(bytes);
    cx_model *m = open_tiny(t, CX_ACTIVATIONS_F32, &err);
    cx_engine *e = open_engine(m, 2);
    run_sequence(e, 0, 0, 0, 50, want);
    cx_engine_close(e);
    cx_model_close(m);

    /* The same weights from a file at an odd offset, the rows of q in llama.cpp's order. The path
     * is longer than what a message shows of it. */
    enum { HEADER = 13, SLASHES = PLAN_NAME_BYTES };
    const char *dir = getenv("TMPDIR");
    char slashes[SLASHES + 1] = {0}, path[400];
    memset(slashes, '/', SLASHES);
    (void)snprintf(path, sizeof path, "%s%scaldrix-unit-XXXXXX", dir != NULL ? dir : "/tmp",
                   slashes);
    const int fd = mkstemp(path);
    if (!CHECK(fd >= 0)) return;
    for (uint32_t i = 0; i < t->head.n_parts; i++) {
        cx_plan_part *p = &t->parts[i];
        if (t->strings[p->name_at] != 'q' || p->name_len != 1) continue;
        const int32_t d = MEDIUM.head_dim;
        float *rows = malloc(p->bytes), *at = t->consts + p->offset;
        for (int32_t r = 0; r < p->rows; r++) {
            const int32_t s = r % d / (d / 2), k = r % d % (d / 2);
            memcpy(rows + (size_t)(r / d * d + 2 * k + s) * (size_t)p->cols,
                   at + (size_t)r * (size_t)p->cols, (size_t)p->cols * 4);
        }
        memcpy(at, rows, p->bytes);
        free(rows);
        p->transform = CX_TRANSFORM_UNPERMUTE_ROPE;
        p->transform_arg = MEDIUM.heads;
    }
    const size_t total = HEADER + t->head.n_consts * sizeof(float);
    CHECK(write(fd, "caldrix tests", HEADER) == HEADER);
    CHECK(write(fd, t->consts, total - HEADER) == (ssize_t)(total - HEADER));
    t->head.n_files = 1;
    tiny_name(t, path, &t->files[0].name_at, &t->files[0].name_len);
    t->files[0].bytes = total;
    for (uint32_t i = 0; i < t->head.n_parts; i++) {
        t->parts[i].file = 0;
        t->parts[i].offset = HEADER + t->parts[i].offset * 4;
    }
    t->head.n_consts = 0;
    m = open_tiny(t, CX_ACTIVATIONS_F32, &err);
    if (!CHECK(m != NULL)) return;
    e = open_engine(m, 2);
    run_sequence(e, 0, 0, 0, 50, got);
    CHECK(memcmp(want, got, bytes) == 0);
    cx_engine_close(e);
    cx_model_close(m);

    CHECK(ftruncate(fd, (off_t)total - 1) == 0);
    expect(__LINE__, open_code(t, &err), &err, CX_FILE, "when its header was read");
    CHECK(unlink(path) == 0 && close(fd) == 0);
    expect(__LINE__, open_code(t, &err), &err, CX_FILE, "cannot open");
    CHECK(strstr(err.msg, strrchr(path, '/')) != NULL);
    t->files[0].name_len = 4; /* "/tmp", or as much of another folder's name */
    expect(__LINE__, open_code(t, &err), &err, CX_FILE, dir != NULL ? "" : "not a regular file");
    free(want);
    free(got);
    tiny_free(t);
}

static void test_api(void) {
    cx_err err = {0};
    uint32_t sizes[14] = {0};
    CHECK(cx_abi(sizes, 14) == CX_ABI_VERSION && sizes[0] == 512 && sizes[13] == 96);
    CHECK(cx_abi(NULL, 0) == CX_ABI_VERSION);
    cx_probe_out probe;
    CHECK(cx_probe(&probe) == CX_OK && probe.cores >= 1 && probe.isa[0] != '\0');
    CHECK(cx_probe(NULL) == CX_ARG);
    cx_open opts = {.backend = CX_BACKEND_HIP};
    CHECK(cx_model_open(NULL, 0, &opts, &err) == NULL);
    expect(__LINE__, err.code, &err, CX_ARG, "plan is NULL");
    CHECK(cx_model_open("", 0, &opts, &err) == NULL);
    expect(__LINE__, err.code, &err, CX_UNSUPPORTED, "backend hip");
    opts.backend = CX_BACKEND_HOST;
    CHECK(cx_model_open("", 0, &opts, &err) == NULL);
    expect(__LINE__, err.code, &err, CX_UNSUPPORTED, "backend host");
    opts = (cx_open){.activations = 9};
    CHECK(cx_model_open("", 0, &opts, NULL) == NULL);
    CHECK(cx_engine_open(NULL, NULL, &err) == NULL);
    expect(__LINE__, cx_step(NULL, &err), &err, CX_ARG, "engine is NULL");
    cx_model_close(NULL);
    cx_engine_close(NULL);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    test_api();
    test_plan_header();
    test_plan_sections();
    test_plan_ops();
    test_plan_mutations();
    test_pool();
    test_sampler_against_reference();
    test_sampler_edges();
    test_sampling_check();
    test_equality(CX_ACTIVATIONS_F32);
    test_equality(CX_ACTIVATIONS_FAST);
    test_step_checks();
    test_interrupt_thread();
    test_penalty_history();
    test_files();
    printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
