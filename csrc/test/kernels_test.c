/*
 * kernels_test.c: every kernel of every table this machine runs, against naive double references.
 *
 * Stands alone: cpu/{cpu,repack}.c, the kernel objects and this file. Prints "N passed, M failed".
 * Also exact equalities: a row alone = in company, any split of panels, tokens one by one = at
 * once, and the same bits on every ISA that has a fused multiply-add.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../cpu/panel.h"

static int n_passed, n_failed;
static char where[160]; /* the case at hand, for messages */

static void check(int ok, const char *what) {
    if (ok) {
        n_passed++;
        return;
    }
    if (n_failed++ < 40) printf("FAILED %s: %s\n", where, what);
}

/* ---- data ----------------------------------------------------------------------------------- */

static uint64_t seed = 1;
static uint32_t rnd(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static float rnd_float(void) { /* -1 .. 1 */
    return (float)((int32_t)(rnd() % 2000001u) - 1000000) * 1e-6f;
}
static void *get(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!p) exit(2);
    memset(p, 0xff, (bytes + 63) / 64 * 64 + 64); /* NaN in every float type */
    return p;
}
/* Exactly these bytes, so that the address sanitizer sees a read past the end. */
static void *get_exact(size_t bytes) {
    char *p = malloc(bytes ? bytes : 1);
    if (!p) exit(2);
    memset(p, 0xff, bytes);
    return p;
}
static int is_poison(float x) {
    return cx_f32_bits(x) == 0xffffffffu;
}
static int same_bits(const float *a, const float *b, size_t n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

static const struct {
    uint32_t id;
    const char *name;
} types[] = {{CX_F32, "F32"},   {CX_F16, "F16"},   {CX_BF16, "BF16"}, {CX_Q4_0, "Q4_0"},
             {CX_Q4_1, "Q4_1"}, {CX_Q5_0, "Q5_0"}, {CX_Q5_1, "Q5_1"}, {CX_Q8_0, "Q8_0"},
             {CX_Q4_K, "Q4_K"}, {CX_Q5_K, "Q5_K"}, {CX_Q6_K, "Q6_K"}};
#define N_TYPES (int)(sizeof types / sizeof *types)

/* A file row: random bits with sane scales, or wholly random bits. */
static void fill_row(uint32_t dtype, int32_t cols, uint8_t *row, int wild) {
    size_t bytes = cx_dtype_row_bytes(dtype, cols), block = cx_dtype_block_bytes(dtype);
    for (size_t i = 0; i < bytes; i++) row[i] = (uint8_t)rnd();
    if (wild) return;
    for (size_t at = 0; at < bytes; at += block) {
        float f = rnd_float();
        uint16_t d = cx_f32_f16(f * 0.1f), m = cx_f32_f16(rnd_float());
        uint16_t bf = (uint16_t)(cx_f32_bits(f) >> 16);
        switch (dtype) {
        case CX_F32: memcpy(row + at, &f, 4); break;
        case CX_F16: memcpy(row + at, &m, 2); break;
        case CX_BF16: memcpy(row + at, &bf, 2); break;
        case CX_Q6_K: memcpy(row + at + 208, &d, 2); break;
        case CX_Q4_1:
        case CX_Q5_1:
        case CX_Q4_K:
        case CX_Q5_K: memcpy(row + at + 2, &m, 2); /* fall through */
        default: memcpy(row + at, &d, 2);
        }
    }
}

typedef struct {
    uint32_t dtype;
    int32_t rows, cols, n_panels;
    uint8_t *panels;
    float *w; /* [rows][cols] dequantised */
} matrix;

static matrix make_matrix(uint32_t dtype, int32_t rows, int32_t cols, int wild) {
    matrix x = {dtype, rows, cols, (rows + 15) / 16, NULL, NULL};
    size_t row_bytes = cx_dtype_row_bytes(dtype, cols), panel = cx_panel_bytes(dtype, cols);
    /* Blocks of 16-bit scales at odd addresses, as a file may hold them. */
    uint8_t *odd = get(row_bytes * (size_t)rows + 1), *file = odd + 1;
    x.panels = get_exact(panel * (size_t)x.n_panels);
    x.w = get((size_t)rows * (size_t)cols * sizeof(float));
    for (int32_t r = 0; r < rows; r++) {
        fill_row(dtype, cols, file + (size_t)r * row_bytes, wild);
        cx_row_to_f32(dtype, cols, file + (size_t)r * row_bytes, x.w + (size_t)r * (size_t)cols);
    }
    for (int32_t p = 0; p < x.n_panels; p++) {
        const uint8_t *src[CX_PANEL_ROWS];
        for (int r = 0; r < CX_PANEL_ROWS; r++)
            src[r] = p * 16 + r < rows ? file + (size_t)(p * 16 + r) * row_bytes : NULL;
        cx_panel_pack(dtype, cols, src, x.panels + (size_t)p * panel);
    }
    free(odd);
    return x;
}

/* ---- weights -------------------------------------------------------------------------------- */

static void test_panel_row(const cx_kernels *k, uint32_t dtype, int32_t cols) {
    matrix x = make_matrix(dtype, 19, cols, 1);
    float *y = get((size_t)cols * sizeof *y);
    int same = 1;
    for (int32_t r = 0; r < 19; r++) {
        const float *want = x.w + (size_t)r * (size_t)cols;
        k->panel_row(dtype, x.panels, cols, r, 1.0f, y);
        for (int32_t i = 0; i < cols; i++)
            same &= isnan(want[i]) ? isnan(y[i]) : cx_f32_bits(want[i]) == cx_f32_bits(y[i]);
    }
    check(same, "panel_row is not the file row's floats, bit for bit");
    check(is_poison(y[cols]), "panel_row wrote past the row");
    free(x.panels), free(x.w), free(y);
}

/* Values of a q8 row. */
static void q8_values(const cx_q8_block *a, int32_t cols, float *out) {
    for (int32_t i = 0; i < cols; i++)
        out[i] = a[i / 32].scale * (float)a[i / 32].q[i % 32];
}

/* Sums in f32 of n terms are off by far less than this, in units of the sum of magnitudes. */
#define SUM_TOLERANCE 2e-6

static void check_products(const matrix *x, const float *acts, int32_t m, const float *y,
                           int32_t ldy, const float *bias, int add, const char *what) {
    int ok = 1, inside = 1;
    for (int32_t i = 0; i < m; i++)
        for (int32_t r = 0; r < ldy; r++) {
            float got = y[(size_t)i * (size_t)ldy + (size_t)r];
            if (r >= x->rows) {
                inside &= is_poison(got);
                continue;
            }
            double sum = 0, size = 1e-30, biggest = 0;
            for (int32_t c = 0; c < x->cols; c++) {
                double w = x->w[(size_t)r * (size_t)x->cols + (size_t)c];
                double a = acts[(size_t)i * (size_t)x->cols + (size_t)c];
                /* The largest weight so far bounds the minimums that cancel inside a block. */
                if (fabs(w) > biggest) biggest = fabs(w);
                sum += w * a;
                size += fabs(a) * biggest;
            }
            if (bias) sum += bias[r];
            if (add) sum += 0.25;
            ok &= fabs(got - sum) <= SUM_TOLERANCE * (size + fabs(sum)) + (bias || add ? 1e-6 : 0);
        }
    check(ok, what);
    check(inside, "a product wrote beyond its rows");
}

static void test_matmul(const cx_kernels *k, uint32_t dtype, int32_t rows, int32_t cols, int32_t m,
                        int q8) {
    matrix x = make_matrix(dtype, rows, cols, 0);
    const int32_t ldy = rows + 21;
    const size_t n_acts = (size_t)m * (size_t)cols, n_y = (size_t)m * (size_t)ldy;
    float *acts = get(n_acts * sizeof *acts), *bias = get_exact((size_t)rows * sizeof *bias);
    float *y = get(n_y * sizeof *y), *z = get(n_y * sizeof *z);
    size_t stride = q8 ? cx_q8_bytes(cols) : (size_t)cols;
    uint8_t *packed = q8 ? get_exact(stride * (size_t)m) : NULL;
    for (size_t i = 0; i < n_acts; i++) acts[i] = rnd_float() * (rnd() % 7 ? 1.0f : 8.0f);
    for (int32_t r = 0; r < rows; r++) bias[r] = rnd_float();
    const void *in = acts;
    if (q8) {
        for (int32_t i = 0; i < m; i++) {
            float *row = acts + (size_t)i * (size_t)cols;
            uint8_t *to = packed + (size_t)i * stride;
            k->quantize_q8(row, cols, to);
            q8_values((const void *)to, cols, row);
        }
        in = packed;
    }
#define MATMUL(p0, np, at, rows_m, out, b, plus)                                                   \
    (q8 ? k->matmul_q8(dtype, x.panels, p0, np, rows, cols,                                        \
                       (const uint8_t *)in + (size_t)(at) * stride, stride, rows_m, out,           \
                       (size_t)ldy, b, plus)                                                       \
        : k->matmul_f32(dtype, x.panels, p0, np, rows, cols,                                       \
                        (const float *)in + (size_t)(at) * stride, stride, rows_m, out,            \
                        (size_t)ldy, b, plus))
    MATMUL(0, x.n_panels, 0, m, y, NULL, 0);
    check_products(&x, acts, m, y, ldy, NULL, 0, "product");
    for (int32_t i = 0; i < m; i++) /* each row alone, each panel alone */
        for (int32_t p = x.n_panels - 1; p >= 0; p--)
            MATMUL(p, 1, i, 1, z + (size_t)i * (size_t)ldy, NULL, 0);
    check(same_bits(y, z, n_y), "a row alone, panel by panel, differs from rows together");
    if (x.n_panels > 1) {
        memset(z, 0xff, n_y * sizeof *z);
        MATMUL(1, x.n_panels - 1, 0, m, z, NULL, 0);
        MATMUL(0, 1, 0, m, z, NULL, 0);
        check(same_bits(y, z, n_y), "a split of the panels changes bits");
    }
    for (int32_t i = 0; i < m; i++)
        for (int32_t r = 0; r < rows; r++) z[(size_t)i * (size_t)ldy + (size_t)r] = 0.25f;
    MATMUL(0, x.n_panels, 0, m, z, bias, 1);
    check_products(&x, acts, m, z, ldy, bias, 1, "product added, with bias");
    free(x.panels), free(x.w), free(acts), free(bias), free(y), free(z), free(packed);
}

static void test_quantize(const cx_kernels *k) {
    enum { COLS = 160 };
    float x[COLS];
    cx_q8_block *out = get_exact(cx_q8_bytes(COLS));
    for (int i = 0; i < COLS; i++) x[i] = rnd_float();
    for (int i = 0; i < 32; i++) x[32 + i] = 0.0f;
    for (int i = 0; i < 32; i++) x[64 + i] = (float)(i - 16) + 0.5f; /* scale 1: ties */
    x[64] = -127.0f;
    for (int i = 0; i < 32; i++) x[96 + i] = 1e-42f;
    x[130] = NAN;
    k->quantize_q8(x, COLS, out);
    int close = 1, even = 1, sums = 1;
    for (int i = 0; i < 32; i++) {
        close &= fabs((double)out[0].q[i] * out[0].scale - x[i]) <= 0.5001 * out[0].scale;
        even &= i == 0 || out[2].q[i] == (int)nearbyint(x[64 + i]);
    }
    for (int b = 0; b < 3; b++) {
        int lo = 0, hi = 0;
        for (int i = 0; i < 16; i++) lo += out[b].q[i], hi += out[b].q[16 + i];
        sums &= out[b].minus8 == -8 * (lo + hi) && out[b].minus16 == -16 * (lo + hi) &&
                out[b].minus128 == -128 * (lo + hi) && out[b].minus32[0] == -32 * lo &&
                out[b].minus32[1] == -32 * hi &&
                out[b].scaled_sum == out[b].scale * (float)(lo + hi);
    }
    check(close, "int8 values within half a step");
    check(even && out[2].scale == 1.0f, "ties round to even at scale 1");
    check(sums, "block sums");
    check(out[1].scale == 0.0f && out[1].q[5] == 0, "a zero block has scale 0");
    check(out[3].scale == 0.0f, "a block below any scale counts as zero");
    check(isnan(out[4].scale) && isnan(out[4].scaled_sum), "a NaN makes its block NaN");
    free(out);
}

/* ---- row operations ------------------------------------------------------------------------- */

static int near(double got, double want, double relative, double absolute) {
    return fabs(got - want) <= relative * fabs(want) + absolute;
}

static void test_rows(const cx_kernels *k, int32_t n) {
    size_t bytes = (size_t)n * sizeof(float);
    float *x = get(2 * bytes), *w = get(bytes), *y = get(bytes), *z = get(bytes);
    double sum = 0;
    for (int32_t i = 0; i < 2 * n; i++) x[i] = 4.0f * rnd_float();
    for (int32_t i = 0; i < n; i++) w[i] = rnd_float(), sum += (double)x[i] * x[i];
    double by = 1 / sqrt(sum / n + 1e-5);
    int ok = 1;
    k->rms_norm(y, x, w, n, 1e-5f, 1.0f, 0);
    for (int32_t i = 0; i < n; i++) ok &= near(y[i], x[i] * by * (1.0 + w[i]), 1e-6, 1e-7);
    check(ok && is_poison(y[n]), "rms_norm");
    for (int32_t i = 0; i < n; i++) z[i] = 0.5f;
    k->rms_norm(z, x, w, n, 1e-5f, 1.0f, 1);
    for (int32_t i = 0; i < n; i++) ok &= z[i] == 0.5f + y[i];
    memcpy(z, x, bytes);
    k->rms_norm(z, z, w, n, 1e-5f, 1.0f, 0);
    check(ok && same_bits(y, z, (size_t)n) && is_poison(z[n]), "rms_norm added and in place");

    for (int32_t act = 0; act < 2; act++) {
        for (int32_t i = 0; i < n; i++) x[i] = 9.0f * rnd_float() * (i % 5 ? 1.0f : 12.0f);
        memset(y, 0xff, bytes);
        k->gate(act, y, x, n);
        ok = 1;
        for (int32_t i = 0; i < n; i++) {
            double v = x[i], u = sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v);
            double want = v / (1 + exp(act == CX_ACT_SILU ? -v : -2 * u)) * x[n + i];
            ok &= near(y[i], want, fabs(v) < 6 ? 3e-6 : 1e-4, 1e-9);
        }
        check(ok && is_poison(y[n]), act == CX_ACT_SILU ? "gate silu" : "gate gelu_tanh");
    }
    k->add(y, x, w, n);
    ok = 1;
    for (int32_t i = 0; i < n; i++) ok &= y[i] == x[i] + w[i];
    memcpy(z, w, bytes);
    k->add(z, x, z, n);
    check(ok && same_bits(y, z, (size_t)n) && is_poison(y[n]), "add, in place too");
    k->softcap(y, x, n, 20.0f);
    ok = 1;
    for (int32_t i = 0; i < n; i++) ok &= near(y[i], 20 * tanh(x[i] / 20.0), 5e-7, 0);
    check(ok && is_poison(y[n]), "softcap");
    free(x), free(w), free(y), free(z);
}

