/*
 * kernels_bench.c: what the products reach, beside what the machine gives in the same run.
 *
 * One row of activations in GB/s beside a plain read loop; 120 rows in GOP/s beside a loop of
 * integer dot products on registers (avx512vnni builds of this file only). Nothing is asserted.
 * kernels_bench [table [ms]]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#include "../cpu/panel.h"

#define MAX_THREADS 2
#define M_BIG 120
#define STREAM_BYTES (64u << 20) /* more than a core's share of any cache */

static double budget = 0.15; /* seconds a figure */
static const cx_kernels *kernels;

/* This thread's processor time, so that a busy machine does not blur the figures. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *pages(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) exit(2);
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0x11, bytes);
    return p;
}

enum { READ, REGISTERS, PRODUCT, ATTEND };
typedef struct {
    int kind;
    uint32_t dtype;
    int32_t rows, cols, m;
    int q8;
    uint8_t *weights;
    const void *acts_q8;
    const float *acts;
    size_t stride;
    float *y;
    double rate; /* passes a second */
    pthread_barrier_t *start;
} job;

static volatile uint64_t sink;

static void pass(job *j) {
    const int32_t panels = j->rows / 16;
    switch (j->kind) {
    case READ: {
        const uint64_t *p = (const void *)j->weights;
        uint64_t a = 0, b = 0, c = 0, d = 0;
        for (size_t i = 0; i < STREAM_BYTES / 8; i += 32) { /* four lines */
            __builtin_prefetch(p + i + 512), __builtin_prefetch(p + i + 520);
            __builtin_prefetch(p + i + 528), __builtin_prefetch(p + i + 536);
            a += p[i], b += p[i + 8], c += p[i + 16], d += p[i + 24];
        }
        sink = a + b + c + d;
        return;
    }
    case REGISTERS: {
#if defined(__AVX512VNNI__)
        __m512i s[12], w = _mm512_set1_epi8(3);
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) s[i] = _mm512_setzero_si512();
        for (int r = 0; r < 10000; r++)
#pragma GCC unroll 12
            for (int i = 0; i < 12; i++) {
                s[i] = _mm512_dpbusd_epi32(s[i], w, w);
                __asm__ volatile("" : "+v"(s[i]));
            }
#pragma GCC unroll 12
        for (int i = 1; i < 12; i++) s[0] = _mm512_add_epi32(s[0], s[i]);
        sink = (uint64_t)_mm512_reduce_add_epi32(s[0]);
#endif
        return;
    }
    case PRODUCT:
        if (j->q8)
            kernels->matmul_q8(j->dtype, j->weights, 0, panels, j->rows, j->cols, j->acts_q8,
                               j->stride, j->m, j->y, (size_t)j->rows, NULL, 0);
        else
            kernels->matmul_f32(j->dtype, j->weights, 0, panels, j->rows, j->cols, j->acts,
                                j->stride, j->m, j->y, (size_t)j->rows, NULL, 0);
        return;
    default: { /* one layer of SmolLM2 at depth `rows`, m tokens */
        const cx_attend_args a = {0, 9, 3, 64, j->rows + j->m, 0, 0.125f, 0};
        for (int32_t h = 0; h < 3; h++)
            kernels->attend(&a, j->weights, h, 0, 3, j->rows, j->m, j->acts, 576, j->y, 576);
    }
    }
}

static void *thread(void *arg) {
    job *j = arg;
    pass(j);
    pthread_barrier_wait(j->start);
    double t0 = now(), t = t0;
    int n = 0;
    do pass(j), n++, t = now();
    while (t - t0 < budget);
    j->rate = n / (t - t0);
    return NULL;
}

/* Passes a second, of all threads together. */
static double run(job *jobs, int n) {
    pthread_t threads[MAX_THREADS];
    pthread_barrier_t start;
    double rate = 0;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        jobs[i].start = &start;
        if (pthread_create(&threads[i], NULL, thread, &jobs[i])) exit(2);
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL), rate += jobs[i].rate;
    pthread_barrier_destroy(&start);
    return rate;
}

static job jobs[MAX_THREADS];

