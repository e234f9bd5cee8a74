/*
 * cpu.c: which kernel table this machine runs. Baseline flags, no vector types: it must run
 * anywhere.
 *
 * x86-64: both cpuid (the processor has it) and xgetbv (the operating system saves the registers).
 * arm64: NEON is part of the base. CALDRIX_ISA=<name> takes that table instead of the best, so
 * that one machine tests all that it can run.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

extern const cx_kernels cx_kernels_scalar;

#if defined(__x86_64__)
#include <cpuid.h>

extern const cx_kernels cx_kernels_avx2, cx_kernels_avx512, cx_kernels_avx512vnni;

/* cpuid leaf 1, register c. */
#define HAS_FMA (1u << 12)
#define HAS_OSXSAVE (1u << 27)
#define HAS_AVX (1u << 28)
#define HAS_F16C (1u << 29)
/* Leaf 7, register b; AVX512_VNNI is in register c. */
#define HAS_AVX2 (1u << 5)
#define HAS_AVX512 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define HAS_AVX512_VNNI (1u << 11)
/* xgetbv: xmm and ymm; with opmask, upper halves and upper zmm. */
#define SAVES_YMM 0x06u
#define SAVES_ZMM 0xe6u

static unsigned saved_registers(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* 0 scalar, 1 avx2, 2 avx512, 3 avx512vnni: each level contains those below. */
static int level(void) {
    const unsigned leaf1 = HAS_FMA | HAS_OSXSAVE | HAS_AVX | HAS_F16C;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1) != leaf1) return 0;
    const unsigned saves = saved_registers();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & HAS_AVX2)) return 0;
    if ((saves & SAVES_YMM) != SAVES_YMM) return 0;
    if ((b & HAS_AVX512) != HAS_AVX512 || (saves & SAVES_ZMM) != SAVES_ZMM) return 1;
    return c & HAS_AVX512_VNNI ? 3 : 2;
}

static const cx_kernels *const tables[] = {&cx_kernels_scalar, &cx_kernels_avx2, &cx_kernels_avx512,
                                           &cx_kernels_avx512vnni};
#else
extern const cx_kernels cx_kernels_neon;

static int level(void) {
    return 1;
}

static const cx_kernels *const tables[] = {&cx_kernels_scalar, &cx_kernels_neon};
#endif

const cx_kernels *cx_kernels_named(const char *name) {
    for (int i = level(); i >= 0; i--)
        if (strcmp(tables[i]->name, name) == 0) return tables[i];
    return NULL;
}

const cx_kernels *cx_kernels_best(void) {
    /* Whichever thread comes first; all find the same. */
    static const cx_kernels *chosen;
    static int known;
    if (!__atomic_load_n(&known, __ATOMIC_ACQUIRE)) {
        const char *cap = getenv("CALDRIX_ISA");
        const cx_kernels *table = cap && *cap ? cx_kernels_named(cap) : tables[level()];
        __atomic_store_n(&chosen, table, __ATOMIC_RELAXED);
        __atomic_store_n(&known, 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&chosen, __ATOMIC_RELAXED);
}