static void test_extremes(const cx_kernels *k) {
    float x[16] = {0.0f, -0.0f, 200.0f, -200.0f, 1e30f, -1e30f, 88.5f, -88.5f, 1e-30f, NAN};
    float y[8];
    for (int i = 8; i < 16; i++) x[i] = 1.0f;
    k->gate(CX_ACT_SILU, y, x, 8);
    check(y[0] == 0 && y[1] == 0 && y[2] == 200 && y[3] == 0 && y[4] == 1e30f && y[5] == 0,
          "silu far out");
    check(near(y[6], 88.5, 1e-6, 0) && near(y[7], -88.5 * exp(-88.5), 1e-5, 1e-44), "silu near 88");
    k->gate(CX_ACT_GELU_TANH, y, x, 8);
    check(y[0] == 0 && y[2] == 200 && y[3] == 0 && y[6] == 88.5f && y[7] == 0, "gelu far out");
    x[0] = NAN, x[1] = INFINITY, x[2] = -INFINITY;
    k->softcap(y, x, 8, 30.0f);
    check(isnan(y[0]) && y[1] == 30 && y[2] == -30 && y[4] == 30, "softcap of NaN and infinities");
}

static void test_rope(const cx_kernels *k, int32_t head_dim, int32_t half) {
    enum { HEADS = 3 };
    const size_t n = HEADS * (size_t)head_dim;
    float *x = get(n * sizeof *x), *y = get(n * sizeof *y), cs[512];
    for (size_t i = 0; i < n; i++) x[i] = y[i] = rnd_float();
    for (int32_t i = 0; i < half; i++) {
        double angle = rnd_float() * 100;
        cs[i] = (float)cos(angle), cs[half + i] = (float)sin(angle);
    }
    k->rope(y, cs, HEADS, head_dim, half);
    int ok = 1;
    for (int h = 0; h < HEADS; h++)
        for (int32_t i = 0; i < head_dim; i++) {
            const float *in = x + h * head_dim, got = y[h * head_dim + i];
            int32_t j = i % half;
            double want = in[i];
            if (i < half) want = (double)in[j] * cs[j] - (double)in[j + half] * cs[half + j];
            else if (i < 2 * half) want = (double)in[i] * cs[j] + (double)in[j] * cs[half + j];
            ok &= i < 2 * half ? near(got, want, 1e-6, 2e-7) : got == in[i];
        }
    check(ok && is_poison(y[n]), "rope");
    free(x), free(y);
}