static void product(const char *name, uint32_t dtype, int q8, int32_t cols) {
    const size_t panel = cx_panel_bytes(dtype, cols);
    const int32_t all = (int32_t)(STREAM_BYTES / panel) * 16, few = 576;
    printf("%-5s %-4s K %4d ", name, q8 ? "int8" : "f32", cols);
    for (int big = 0; big < 2; big++)
        for (int n = 1; n <= MAX_THREADS; n++) {
            for (int i = 0; i < n; i++) {
                job *j = &jobs[i];
                j->kind = PRODUCT, j->dtype = dtype, j->q8 = q8, j->cols = cols;
                j->m = big ? M_BIG : 1, j->rows = big ? few : all;
                j->stride = q8 ? cx_q8_bytes(cols) : (size_t)cols;
            }
            double rate = run(jobs, n);
            if (big)
                printf(" %7.1f", rate * 2 * few * (double)cols * M_BIG / 1e9);
            else
                printf(" %6.2f", rate * (double)panel * (all / 16) / 1e9);
            if (n == MAX_THREADS) printf(big ? " GOP/s\n" : " GB/s");
        }
}

int main(int argc, char **argv) {
    static const struct {
        uint32_t id;
        const char *name;
    } types[] = {{CX_Q4_0, "Q4_0"}, {CX_Q4_1, "Q4_1"}, {CX_Q5_0, "Q5_0"}, {CX_Q5_1, "Q5_1"},
                 {CX_Q8_0, "Q8_0"}, {CX_Q4_K, "Q4_K"}, {CX_Q5_K, "Q5_K"}, {CX_Q6_K, "Q6_K"},
                 {CX_F16, "F16"},   {CX_BF16, "BF16"}, {CX_F32, "F32"}};
    kernels = argc > 1 ? cx_kernels_named(argv[1]) : cx_kernels_best();
    if (argc > 2) budget = atof(argv[2]) * 1e-3;
    if (!kernels) return fprintf(stderr, "no such table here\n"), 1;
    printf("table %s; each figure for one thread, then two\n", kernels->name);
    for (int i = 0; i < MAX_THREADS; i++) {
        jobs[i].weights = pages(STREAM_BYTES + (1u << 16));
        float *x = pages(M_BIG * 2048 * sizeof *x);
        uint8_t *q8 = pages(M_BIG * cx_q8_bytes(2048));
        for (int k = 0; k < M_BIG * 2048; k++) x[k] = (float)(k % 37) - 18.0f;
        for (int r = 0; r < M_BIG; r++) /* rows of any width are read as runs of these blocks */
            kernels->quantize_q8(x, 2048, q8 + (size_t)r * cx_q8_bytes(2048));
        jobs[i].acts = x;
        jobs[i].acts_q8 = q8;
        jobs[i].y = pages((STREAM_BYTES / 64) * sizeof(float) * 4);
    }
    for (int n = 1; n <= MAX_THREADS; n++) {
        for (int i = 0; i < n; i++) jobs[i].kind = READ;
        printf("plain read %.2f GB/s, ", run(jobs, n) * STREAM_BYTES / 1e9);
        for (int i = 0; i < n; i++) jobs[i].kind = REGISTERS;
        printf("dot products on registers %.1f GOP/s\n", run(jobs, n) * 12 * 10000 * 128 / 1e9);
    }
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const int floats = cx_dtype_block(types[t].id) == 1;
        if (!floats) product(types[t].name, types[t].id, 1, 1536);
        if (types[t].id == CX_Q4_1) product(types[t].name, types[t].id, 1, 576);
        if (floats || types[t].id == CX_Q4_1) product(types[t].name, types[t].id, 0, 1536);
    }
    for (int32_t depth = 512; depth <= 4096; depth *= 8)
        for (int32_t m = 1; m <= 64; m *= 64) {
            jobs[0].kind = ATTEND, jobs[0].rows = depth, jobs[0].m = m;
            double rate = run(jobs, 1), bytes = 2.0 * 192 * 2 * depth;
            printf("attend, depth %d, %d tokens: %.1f us, %.2f GB/s, %.1f GFLOP/s\n", depth, m,
                   1e6 / rate, rate * bytes / 1e9, rate * m * 4 * 576 * depth / 1e9);
        }
    return 0;
}
