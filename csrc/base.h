/*
 * base.h: what every part of the engine needs: error text, checked sizes, page memory, a clock.
 * Not a utility drawer: nothing here knows plans, rows or kernels.
 */
#ifndef CALDRIX_BASE_H
#define CALDRIX_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "caldrix.h"

/* Bytes of a cache line, and the alignment of every buffer a kernel reads. */
#define CX_ALIGN 64u

/* Fills err (which may be NULL) and returns code, so that a check is one line. Any thread. */
int32_t err_set(cx_err *err, int32_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fills err and returns CX_NOMEM: "cannot allocate 64 bytes for the pool". */
int32_t err_memory(cx_err *err, size_t bytes, const char *what);

/* Runs a fallible call and leaves the function with its code. Only where nothing is to be freed. */
#define CX_TRY(call)                                                                               \
    do {                                                                                           \
        const int32_t code_ = (call);                                                              \
        if (code_ != CX_OK) return code_;                                                          \
    } while (0)

/* n rounded up to a multiple of `to`, a power of two. n is far below SIZE_MAX by its own check. */
static inline size_t align_up(size_t n, size_t to) { return (n + to - 1) & ~(to - 1); }

/* *total += count * bytes rounded up to CX_ALIGN; false when that leaves size_t. */
bool size_add(size_t *total, size_t count, size_t bytes);

/* A run of zeroed anonymous pages, touched only when used. */
struct pages {
    uint8_t *at;
    size_t bytes;
    void *map; /* what munmap takes; differs from `at` when aligned to a huge page */
    size_t map_bytes;
};

/*
 * Maps bytes (0 is allowed: at = NULL). huge: align to 2 MiB and ask for huge pages, for memory
 * that will be used whole. CX_NOMEM names `what` and the bytes. Freed by pages_unmap.
 */
int32_t pages_map(struct pages *p, size_t bytes, bool huge, const char *what, cx_err *err);
void pages_unmap(struct pages *p);

/* Monotonic nanoseconds. */
uint64_t now_ns(void);

#endif
