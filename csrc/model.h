/*
 * model.h: the weights of a verified plan in memory: matrices as panels, vectors as float32.
 * Read-only once open, so any number of engines may share one. It runs nothing.
 */
#ifndef CALDRIX_MODEL_H
#define CALDRIX_MODEL_H

#include "base.h"
#include "cpu/kernels.h"
#include "plan.h"

/* One part of a matrix: rows [first, first + rows) of the whole, of one element type. */
struct segment {
    const uint8_t *panels; /* n_panels panels of panel_bytes, the last one padded with zero rows */
    size_t panel_bytes;
    uint32_t dtype;
    int32_t rows, cols;
    int32_t first; /* row of the whole matrix = output column relative to the op's i0 */
    int32_t n_panels;
};

struct weight {
    int32_t rows, cols;
    const struct segment *segments; /* matrix: n_segments, in order; vector: NULL */
    int32_t n_segments;
    const float *vector; /* [cols]; NULL for a matrix */
};

struct cx_model {
    struct plan plan;
    const struct cx_kernels *kernels;
    bool fast; /* CX_ACTIVATIONS_FAST */
    struct weight *weights;
    struct segment *segments;
    struct pages panels, vectors;
};

/*
 * Verifies the plan, reads its files, repacks. plan and opts are copied. The caller frees with
 * model_close. CX_ARG, CX_PLAN, CX_FILE, CX_NOMEM or CX_UNSUPPORTED.
 */
int32_t model_open(struct cx_model **out, const void *plan, uint64_t len, const cx_open *opts,
                   cx_err *err);
void model_close(struct cx_model *m);

#endif