/* ---- attention ------------------------------------------------------------------------------ */

static float stored(int kv_f32, float x) {
    return kv_f32 ? x : cx_f16_f32(cx_f32_f16(x));
}

static void attend_reference(const cx_attend_args *a, const float *k, const float *v,
                             const float *q, int32_t pos, int32_t head, double *out) {
    const int32_t hd = a->head_dim, kv_head = head / (a->n_heads / a->n_kv_heads);
    const int32_t first = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    double *p = malloc(((size_t)pos + 1) * sizeof *p), max = -INFINITY, sum = 0;
    if (!p) exit(2);
    for (int32_t d = 0; d < hd; d++) out[d] = 0;
    for (int32_t j = first; j <= pos; j++) {
        const float *key = k + ((size_t)j * (size_t)a->n_kv_heads + (size_t)kv_head) * (size_t)hd;
        double s = 0;
        for (int32_t d = 0; d < hd; d++) s += (double)q[d] * stored(a->kv_f32, key[d]);
        s *= a->scale;
        if (a->softcap > 0) s = a->softcap * tanh(s / a->softcap);
        p[j] = s;
        if (s > max) max = s;
    }
    for (int32_t j = first; j <= pos; j++) sum += p[j] = exp(p[j] - max);
    for (int32_t j = first; j <= pos; j++) {
        const float *val = v + ((size_t)j * (size_t)a->n_kv_heads + (size_t)kv_head) * (size_t)hd;
        for (int32_t d = 0; d < hd; d++) out[d] += p[j] / sum * stored(a->kv_f32, val[d]);
    }
    free(p);
}

