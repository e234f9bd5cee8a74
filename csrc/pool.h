/*
 * pool.h: a thread pool that hands out items of one flat loop. The calling thread works too.
 * One level, no nesting, no tasks, no futures. Only the thread that opened a pool may run it.
 *
 * Items are handed out in chunks from an atomic counter and the call ends when every item is done,
 * not when every thread has checked in: a thread the system took off its core costs at most its
 * own chunk, and an idle one costs nothing.
 */
#ifndef CALDRIX_POOL_H
#define CALDRIX_POOL_H

#include <stdint.h>

#include "caldrix.h"

/* More threads than any machine served has cores; bounds per-thread scratch. */
#define POOL_MAX_THREADS 256

struct pool;

/* Items [begin, end) on thread `thread` (0 = the caller). Must not call pool_run. */
typedef void pool_fn(void *arg, int32_t begin, int32_t end, int32_t thread);

/* Cores this process may run on, 1 .. POOL_MAX_THREADS. Any thread. */
int32_t pool_cores(void);

/*
 * Starts threads - 1 workers; threads = 0 takes pool_cores(). CX_ARG outside 0 .. POOL_MAX_THREADS,
 * CX_NOMEM when a thread cannot be started. The caller frees with pool_close.
 */
int32_t pool_open(struct pool **out, int32_t threads, cx_err *err);
void pool_close(struct pool *pool);

int32_t pool_threads(const struct pool *pool);

/* Runs fn over [0, n_items) in chunks of `grain` items (at least 1); returns when all are done. */
void pool_run(struct pool *pool, pool_fn *fn, void *arg, int32_t n_items, int32_t grain);

#endif
