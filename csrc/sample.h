/*
 * sample.h: one token from one row of logits. Pure: no clock, no hidden state; it knows no engine.
 *
 * Order of operations
 *   1. repetition penalty over each distinct token of `history`: a positive logit is divided by it,
 *      a negative one multiplied
 *   2. top_k: the k largest logits
 *   3. softmax at temperature 1 over what is left; top_p: the smallest set of most likely tokens
 *      whose mass reaches p, the token that crosses stays
 *   4. min_p: those at least min_p times as likely as the most likely
 *   5. the survivors' logits divided by the temperature, one uniform draw, a walk from the most
 *      likely down. Temperature 0 or one survivor needs no draw.
 * "More likely" is the larger logit, then the smaller id. A logit of -inf is never picked; when any
 * logit is +inf, only those are candidates.
 *
 * Probabilities are integers: 2^40 * exp((logit - largest) / temperature), rounded down. Integer
 * sums have no order, so the fast path (partial selection) and a full sort give the same token.
 *
 * The generator is counter-based, so a reply can be replayed from any token on:
 *     mix(z)        = splitmix64's finaliser: z ^= z >> 30; z *= 0xbf58476d1ce4e5b9;
 *                     z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31
 *     u(seed, draw) = (mix(mix(seed + G) + (draw + 1) * G) >> 11) / 2^53,  G = 0x9e3779b97f4a7c15
 */
#ifndef CALDRIX_SAMPLE_H
#define CALDRIX_SAMPLE_H

#include "base.h"

/* Below this the quotients leave float32 and only exact ties would still be drawn: greedy. */
#define SAMPLE_TINY_TEMPERATURE 1e-20f

/* Scratch of one thread for one vocabulary; carved out of memory the caller owns. */
struct sample_scratch {
    int32_t vocab;
    float *x;                  /* [vocab] candidates' logits */
    float *e;                  /* [vocab] their weights before scaling */
    int32_t *id;               /* [vocab] their tokens; unused while candidate i is token i */
    struct sample_item *items; /* [vocab] */
    uint64_t *seen;            /* one bit a token, all zero between calls */
};

/* Bytes sample_scratch_place needs; vocab is at most CX_MAX_VOCAB, so no product overflows. */
size_t sample_scratch_bytes(int32_t vocab);
/* Points the scratch into zeroed memory aligned to CX_ALIGN. */
void sample_scratch_place(struct sample_scratch *s, int32_t vocab, uint8_t *memory);

/* CX_ARG naming the field and `row` when a value is outside its range. */
int32_t sample_check(const cx_sampling *p, int32_t row, cx_err *err);

/*
 * The token for logits[vocab] after history[n_history] (all in 0 .. vocab - 1; repeats allowed).
 * Returns -1 when the logits hold a NaN or no finite value. Any thread, one scratch each.
 */
int32_t sample_token(struct sample_scratch *s, const float *logits, const int32_t *history,
                     int32_t n_history, const cx_sampling *p);

/* 53 uniform bits of draw `draw` of `seed`. */
uint64_t sample_bits(uint64_t seed, uint64_t draw);

#endif