static void test_attend(const cx_kernels *k, cx_attend_args a, int32_t tokens) {
    const size_t hd = (size_t)a.head_dim, g = (size_t)(a.n_heads / a.n_kv_heads);
    const size_t width = (size_t)a.n_heads * hd, kv_width = (size_t)a.n_kv_heads * hd;
    const size_t n = (size_t)tokens * width;
    float *q = get(n * sizeof *q), *one = get(n * sizeof *one), *all = get(n * sizeof *all);
    float *keys = get((size_t)tokens * kv_width * sizeof *keys);
    float *vals = get((size_t)tokens * kv_width * sizeof *vals);
    size_t bytes = cx_kv_bytes(a.kv_f32, a.n_kv_heads, a.head_dim, a.context);
    void *kv = get_exact(bytes), *copy = get_exact(bytes); /* full of NaN */
    for (size_t i = 0; i < n; i++) q[i] = 3.0f * rnd_float();
    for (size_t i = 0; i < (size_t)tokens * kv_width; i++) {
        keys[i] = rnd_float();
        vals[i] = rnd_float();
    }
    /* One by one: later positions are still NaN. */
    for (int32_t t = 0; t < tokens; t++) {
        k->kv_store(&a, kv, t, keys + (size_t)t * kv_width, vals + (size_t)t * kv_width);
        for (int32_t h = 0; h < a.n_kv_heads; h++)
            for (int32_t j = 0; j < (int32_t)g; j++)
                k->attend(&a, kv, h, j, 1, t, 1, q + (size_t)t * width, width,
                          one + (size_t)t * width, width);
    }
    for (int32_t h = 0; h < a.n_kv_heads; h++)
        k->attend(&a, kv, h, 0, (int32_t)g, 0, tokens, q, width, all, width);
    check(same_bits(one, all, n), "tokens one by one differ from all at once");
    check(is_poison(all[n]), "attend wrote past its rows");
    double worst = 0, *want = malloc(hd * sizeof *want);
    if (!want) exit(2);
    for (int32_t t = 0; t < tokens; t += t < 5 ? 1 : 9)
        for (int32_t h = 0; h < a.n_heads; h++) {
            size_t at = (size_t)t * width + (size_t)h * hd;
            attend_reference(&a, keys, vals, q + at, t, h, want);
            for (size_t d = 0; d < hd; d++) {
                double off = fabs(all[at + d] - want[d]);
                if (!(off <= worst)) worst = off;
            }
        }
    check(worst < 4e-6, "attention against the reference");
    /* A copy of the first positions, continued in odd chunks. */
    const int32_t half = tokens / 2;
    cx_kv_copy(a.kv_f32, a.n_kv_heads, a.head_dim, a.context, kv, copy, half);
    memset(one, 0xff, n * sizeof *one);
    for (int32_t t = half; t < tokens; t++)
        k->kv_store(&a, copy, t, keys + (size_t)t * kv_width, vals + (size_t)t * kv_width);
    for (int32_t t = half; t < tokens; t += 7)
        for (int32_t h = 0; h < a.n_kv_heads; h++)
            k->attend(&a, copy, h, 0, (int32_t)g, t, tokens - t < 7 ? tokens - t : 7,
                      q + (size_t)t * width, width, one + (size_t)t * width, width);
    check(same_bits(one + (size_t)half * width, all + (size_t)half * width,
                    (size_t)(tokens - half) * width),
          "a copied cache continued in chunks differs");
    free(q), free(one), free(all), free(keys), free(vals), free(kv), free(copy), free(want);
}

