/*
 * model.c: read the weight files, repack matrices into panels, convert vectors. See model.h.
 *
 * No panel layout equals a file's, so nothing is kept of the files. They are read slice by slice
 * into a buffer, not mapped: a mapped file that somebody cuts short while it loads would be a
 * SIGBUS, a short read is an error. Loading needs the memory of the panels and one slice.
 */
#define _GNU_SOURCE
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool.h"

/* Source bytes read at once and between two progress reports: a few milliseconds of one core. */
#define SLICE_BYTES ((size_t)8 << 20)
/* Bytes of one read call: large enough that calls cost nothing, small enough to share out. */
#define READ_BYTES ((size_t)1 << 20)
/* Chunks a thread, so that one taken off its core does not hold up a slice. */
#define CHUNKS_PER_THREAD 4
/* Full scale of cx_open.progress. */
#define PROGRESS_DONE 1000

/* What opening needs and drops when it ends. */
struct loader {
    struct cx_model *model;
    struct pool *pool;
    int *files;          /* descriptors, -1 = not open */
    struct pages buffer; /* source bytes of a slice */
    int32_t *progress;
    uint64_t done_bytes, total_bytes;
    cx_err *err;
};

/* ---- files --------------------------------------------------------------------------------- */

/* A file's path for a message; of a long one its end, which holds the name. */
static void file_name(const struct plan *p, const cx_plan_file *f, char out[PLAN_NAME_BYTES]) {
    uint32_t skip = f->name_len < PLAN_NAME_BYTES ? 0 : f->name_len - (PLAN_NAME_BYTES - 1);
    /* Do not start in the middle of a UTF-8 sequence. */
    while (skip > 0 && skip < f->name_len &&
           ((uint8_t)p->strings[f->name_at + skip] & 0xc0) == 0x80) {
        skip++;
    }
    plan_name(p, f->name_at + skip, f->name_len - skip, out);
}

