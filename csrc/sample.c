/*
 * sample.c: see sample.h.
 *
 * Candidates are x[n] with ids; dense (candidate i is token i) until something removes one. The two
 * places that need an order, top_p and the draw, ask the same question: which is the smallest run
 * of most likely candidates whose weights reach a sum? prefix() answers it in linear time:
 * candidates too light to matter are left out, the rest is partitioned around pivots as in
 * quickselect.
 */
#include "sample.h"

#include <math.h>
#include <string.h>

/* One in the fixed point of weights: 2^22 tokens of weight one still fit 63 bits. */
#define ONE 1099511627776.0f /* 2^40 */
/* The bits of -87.0f. */
#define MINUS_87 ((int32_t)0xc2ae0000u)
#define GOLDEN 0x9e3779b97f4a7c15u
/* The maximum search: its vector, and its block, small beside a vocabulary. */
#define LANES 16
#define BLOCK 1024

/* A candidate in order: key = (logit in an unsigned order) << 32 | ~id, larger is more likely. */
struct sample_item {
    uint64_t key;
    uint64_t weight;
};

struct candidates {
    float *x;
    const int32_t *id; /* NULL while dense */
    int32_t n;
    float most; /* largest x */
};

size_t sample_scratch_bytes(int32_t vocab) {
    const size_t n = (size_t)vocab;
    return 2 * align_up(n * sizeof(float), CX_ALIGN) + align_up(n * sizeof(int32_t), CX_ALIGN) +
           align_up(n * sizeof(struct sample_item), CX_ALIGN) +
           align_up((n + 63) / 64 * sizeof(uint64_t), CX_ALIGN);
}

void sample_scratch_place(struct sample_scratch *s, int32_t vocab, uint8_t *memory) {
    const size_t n = (size_t)vocab;
    s->vocab = vocab;
    s->x = (float *)(void *)memory;
    memory += align_up(n * sizeof(float), CX_ALIGN);
    s->e = (float *)(void *)memory;
    memory += align_up(n * sizeof(float), CX_ALIGN);
    s->id = (int32_t *)(void *)memory;
    memory += align_up(n * sizeof(int32_t), CX_ALIGN);
    s->items = (struct sample_item *)(void *)memory;
    memory += align_up(n * sizeof(struct sample_item), CX_ALIGN);
    s->seen = (uint64_t *)(void *)memory;
}

int32_t sample_check(const cx_sampling *p, int32_t row, cx_err *err) {
    if (!(p->temperature >= 0)) {
        return err_set(err, CX_ARG, "sampling[%d].temperature is %g, must be 0 or more", row,
                       (double)p->temperature);
    }
    if (!(p->top_p >= 0 && p->top_p <= 1)) {
        return err_set(err, CX_ARG, "sampling[%d].top_p is %g, must be 0 to 1", row,
                       (double)p->top_p);
    }
    if (!(p->min_p >= 0 && p->min_p <= 1)) {
        return err_set(err, CX_ARG, "sampling[%d].min_p is %g, must be 0 to 1", row,
                       (double)p->min_p);
    }
    if (!(p->repetition_penalty > 0 && isfinite(p->repetition_penalty))) {
        return err_set(err, CX_ARG, "sampling[%d].repetition_penalty is %g, must be above 0", row,
                       (double)p->repetition_penalty);
    }
    if (p->top_k < 0) {
        return err_set(err, CX_ARG, "sampling[%d].top_k is %d, must be 0 or more", row, p->top_k);
    }
    return CX_OK;
}

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t sample_bits(uint64_t seed, uint64_t draw) {
    return mix(mix(seed + GOLDEN) + (draw + 1) * GOLDEN) >> 11;
}

/* ---- maximum ------------------------------------------------------------------------------- */

/*
 * Index of the largest of x[n], the first of equals; -1 when any is NaN. Each block is read once,
 * in LANES running maxima (a single one would not vectorise); only the best block is looked at
 * again.
 */
