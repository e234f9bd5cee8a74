/*
 * plan.h: a verified plan. plan_open takes hostile bytes and proves every offset, index and shape,
 * so that model.c, engine.c and exec.c check nothing of it again. It opens no file and runs
 * nothing.
 */
#ifndef CALDRIX_PLAN_H
#define CALDRIX_PLAN_H

#include "base.h"

/* Weights may share parts; this bounds the sum of their part lists. */
#define PLAN_MAX_SEGMENTS CX_MAX_PARTS
/* Longest path that is opened, with its NUL; PATH_MAX of Linux. */
#define PLAN_MAX_PATH 4096u
/* Heads are whole runs of this many columns, as in every model served. */
#define PLAN_HEAD_DIM_STEP 8
/* Bytes of a name quoted in a message, with its NUL. */
#define PLAN_NAME_BYTES 96

struct plan {
    uint8_t *blob; /* the copy everything below points into */
    const cx_plan_head *head;
    const cx_plan_file *files;
    const cx_plan_part *parts;
    const cx_plan_weight *weights;
    const cx_plan_register *registers;
    const cx_plan_layer *layers;
    const cx_plan_op *ops;
    const float *consts;
    const char *strings;
};

/* Copies and verifies len bytes. CX_PLAN, CX_UNSUPPORTED (element type) or CX_NOMEM. */
int32_t plan_open(struct plan *p, const void *bytes, uint64_t len, cx_err *err);
void plan_close(struct plan *p);

/* A name of the strings section for a message: cut to fit, control characters as '?'. */
const char *plan_name(const struct plan *p, uint32_t at, uint32_t len, char out[PLAN_NAME_BYTES]);

/* "matmul" for CX_OP_MATMUL; "?" for an unknown kind. */
const char *plan_op_name(uint32_t kind);

#endif
