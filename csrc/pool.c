/*
 * pool.c: see pool.h.
 *
 * The word `work` is (run number << 32 | chunks not yet handed out). A thread owns a chunk once it
 * has lowered that count by compare-and-swap. The job's plain fields are written before `work` is
 * published and not again before all its chunks are done, so whoever owns a chunk may read them;
 * the run number keeps a late thread from taking a chunk of a run it has not seen.
 *
 * Waiting is the same on both sides: spin for SPIN_NS, yield until YIELD_NS, then sleep in a futex.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"

/* Longer than the gap between two operations of a step, shorter than a scheduler tick. */
#define SPIN_NS 40000u
/* Bridges the caller's time between two steps without burning a core while nobody generates. */
#define YIELD_NS 120000u
/* Kernels keep at most a few tens of KiB on the stack. */
#define STACK_BYTES ((size_t)1 << 20)
/* Pauses between two looks at the clock: about a microsecond. */
#define PAUSES 32

struct worker {
    struct pool *pool;
    pthread_t thread;
    int32_t index;
};

struct pool {
    _Alignas(CX_ALIGN) atomic_uint_least64_t work;
    _Alignas(CX_ALIGN) atomic_uint done; /* finished chunks of this run; the caller's futex */
    atomic_uint caller_sleeps;
    _Alignas(CX_ALIGN) atomic_uint wake; /* grows with each run; the workers' futex */
    atomic_uint sleepers;
    atomic_bool stop;
    /* the job */
    _Alignas(CX_ALIGN) pool_fn *fn;
    void *arg;
    int32_t n_items, grain;
    uint32_t n_chunks;
    uint32_t run;
    int32_t threads;
    int32_t started; /* workers that exist */
    struct worker workers[];
};

static void futex_wait(atomic_uint *word, unsigned seen) {
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int count) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void pause_briefly(void) {
    for (int i = 0; i < PAUSES; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Takes chunks until none is left. */
static void work_off(struct pool *p, int32_t thread) {
    uint64_t word = atomic_load_explicit(&p->work, memory_order_acquire);
    while ((uint32_t)word != 0) {
        if (!atomic_compare_exchange_weak_explicit(&p->work, &word, word - 1, memory_order_acq_rel,
                                                   memory_order_acquire)) {
            continue;
        }
        const uint32_t n_chunks = p->n_chunks;
        const int64_t begin = (int64_t)(n_chunks - (uint32_t)word) * p->grain;
        const int64_t end = begin + p->grain < p->n_items ? begin + p->grain : p->n_items;
        p->fn(p->arg, (int32_t)begin, (int32_t)end, thread);
        /* After this add the job may be overwritten: nothing of it is read below. */
        if (atomic_fetch_add(&p->done, 1) + 1 == n_chunks && atomic_load(&p->caller_sleeps) != 0) {
            futex_wake(&p->done, 1);
        }
        word = atomic_load_explicit(&p->work, memory_order_acquire);
    }
}

static bool work_waits(struct pool *p) {
    return (uint32_t)atomic_load(&p->work) != 0 || atomic_load(&p->stop);
}

static void wait_for_work(struct pool *p) {
    const uint64_t start = now_ns();
    for (uint64_t waited = 0; waited < YIELD_NS; waited = now_ns() - start) {
        if (work_waits(p)) return;
        if (waited < SPIN_NS) pause_briefly();
        else (void)sched_yield();
    }
    /* All of these are seq_cst: either the caller sees this sleeper or the sleeper sees the run. */
    atomic_fetch_add(&p->sleepers, 1);
    for (;;) {
        const unsigned seen = atomic_load(&p->wake);
        if (work_waits(p)) break;
        futex_wait(&p->wake, seen);
    }
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    while (!atomic_load(&p->stop)) {
        work_off(p, w->index);
        wait_for_work(p);
    }
    return NULL;
}

static void wait_for_done(struct pool *p) {
    const uint64_t start = now_ns();
    for (uint64_t waited = 0; waited < YIELD_NS; waited = now_ns() - start) {
        if (atomic_load(&p->done) == p->n_chunks) return;
        if (waited < SPIN_NS) pause_briefly();
        else (void)sched_yield();
    }
    atomic_store(&p->caller_sleeps, 1);
    for (unsigned done; (done = atomic_load(&p->done)) != p->n_chunks;) futex_wait(&p->done, done);
    atomic_store(&p->caller_sleeps, 0);
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, int32_t n_items, int32_t grain) {
    if (n_items <= 0) return;
    if (grain < 1) grain = 1;
    if (p->threads == 1 || n_items <= grain) {
        fn(arg, 0, n_items, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_items = n_items;
    p->grain = grain;
    p->n_chunks = (uint32_t)(((int64_t)n_items + grain - 1) / grain);
    p->run++;
    atomic_store(&p->done, 0);
    atomic_store(&p->work, (uint64_t)p->run << 32 | p->n_chunks);
    atomic_fetch_add(&p->wake, 1);
    if (atomic_load(&p->sleepers) != 0) futex_wake(&p->wake, (int)p->n_chunks - 1);
    work_off(p, 0);
    wait_for_done(p);
}

int32_t pool_threads(const struct pool *p) { return p->threads; }

int32_t pool_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        /* More processors than cpu_set_t holds: the count of those online is close enough. */
        const long online = sysconf(_SC_NPROCESSORS_ONLN);
        return online < 1 ? 1 : online > POOL_MAX_THREADS ? POOL_MAX_THREADS : (int32_t)online;
    }
    const int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > POOL_MAX_THREADS ? POOL_MAX_THREADS : n;
}

int32_t pool_open(struct pool **out, int32_t threads, cx_err *err) {
    *out = NULL;
    if (threads < 0 || threads > POOL_MAX_THREADS) {
        return err_set(err, CX_ARG, "threads is %d, must be 0 to %d", threads, POOL_MAX_THREADS);
    }
    if (threads == 0) threads = pool_cores();
    const size_t bytes =
        align_up(sizeof(struct pool) + (size_t)(threads - 1) * sizeof(struct worker), CX_ALIGN);
    struct pool *p = aligned_alloc(CX_ALIGN, bytes);
    if (p == NULL) return err_memory(err, bytes, "the pool");
    *p = (struct pool){.threads = threads};

    /* Signals belong to the host's threads: a runtime that suspends its own must not hit these. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attr;
    int failed = pthread_attr_init(&attr);
    if (failed == 0) {
        (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
        for (int32_t i = 0; i < threads - 1 && failed == 0; i++) {
            p->workers[i] = (struct worker){.pool = p, .index = i + 1};
            failed = pthread_create(&p->workers[i].thread, &attr, worker_main, &p->workers[i]);
            if (failed == 0) p->started++;
        }
        (void)pthread_attr_destroy(&attr);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        const int32_t started = p->started;
        pool_close(p);
        return err_set(err, CX_NOMEM, "cannot start thread %d of %d", started + 2, threads);
    }
    *out = p;
    return CX_OK;
}

void pool_close(struct pool *p) {
    if (p == NULL) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, INT_MAX);
    for (int32_t i = 0; i < p->started; i++) (void)pthread_join(p->workers[i].thread, NULL);
    free(p);
}