static int32_t largest(const float *x, int32_t n) {
    float best = -INFINITY;
    int32_t best_block = 0;
    int32_t nan = 0;
    for (int32_t at = 0; at < n; at += BLOCK) {
        const int32_t end = n - at < BLOCK ? n : at + BLOCK;
        float most[LANES];
        int32_t bad[LANES] = {0};
        for (int32_t j = 0; j < LANES; j++) most[j] = -INFINITY;
        int32_t i = at;
        for (; i + LANES <= end; i += LANES) {
            for (int32_t j = 0; j < LANES; j++) {
                most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
                bad[j] |= x[i + j] != x[i + j];
            }
        }
        for (; i < end; i++) {
            most[0] = x[i] > most[0] ? x[i] : most[0];
            nan |= x[i] != x[i];
        }
        for (int32_t j = 0; j < LANES; j++) {
            nan |= bad[j];
            if (most[j] > best) {
                best = most[j];
                best_block = at;
            }
        }
    }
    if (nan) return -1;
    int32_t i = best_block;
    while (x[i] != best) i++;
    return i;
}

/* ---- weights ------------------------------------------------------------------------------- */

/*
 * exp(x) for x <= 0 to 2 ulp with +, * and a cast only, so that it vectorises and gives the same
 * bits on every machine. Cephes expf: x = n ln 2 + r, then a polynomial on |r| <= ln 2 / 2.
 */
static inline float exp_negative(float x) {
    /* At least -87, where 2^40 * exp(x) is far below one; NaN (inf / inf) too. Compared as bits, in
     * which smaller negative floats are larger integers: comparing floats becomes a branch. */
    int32_t raw;
    memcpy(&raw, &x, sizeof raw);
    raw |= INT32_MIN;
    raw = raw < MINUS_87 ? raw : MINUS_87;
    memcpy(&x, &raw, sizeof x);
    const int32_t n = (int32_t)(x * 1.44269504f - 0.5f);
    const float fn = (float)n;
    const float r = (x - fn * 0.693359375f) - fn * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return y * scale;
}

/* Weight of a candidate: 2^40 for the most likely one, whatever the last ulp of exp says. */
static inline uint64_t fixed(float e) { return (uint64_t)(int64_t)((e < 1.0f ? e : 1.0f) * ONE); }

/* e[i] = exp((x[i] - most) / temperature) for all candidates; a loop that vectorises. */
static void exp_all(const struct candidates *c, float temperature, float *restrict e) {
    const float *restrict x = c->x;
    const float most = c->most;
    const int32_t n = c->n;
    for (int32_t i = 0; i < n; i++) e[i] = exp_negative((x[i] - most) / temperature);
}

/* The same, and the sum of the weights. */
static uint64_t weigh(const struct candidates *c, float temperature, float *e) {
    exp_all(c, temperature, e);
    uint64_t sum = 0;
    for (int32_t i = 0; i < c->n; i++) sum += fixed(e[i]);
    return sum;
}

/* ---- order --------------------------------------------------------------------------------- */