/* ---- all tables ----------------------------------------------------------------------------- */

static const int32_t shapes[][3] = {{1, 1, 1},  {16, 2, 2},  {17, 1, 3}, {15, 3, 4}, {33, 5, 5},
                                    {70, 2, 7}, {40, 18, 8}, {16, 1, 9}, {50, 3, 17}};

static void test_table(const cx_kernels *k) {
    for (int t = 0; t < N_TYPES; t++) {
        const int32_t block = cx_dtype_block(types[t].id);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int32_t rows = shapes[s][0], m = shapes[s][2];
            /* Blocks of 32 as given, superblocks 1 or 2, float columns odd. */
            const int32_t cols = block == 32    ? 32 * shapes[s][1]
                                 : block == 256 ? 256 * (1 + shapes[s][1] % 2)
                                                : 9 * shapes[s][1] - 8;
            snprintf(where, sizeof where, "%s %s rows %d cols %d m %d", k->name, types[t].name,
                     rows, cols, m);
            test_panel_row(k, types[t].id, cols);
            test_matmul(k, types[t].id, rows, cols, m, 0);
            if (cx_dtype_wants_q8(types[t].id)) test_matmul(k, types[t].id, rows, cols, m, 1);
        }
    }
    snprintf(where, sizeof where, "%s", k->name);
    test_quantize(k);
    test_extremes(k);
    for (int32_t n = 1; n < 100; n += n < 18 ? 1 : 13) {
        snprintf(where, sizeof where, "%s n %d", k->name, n);
        test_rows(k, n);
    }
    test_rope(k, 64, 32), test_rope(k, 8, 4), test_rope(k, 40, 20), test_rope(k, 64, 8);
    static const int32_t heads[][3] = {{9, 3, 64}, {4, 1, 256}, {2, 2, 8}, {5, 1, 40}, {2, 1, 512}};
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
        for (int v = 0; v < 8; v++) {
            cx_attend_args a = {v & 1, heads[h][0], heads[h][1], heads[h][2], 0, 0, 0, 0};
            a.scale = 1.0f / sqrtf((float)a.head_dim);
            a.window = v & 2 ? (v & 1 ? 70 : 5) : 0;
            a.softcap = v & 4 ? 2.0f : 0.0f;
            const int32_t tokens = h < 1 ? 200 : 75;
            a.context = tokens;
            snprintf(where, sizeof where, "%s heads %d/%d of %d, f32 %d, window %d, softcap %g",
                     k->name, a.n_heads, a.n_kv_heads, a.head_dim, a.kv_f32, a.window,
                     (double)a.softcap);
            test_attend(k, a, tokens);
        }
}