static int32_t check_size(const struct loader *l, uint32_t index) {
    const cx_plan_file *f = &l->model->plan.files[index];
    char name[PLAN_NAME_BYTES];
    file_name(&l->model->plan, f, name);
    struct stat st;
    if (fstat(l->files[index], &st) != 0) {
        return err_set(l->err, CX_FILE, "%s: cannot stat: %s", name, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) return err_set(l->err, CX_FILE, "%s: is not a regular file", name);
    if ((uint64_t)st.st_size < f->bytes) {
        return err_set(l->err, CX_FILE, "%s: has %llu bytes, %llu when its header was read", name,
                       (unsigned long long)st.st_size, (unsigned long long)f->bytes);
    }
    return CX_OK;
}

static int32_t open_file(struct loader *l, uint32_t index) {
    const struct plan *p = &l->model->plan;
    const cx_plan_file *f = &p->files[index];
    char path[PLAN_MAX_PATH], name[PLAN_NAME_BYTES];
    file_name(p, f, name);
    memcpy(path, p->strings + f->name_at, f->name_len);
    path[f->name_len] = '\0';
    /* NONBLOCK: a FIFO in a file's place must be an error, not a hang. */
    l->files[index] = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (l->files[index] < 0) {
        return err_set(l->err, CX_FILE, "%s: cannot open: %s", name, strerror(errno));
    }
    return check_size(l, index);
}

/* Gives back what only opening needs. */
static void drop_sources(struct loader *l) {
    pages_unmap(&l->buffer);
    if (l->files == NULL) return;
    for (uint32_t i = 0; i < l->model->plan.head->n_files; i++) {
        if (l->files[i] >= 0) (void)close(l->files[i]);
    }
    free(l->files);
    l->files = NULL;
}

struct read_job {
    int fd;
    uint8_t *dst;
    size_t bytes;
    uint64_t offset;
    int error; /* errno of a failed read, or -1 for a file that ends early; any thread, atomic */
};

static void read_chunks(void *arg, int32_t begin, int32_t end, int32_t thread) {
    struct read_job *job = arg;
    (void)thread;
    size_t at = (size_t)begin * READ_BYTES, stop = (size_t)end * READ_BYTES;
    if (stop > job->bytes) stop = job->bytes;
    while (at < stop) {
        const ssize_t n = pread(job->fd, job->dst + at, stop - at, (off_t)(job->offset + at));
        if (n > 0) {
            at += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            __atomic_store_n(&job->error, n == 0 ? -1 : errno, __ATOMIC_RELAXED);
            return;
        }
    }
}

/* Bytes [at, at + bytes) of a part: in the plan, or read into the buffer of the loader. */
static int32_t read_source(struct loader *l, const cx_plan_part *t, uint64_t at, size_t bytes,
                           const uint8_t **out) {
    if (t->file == CX_FILE_CONSTS) {
        *out = (const uint8_t *)(l->model->plan.consts + t->offset) + at;
        return CX_OK;
    }
    if (l->buffer.bytes < bytes) {
        pages_unmap(&l->buffer);
        CX_TRY(pages_map(&l->buffer, bytes, false, "a slice of a weight file", l->err));
    }
    struct read_job job = {l->files[t->file], l->buffer.at, bytes, t->offset + at, 0};
    pool_run(l->pool, read_chunks, &job, (int32_t)((bytes + READ_BYTES - 1) / READ_BYTES), 1);
    *out = l->buffer.at;
    if (job.error == 0) return CX_OK;
    const struct plan *p = &l->model->plan;
    char file[PLAN_NAME_BYTES], name[PLAN_NAME_BYTES];
    file_name(p, &p->files[t->file], file);
    plan_name(p, t->name_at, t->name_len, name);
    return err_set(l->err, CX_FILE, "%s: tensor %s: %s", file, name,
                   job.error < 0 ? "the file has become shorter while it was read"
                                 : strerror(job.error));
}

/* Counts bytes as ready and tells the watching thread. */
static void advance(struct loader *l, uint64_t bytes) {
    l->done_bytes += bytes;
    if (l->progress == NULL || l->total_bytes == 0) return;
    const double share = (double)l->done_bytes / (double)l->total_bytes;
    __atomic_store_n(l->progress, (int32_t)(share * (PROGRESS_DONE - 1)), __ATOMIC_RELAXED);
}

/* ---- packing ------------------------------------------------------------------------------- */

/* File row that becomes row `row` of the part: see the CX_TRANSFORM_ constants. */
static int32_t source_row(const cx_plan_part *t, int32_t row) {
    if (t->transform != CX_TRANSFORM_UNPERMUTE_ROPE) return row;
    const int32_t d = t->rows / t->transform_arg, head = row / d, in_head = row % d;
    const int32_t s = in_head / (d / 2), i = in_head % (d / 2);
    return head * d + 2 * i + s;
}

struct pack_job {
    const cx_plan_part *part;
    const uint8_t *src; /* from the first row of panel0 on */
    size_t row_bytes;
    const struct segment *segment;
    uint8_t *panels;
    int32_t panel0;
};

static void pack_panels(void *arg, int32_t begin, int32_t end, int32_t thread) {
    const struct pack_job *job = arg;
    (void)thread;
    const int32_t row0 = job->panel0 * CX_PANEL_ROWS;
    for (int32_t panel = job->panel0 + begin; panel < job->panel0 + end; panel++) {
        const uint8_t *rows[CX_PANEL_ROWS];
        for (int32_t r = 0; r < CX_PANEL_ROWS; r++) {
            const int32_t row = panel * CX_PANEL_ROWS + r;
            rows[r] = row < job->part->rows
                          ? job->src + (size_t)(source_row(job->part, row) - row0) * job->row_bytes
                          : NULL;
        }
        cx_panel_pack(job->part->dtype, job->part->cols, rows,
                      job->panels + (size_t)panel * job->segment->panel_bytes);
    }
}

static int32_t pack_part(struct loader *l, const cx_plan_part *t, const struct segment *s) {
    struct pack_job job = {.part = t,
                           .row_bytes = cx_dtype_row_bytes(t->dtype, t->cols),
                           .segment = s,
                           .panels = l->model->panels.at + (s->panels - l->model->panels.at)};
    size_t slice = SLICE_BYTES / (job.row_bytes * CX_PANEL_ROWS) + 1;
    if (t->transform == CX_TRANSFORM_UNPERMUTE_ROPE) {
        /* Rows change places inside a head: as many panels as a head has rows are whole heads. */
        const size_t head = (size_t)(t->rows / t->transform_arg);
        slice = (slice + head - 1) / head * head;
    }
    while (job.panel0 < s->n_panels) {
        const int32_t left = s->n_panels - job.panel0;
        const int32_t n = (size_t)left < slice ? left : (int32_t)slice;
        const int64_t row0 = (int64_t)job.panel0 * CX_PANEL_ROWS;
        int64_t rows = (int64_t)n * CX_PANEL_ROWS;
        if (rows > t->rows - row0) rows = t->rows - row0;
        const size_t bytes = (size_t)rows * job.row_bytes;
        CX_TRY(read_source(l, t, (uint64_t)row0 * job.row_bytes, bytes, &job.src));
        const int32_t chunks = pool_threads(l->pool) * CHUNKS_PER_THREAD;
        pool_run(l->pool, pack_panels, &job, n, n / chunks + 1);
        advance(l, bytes);
        job.panel0 += n;
    }
    return CX_OK;
}

static int32_t load_vector(struct loader *l, const cx_plan_weight *w, float *dst) {
    for (uint32_t i = 0; i < w->n_parts; i++) {
        const cx_plan_part *t = &l->model->plan.parts[w->first_part + i];
        const size_t row_bytes = cx_dtype_row_bytes(t->dtype, t->cols);
        const uint8_t *src;
        CX_TRY(read_source(l, t, 0, (size_t)t->bytes, &src));
        for (int32_t row = 0; row < t->rows; row++, dst += t->cols) {
            cx_row_to_f32(t->dtype, t->cols, src + (size_t)source_row(t, row) * row_bytes, dst);
        }
        advance(l, t->bytes);
    }
    return CX_OK;
}

/* ---- opening ------------------------------------------------------------------------------- */

/* Reserves every weight's place. The panels' addresses are set, their content is not. */
static int32_t lay_out(struct loader *l) {
    struct cx_model *m = l->model;
    const struct plan *p = &m->plan;
    const uint32_t n_weights = p->head->n_weights;
    size_t n_segments = 0, panel_bytes = 0, vector_bytes = 0;
    for (uint32_t i = 0; i < n_weights; i++) {
        const cx_plan_weight *w = &p->weights[i];
        if (w->use == CX_USE_MATRIX) n_segments += w->n_parts;
    }
    m->weights = calloc(n_weights + 1u, sizeof *m->weights);
    m->segments = calloc(n_segments + 1u, sizeof *m->segments);
    if (m->weights == NULL || m->segments == NULL) {
        return err_set(l->err, CX_NOMEM, "cannot allocate the tables of %u weights", n_weights);
    }
    /* First pass: shapes and sizes. */
    struct segment *next = m->segments;
    for (uint32_t i = 0; i < n_weights; i++) {
        const cx_plan_weight *w = &p->weights[i];
        m->weights[i] = (struct weight){.rows = w->rows, .cols = w->cols};
        if (w->use == CX_USE_VECTOR) {
            if (!size_add(&vector_bytes, (size_t)w->cols, sizeof(float))) goto too_large;
            continue;
        }
        m->weights[i].segments = next;
        m->weights[i].n_segments = (int32_t)w->n_parts;
        int32_t first = 0;
        for (uint32_t k = 0; k < w->n_parts; k++, next++) {
            const cx_plan_part *t = &p->parts[w->first_part + k];
            *next = (struct segment){.dtype = t->dtype,
                                     .rows = t->rows,
                                     .cols = t->cols,
                                     .first = first,
                                     .panel_bytes = cx_panel_bytes(t->dtype, t->cols),
                                     .n_panels = (t->rows + CX_PANEL_ROWS - 1) / CX_PANEL_ROWS};
            if (!size_add(&panel_bytes, (size_t)next->n_panels, next->panel_bytes)) goto too_large;
            first += t->rows;
        }
    }
    CX_TRY(pages_map(&m->panels, panel_bytes, true, "the weights' panels", l->err));
    CX_TRY(pages_map(&m->vectors, vector_bytes, false, "the weights' vectors", l->err));

    /* Second pass: addresses, in the same order. */
    size_t panel_at = 0, vector_at = 0;
    for (uint32_t i = 0; i < n_weights; i++) {
        const cx_plan_weight *w = &p->weights[i];
        if (w->use == CX_USE_VECTOR) {
            m->weights[i].vector = (const float *)(void *)(m->vectors.at + vector_at);
            (void)size_add(&vector_at, (size_t)w->cols, sizeof(float));
        }
    }
    for (struct segment *s = m->segments; s < next; s++) {
        s->panels = m->panels.at + panel_at;
        (void)size_add(&panel_at, (size_t)s->n_panels, s->panel_bytes);
    }
    return CX_OK;
too_large:
    return err_set(l->err, CX_NOMEM, "the weights' sizes leave the address space");
}

static int32_t load_all(struct loader *l) {
    const struct cx_model *m = l->model;
    const struct plan *p = &m->plan;
    for (uint32_t i = 0; i < p->head->n_weights; i++) {
        const cx_plan_weight *w = &p->weights[i];
        const cx_plan_part *t = &p->parts[w->first_part];
        for (uint32_t k = 0; k < w->n_parts; k++) l->total_bytes += t[k].bytes;
    }
    for (uint32_t i = 0; i < p->head->n_weights; i++) {
        const cx_plan_weight *w = &p->weights[i];
        if (w->use == CX_USE_VECTOR) {
            const size_t at = (size_t)((const uint8_t *)m->weights[i].vector - m->vectors.at);
            CX_TRY(load_vector(l, w, (float *)(void *)(m->vectors.at + at)));
            continue;
        }
        for (uint32_t k = 0; k < w->n_parts; k++) {
            CX_TRY(pack_part(l, &p->parts[w->first_part + k], &m->weights[i].segments[k]));
        }
    }
    return CX_OK;
}

static int32_t check_options(const cx_open *opts, cx_err *err) {
    switch (opts->backend) {
    case CX_BACKEND_CPU:
        break;
    case CX_BACKEND_HIP:
        return err_set(err, CX_UNSUPPORTED, "backend hip is not built into this library");
    case CX_BACKEND_HOST:
        return err_set(err, CX_UNSUPPORTED, "backend host is not built into this library");
    default:
        return err_set(err, CX_ARG, "backend is %u, known are 0 (cpu), 1 (hip) and 2 (host)",
                       opts->backend);
    }
    if (opts->activations != CX_ACTIVATIONS_FAST && opts->activations != CX_ACTIVATIONS_F32) {
        return err_set(err, CX_ARG, "activations is %u, known are 0 (fast) and 1 (f32)",
                       opts->activations);
    }
    return CX_OK;
}

int32_t model_open(struct cx_model **out, const void *plan, uint64_t len, const cx_open *opts,
                   cx_err *err) {
    *out = NULL;
    CX_TRY(check_options(opts, err));
    struct loader l = {.err = err, .progress = (int32_t *)(uintptr_t)opts->progress};
    int32_t code = CX_NOMEM;
    struct cx_model *m = calloc(1, sizeof *m);
    if (m == NULL) return err_memory(err, sizeof *m, "the model");
    l.model = m;
    if ((code = plan_open(&m->plan, plan, len, err)) != CX_OK) goto fail;

    m->fast = opts->activations == CX_ACTIVATIONS_FAST;
    m->kernels = cx_kernels_best();
    if (m->kernels == NULL) {
        const char *isa = getenv("CALDRIX_ISA");
        code = err_set(err, CX_UNSUPPORTED,
                       "CALDRIX_ISA is '%.32s', which names no kernels that this machine can run",
                       isa != NULL ? isa : "");
        goto fail;
    }
    if ((code = pool_open(&l.pool, opts->threads, err)) != CX_OK) goto fail;
    const uint32_t n_files = m->plan.head->n_files;
    l.files = calloc(n_files + 1u, sizeof *l.files);
    if (l.files == NULL) {
        code = err_set(err, CX_NOMEM, "cannot allocate the table of %u files", n_files);
        goto fail;
    }
    for (uint32_t i = 0; i < n_files; i++) l.files[i] = -1;
    for (uint32_t i = 0; i < n_files; i++) {
        if ((code = open_file(&l, i)) != CX_OK) goto fail;
    }
    if ((code = lay_out(&l)) != CX_OK) goto fail;
    if ((code = load_all(&l)) != CX_OK) goto fail;

    drop_sources(&l);
    pool_close(l.pool);
    if (l.progress != NULL) __atomic_store_n(l.progress, PROGRESS_DONE, __ATOMIC_RELEASE);
    *out = m;
    return CX_OK;
fail:
    drop_sources(&l);
    pool_close(l.pool);
    model_close(m);
    return code;
}

void model_close(struct cx_model *m) {
    if (m == NULL) return;
    pages_unmap(&m->vectors);
    pages_unmap(&m->panels);
    free(m->segments);
    free(m->weights);
    plan_close(&m->plan);
    free(m);
}