static uint64_t key_of(float x, int32_t id) {
    uint32_t bits;
    x += 0.0f; /* -0 is a tie with 0 */
    memcpy(&bits, &x, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

static float key_logit(uint64_t key) {
    uint32_t bits = (uint32_t)(key >> 32);
    bits = bits & 0x80000000u ? bits & 0x7fffffffu : ~bits;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int32_t key_id(uint64_t key) { return (int32_t)~(uint32_t)key; }

static void swap(struct sample_item *a, struct sample_item *b) {
    const struct sample_item t = *a;
    *a = *b;
    *b = t;
}

/* Moves the items above a median-of-three pivot before it; returns the pivot's place. n > 0. */
static int32_t partition(struct sample_item *items, int32_t n) {
    struct sample_item *a = items, *b = items + n / 2, *c = items + n - 1;
    if (a->key < b->key) swap(a, b);
    if (b->key < c->key) swap(b, c);
    if (a->key < b->key) swap(a, b);
    swap(b, c);
    const uint64_t pivot = c->key;
    int32_t at = 0;
    for (int32_t i = 0; i < n - 1; i++) {
        if (items[i].key > pivot) swap(&items[i], &items[at++]);
    }
    swap(&items[at], c);
    return at;
}

/* Brings the k most likely of n items to the front, in no order. */
static void select_top(struct sample_item *items, int32_t n, int32_t k) {
    while (k > 0 && k < n) {
        const int32_t at = partition(items, n);
        if (k <= at) {
            n = at;
        } else {
            items += at + 1;
            n -= at + 1;
            k -= at + 1;
        }
    }
}

/*
 * Brings the shortest run of most likely items whose weights reach `mass` to the front and returns
 * its length; the item that reaches it is the last of the run. 1 <= mass <= sum of weights.
 */
static int32_t select_mass(struct sample_item *items, int32_t n, uint64_t mass) {
    int32_t begin = 0;
    while (begin < n) {
        const int32_t at = begin + partition(items + begin, n - begin);
        uint64_t above = 0;
        for (int32_t i = begin; i < at; i++) above += items[i].weight;
        if (mass <= above) {
            n = at;
        } else if (mass <= above + items[at].weight) {
            return at + 1;
        } else {
            mass -= above + items[at].weight;
            begin = at + 1;
        }
    }
    return n;
}

static int32_t id_of(const struct candidates *c, int32_t i) { return c->id ? c->id[i] : i; }

/*
 * The shortest run of most likely candidates whose weights reach `mass` of `sum`, in items[0 .. m).
 *
 * Left out beforehand: candidates lighter than (sum - mass) / n. All of them together weigh less
 * than sum - mass, so the rest still reaches mass; and the cut is made on logits, so it never
 * disagrees with their order, as the rounded weights may by an ulp.
 */
static int32_t prefix(struct sample_scratch *s, const struct candidates *c, float temperature,
                      uint64_t sum, uint64_t mass) {
    const uint64_t light = (sum - mass) / (uint64_t)c->n;
    /* 1e-3 is far more than the errors of the quotient, exp_negative and this logarithm. */
    const double cut = light == 0 ? -INFINITY : log((double)light / (double)ONE) - 1e-3;
    const double bar = (double)c->most + cut * (double)temperature;
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        if ((double)c->x[i] >= bar) {
            s->items[n++] = (struct sample_item){key_of(c->x[i], id_of(c, i)), fixed(s->e[i])};
        }
    }
    return select_mass(s->items, n, mass);
}

/* ---- the steps ----------------------------------------------------------------------------- */

static void penalise(struct sample_scratch *s, const int32_t *history, int32_t n, float penalty) {
    for (int32_t i = 0; i < n; i++) {
        const int32_t t = history[i];
        const uint64_t bit = (uint64_t)1 << (t & 63);
        if (s->seen[t >> 6] & bit) continue;
        s->seen[t >> 6] |= bit;
        s->x[t] = s->x[t] > 0 ? s->x[t] / penalty : s->x[t] * penalty;
    }
    for (int32_t i = 0; i < n; i++) s->seen[history[i] >> 6] = 0;
}

/* Takes the first n items as the candidates. */
static void adopt(struct sample_scratch *s, struct candidates *c, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        s->x[i] = key_logit(s->items[i].key);
        s->id[i] = key_id(s->items[i].key);
    }
    c->id = s->id;
    c->n = n;
}

/*
 * Keeps candidates with a logit above -inf; when the largest is +inf, those equal to it, as zeros.
 * Reads ahead of its writes, so in place.
 */
static void drop_infinite(struct sample_scratch *s, struct candidates *c) {
    const bool top = c->most == INFINITY;
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        if (top ? s->x[i] != INFINITY : s->x[i] == -INFINITY) continue;
        s->id[n] = id_of(c, i);
        s->x[n++] = top ? 0.0f : s->x[i];
    }
    c->id = s->id;
    c->n = n;
    if (top) c->most = 0.0f;
}

static bool any_infinite(const float *x, int32_t n) {
    int found = 0;
    for (int32_t i = 0; i < n; i++) found |= x[i] == -INFINITY;
    return found;
}

