/* base.c: error text, checked sizes, page memory, a clock. See base.h. */
#define _GNU_SOURCE
#include "base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* The huge page of x86-64 and arm64 with 4 KiB pages. */
#define HUGE_PAGE ((size_t)2 << 20)

int32_t err_set(cx_err *err, int32_t code, const char *format, ...) {
    if (err == NULL) return code;
    err->code = code;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(err->msg, sizeof err->msg, format, args);
    va_end(args);
    if (n < 0) err->msg[0] = '\0';
    return code;
}

int32_t err_memory(cx_err *err, size_t bytes, const char *what) {
    return err_set(err, CX_NOMEM, "cannot allocate %zu bytes for %s", bytes, what);
}

bool size_add(size_t *total, size_t count, size_t bytes) {
    size_t product, sum;
    if (__builtin_mul_overflow(count, bytes, &product)) return false;
    if (product > SIZE_MAX - CX_ALIGN) return false;
    if (__builtin_add_overflow(*total, align_up(product, CX_ALIGN), &sum)) return false;
    *total = sum;
    return true;
}

int32_t pages_map(struct pages *p, size_t bytes, bool huge, const char *what, cx_err *err) {
    *p = (struct pages){.bytes = bytes};
    if (bytes == 0) return CX_OK;
    if (bytes > SIZE_MAX / 2) goto fail;
#if defined(__SANITIZE_ADDRESS__)
    /* The heap has red zones; a map has none. */
    if (posix_memalign(&p->map, HUGE_PAGE, bytes) != 0) goto fail;
    memset(p->map, 0, bytes);
    p->at = p->map;
    (void)huge;
#else
    huge = huge && bytes >= HUGE_PAGE;
    p->map_bytes = huge ? bytes + HUGE_PAGE : bytes;
    /* NORESERVE: KV rows and registers are reserved for the worst case, mostly untouched. */
    p->map = mmap(NULL, p->map_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p->map == MAP_FAILED) goto fail;
    p->at = p->map;
    if (huge) {
        p->at = (uint8_t *)align_up((uintptr_t)p->map, HUGE_PAGE);
        /* Advice only: without huge pages everything works, a little slower. */
        (void)madvise(p->at, bytes, MADV_HUGEPAGE);
    }
#endif
    return CX_OK;
fail:
    *p = (struct pages){0};
    return err_memory(err, bytes, what);
}

void pages_unmap(struct pages *p) {
    if (p->map != NULL) {
#if defined(__SANITIZE_ADDRESS__)
        free(p->map);
#else
        (void)munmap(p->map, p->map_bytes);
#endif
    }
    *p = (struct pages){0};
}

uint64_t now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