/* The same bits from two tables that both fuse multiply and add. */
static void test_equal(const cx_kernels *a, const cx_kernels *b) {
    enum { ROWS = 40, M = 5 };
    for (int t = 0; t < N_TYPES; t++) {
        const int32_t cols = 512;
        const uint32_t dtype = types[t].id;
        snprintf(where, sizeof where, "%s = %s, %s", a->name, b->name, types[t].name);
        matrix x = make_matrix(dtype, ROWS, cols, 0);
        const int32_t n = x.n_panels;
        size_t stride = cx_q8_bytes(cols);
        float in[M * 512], y[M * ROWS], z[M * ROWS];
        uint8_t *qa = get(stride * M), *qb = get(stride * M);
        for (int i = 0; i < M * 512; i++) in[i] = rnd_float();
        a->matmul_f32(dtype, x.panels, 0, n, ROWS, cols, in, 512, M, y, ROWS, NULL, 0);
        b->matmul_f32(dtype, x.panels, 0, n, ROWS, cols, in, 512, M, z, ROWS, NULL, 0);
        check(same_bits(y, z, M * ROWS), "matmul_f32");
        for (int i = 0; i < M; i++) {
            const size_t at = (size_t)i * stride;
            a->quantize_q8(in + i * 512, cols, qa + at);
            b->quantize_q8(in + i * 512, cols, qb + at);
            check(memcmp(qa + at, qb + at, 16 * 64) == 0, "quantize");
        }
        if (cx_dtype_wants_q8(dtype)) {
            a->matmul_q8(dtype, x.panels, 0, n, ROWS, cols, qa, stride, M, y, ROWS, NULL, 0);
            b->matmul_q8(dtype, x.panels, 0, n, ROWS, cols, qb, stride, M, z, ROWS, NULL, 0);
            check(same_bits(y, z, M * ROWS), "matmul_q8");
        }
        a->gate(t & 1, y, in, 64), b->gate(t & 1, z, in, 64);
        check(same_bits(y, z, 64), "gate");
        free(x.panels), free(x.w), free(qa), free(qb);
    }
}