/*
 * Leaves the k most likely. A buffer of a few k collects what beats the worst of the k best so far,
 * so a small k costs little more than a look at each logit.
 */
static void keep_top_k(struct sample_scratch *s, struct candidates *c, int32_t k) {
    const int32_t room = k > c->n / 4 ? c->n : 4 * k;
    uint64_t worst = 0; /* once the buffer was full: the k-th best key seen */
    float bar = -INFINITY;
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        if (c->x[i] < bar) continue;
        const uint64_t key = key_of(c->x[i], id_of(c, i));
        if (key <= worst) continue;
        if (n == room) {
            select_top(s->items, n, k);
            n = k;
            worst = s->items[0].key;
            for (int32_t j = 1; j < k; j++) {
                if (s->items[j].key < worst) worst = s->items[j].key;
            }
            bar = key_logit(worst);
            if (key <= worst) continue;
        }
        s->items[n++].key = key;
    }
    select_top(s->items, n, k);
    adopt(s, c, k);
}

static void keep_top_p(struct sample_scratch *s, struct candidates *c, float top_p) {
    const uint64_t sum = weigh(c, 1.0f, s->e);
    /* p came as a float32: half an ulp below it counts as reached, so that 0.1 means a tenth. */
    const double want = ceil((double)top_p * (1.0 - 0x1p-24) * (double)sum);
    uint64_t mass = want < 1.0 ? 1 : (uint64_t)want;
    if (mass > sum) mass = sum;
    adopt(s, c, prefix(s, c, 1.0f, sum, mass));
}

static void keep_min_p(struct sample_scratch *s, struct candidates *c, float min_p) {
    exp_all(c, 1.0f, s->e);
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        const float x = s->x[i];
        if (s->e[i] < min_p) continue;
        s->id[n] = id_of(c, i);
        s->x[n++] = x;
    }
    c->id = s->id;
    c->n = n;
}

static int32_t draw(struct sample_scratch *s, const struct candidates *c, const cx_sampling *p) {
    const uint64_t sum = weigh(c, p->temperature, s->e);
    const unsigned __int128 product = (unsigned __int128)sample_bits(p->seed, p->draw) * sum;
    const uint64_t target = (uint64_t)(product >> 53); /* floor(u * sum), below sum */
    const int32_t n = prefix(s, c, p->temperature, sum, target + 1);
    return key_id(s->items[n - 1].key);
}

int32_t sample_token(struct sample_scratch *s, const float *logits, const int32_t *history,
                     int32_t n_history, const cx_sampling *p) {
    const int32_t vocab = s->vocab;
    const bool greedy = p->temperature < SAMPLE_TINY_TEMPERATURE || p->top_k == 1;
    const bool penalty = p->repetition_penalty != 1.0f && n_history > 0;
    int32_t best = largest(logits, vocab);
    if (best < 0 || !isfinite(logits[best])) {
        /* A NaN, or +inf (whose finite company must be looked for), or nothing but -inf. */
        if (best < 0 || logits[best] < 0) return -1;
        bool finite = false;
        for (int32_t i = 0; i < vocab && !finite; i++) finite = isfinite(logits[i]);
        if (!finite) return -1;
    }
    if (greedy && !penalty) return best;

    memcpy(s->x, logits, (size_t)vocab * sizeof(float));
    if (penalty) {
        penalise(s, history, n_history, p->repetition_penalty);
        best = largest(s->x, vocab);
        if (s->x[best] == -INFINITY) return -1; /* a huge penalty left nothing finite */
    }
    if (greedy) return best;

    struct candidates c = {.x = s->x, .n = vocab, .most = s->x[best]};
    if (p->top_k > 0 && p->top_k < c.n) keep_top_k(s, &c, p->top_k);
    if (c.most == INFINITY || any_infinite(c.x, c.n)) drop_infinite(s, &c);
    if (p->top_p < 1.0f && c.n > 1) keep_top_p(s, &c, p->top_p);
    if (p->min_p > 0.0f && c.n > 1) keep_min_p(s, &c, p->min_p);
    return c.n == 1 ? id_of(&c, 0) : draw(s, &c, p);
}