static void test_sizes(void) {
    snprintf(where, sizeof where, "sizes");
    check(cx_dtype_block(99) == 0 && cx_dtype_block_bytes(99) == 0 && cx_panel_bytes(99, 32) == 0,
          "an unknown type has no size");
    check(cx_dtype_row_bytes(CX_Q4_0, 33) == 0 && cx_dtype_row_bytes(CX_Q6_K, 128) == 0,
          "a part of a block has no size");
    check(cx_dtype_row_bytes(CX_Q4_K, 512) == 288 && cx_dtype_row_bytes(CX_F16, 3) == 6,
          "row bytes");
    for (int t = 0; t < N_TYPES; t++)
        check(cx_panel_bytes(types[t].id, 256) % 64 == 0, "panels are whole cache lines");
    int exact = 1;
    for (uint32_t h = 0; h < 0x10000u; h++) {
        float f = cx_f16_f32((uint16_t)h);
        exact &= isnan(f) || cx_f32_f16(f) == h;
    }
    check(exact, "every half converts there and back");
    check(cx_f32_f16(65519.0f) == 0x7bff && cx_f32_f16(65520.0f) == 0x7c00 &&
              cx_f32_f16(0x1p-25f) == 0 && cx_f32_f16(0x1.8p-25f) == 1 &&
              cx_f32_f16(1.0f + 0x1p-11f) == 0x3c00 && cx_f32_f16(1.0f + 0x3p-11f) == 0x3c02,
          "halves round to even");
}

int main(int argc, char **argv) {
    static const char *const names[] = {"scalar", "avx2", "avx512", "avx512vnni", "neon"};
    const cx_kernels *fused = NULL;
    test_sizes();
    check(cx_kernels_named("mmx") == NULL && cx_kernels_named("scalar") != NULL, "tables by name");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cx_kernels *k = cx_kernels_named(names[i]);
        if (!k || (argc > 1 && strcmp(argv[1], names[i]) != 0)) continue;
        printf("table %s\n", k->name);
        test_table(k);
        if (i == 0) continue;
        if (fused) test_equal(fused, k);
        fused = k;
    }
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed ? 1 : 0;
}
