/*
 * plan.c: decode and verify a plan blob. See plan.h.
 *
 * Order: header, section bounds, then each section in the blob's order, so a record is looked at
 * only after everything it can name has been proved. A refusal says section, index, name and
 * reason.
 */
#include "plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/kernels.h"

_Static_assert(sizeof(cx_plan_head) == 72 && sizeof(cx_plan_file) == 16, "plan layout");
_Static_assert(sizeof(cx_plan_part) == 56 && sizeof(cx_plan_weight) == 24, "plan layout");
_Static_assert(sizeof(cx_plan_register) == 16 && sizeof(cx_plan_layer) == 16, "plan layout");
_Static_assert(sizeof(cx_plan_op) == 64, "plan layout");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the plan is little-endian");

/* What an op takes; its shapes are checked in its case of check_op. */
enum operand { NONE, NEED, MAY };
enum { ANY_ROWS = -1 };

struct op_form {
    const char *name;
    enum operand a, b;
    int use; /* CX_USE_* of weight, or -1 */
    enum operand weight2;
    bool in_place;   /* dst is read */
    int rows;        /* rows dst must have, or ANY_ROWS: those of its operands */
    uint32_t flags;  /* flags known for it */
};

static const struct op_form FORMS[] = {
    [CX_OP_EMBED] = {"embed", NONE, NONE, CX_USE_MATRIX, NONE, false, CX_ROWS_STEP, 0},
    [CX_OP_RMS_NORM] = {"rms_norm", NEED, NONE, CX_USE_VECTOR, NONE, false, ANY_ROWS, CX_FLAG_ADD},
    [CX_OP_MATMUL] = {"matmul", NEED, NONE, CX_USE_MATRIX, MAY, false, ANY_ROWS, CX_FLAG_ADD},
    [CX_OP_ROPE_TABLE] = {"rope_table", NONE, NONE, CX_USE_VECTOR, NONE, false, CX_ROWS_STEP, 0},
    [CX_OP_ROPE] = {"rope", NONE, NEED, -1, NONE, true, ANY_ROWS, 0},
    [CX_OP_ATTEND] = {"attend", NEED, NONE, -1, NONE, false, CX_ROWS_STEP, 0},
    [CX_OP_GATE] = {"gate", NEED, NONE, -1, NONE, false, ANY_ROWS, 0},
    [CX_OP_ADD] = {"add", NEED, NEED, -1, NONE, false, ANY_ROWS, 0},
    [CX_OP_SELECT] = {"select", NEED, NONE, -1, NONE, false, CX_ROWS_OUT, 0},
    [CX_OP_SOFTCAP] = {"softcap", NEED, NONE, -1, NONE, false, ANY_ROWS, 0},
};
#define N_FORMS (sizeof FORMS / sizeof FORMS[0])

/* What checking the ops has to remember. */
struct verifier {
    const struct plan *plan;
    cx_err *err;
    uint32_t index;
    const cx_plan_op *op;
    bool written[CX_MAX_REGISTERS];
    bool attended[CX_MAX_LAYERS];
};

const char *plan_op_name(uint32_t kind) {
    return kind < N_FORMS && FORMS[kind].name != NULL ? FORMS[kind].name : "?";
}

const char *plan_name(const struct plan *p, uint32_t at, uint32_t len, char out[PLAN_NAME_BYTES]) {
    uint32_t n = len < PLAN_NAME_BYTES - 1 ? len : PLAN_NAME_BYTES - 1;
    memcpy(out, p->strings + at, n);
    /* Do not end in the middle of a UTF-8 sequence. */
    if (n < len) {
        while (n > 0 && ((uint8_t)p->strings[at + n] & 0xc0) == 0x80) n--;
    }
    for (uint32_t i = 0; i < n; i++) {
        if ((uint8_t)out[i] < 0x20 || out[i] == 0x7f) out[i] = '?';
    }
    out[n] = '\0';
    return out;
}

/* "part 3 (blk.0.attn_q.weight): reason"; without the parentheses when name is empty. */
__attribute__((format(printf, 6, 7))) static int32_t
refuse(cx_err *err, int32_t code, const char *section, uint32_t index, const char *name,
       const char *format, ...) {
    char reason[320];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    if (name[0] == '\0') return err_set(err, code, "%s %u: %s", section, index, reason);
    return err_set(err, code, "%s %u (%s): %s", section, index, name, reason);
}

/* ---- header and sections ------------------------------------------------------------------- */

static int32_t check_head(const cx_plan_head *h, uint64_t len, cx_err *err) {
    if (h->magic != CX_PLAN_MAGIC) {
        return err_set(err, CX_PLAN, "plan: magic is %08x, must be %08x", h->magic,
                       CX_PLAN_MAGIC);
    }
    if (h->version != CX_PLAN_VERSION) {
        return err_set(err, CX_PLAN, "plan: version is %u, this library reads %u", h->version,
                       CX_PLAN_VERSION);
    }
    if (h->bytes != len) {
        return err_set(err, CX_PLAN, "plan: header says %llu bytes, %llu came",
                       (unsigned long long)h->bytes, (unsigned long long)len);
    }
    const struct {
        const char *name;
        uint32_t n, least, most;
    } counts[] = {
        {"files", h->n_files, 0, CX_MAX_FILES},
        {"parts", h->n_parts, 0, CX_MAX_PARTS},
        {"weights", h->n_weights, 0, CX_MAX_WEIGHTS},
        {"registers", h->n_registers, 1, CX_MAX_REGISTERS},
        {"layers", h->n_layers, 0, CX_MAX_LAYERS},
        {"ops", h->n_ops, 1, CX_MAX_OPS},
        {"consts", h->n_consts, 0, CX_MAX_CONSTS},
        {"vocab", (uint32_t)h->vocab, 1, CX_MAX_VOCAB},
        {"context", (uint32_t)h->context, 1, CX_MAX_CONTEXT},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i].n < counts[i].least || counts[i].n > counts[i].most) {
            return err_set(err, CX_PLAN, "plan: %s is %u, must be %u to %u", counts[i].name,
                           counts[i].n, counts[i].least, counts[i].most);
        }
    }
    return CX_OK;
}

/* The sections' places. All counts are under their limits, so nothing here can overflow. */
static int32_t place_sections(struct plan *p, cx_err *err) {
    const cx_plan_head *h = p->head;
    const size_t bytes[] = {
        h->n_files * sizeof(cx_plan_file),         h->n_parts * sizeof(cx_plan_part),
        h->n_weights * sizeof(cx_plan_weight),     h->n_registers * sizeof(cx_plan_register),
        h->n_layers * sizeof(cx_plan_layer),       h->n_ops * sizeof(cx_plan_op),
        h->n_consts * sizeof(float),               h->n_string_bytes,
    };
    enum { SECTIONS = sizeof bytes / sizeof bytes[0] };
    size_t at[SECTIONS], end = sizeof(cx_plan_head);
    for (size_t i = 0; i < SECTIONS; i++) {
        at[i] = align_up(end, 8);
        end = at[i] + bytes[i];
    }
    if (h->bytes < end || h->bytes > align_up(end, 8)) {
        return err_set(err, CX_PLAN, "plan: its sections take %zu bytes, it has %llu", end,
                       (unsigned long long)h->bytes);
    }
    p->files = (const cx_plan_file *)(const void *)(p->blob + at[0]);
    p->parts = (const cx_plan_part *)(const void *)(p->blob + at[1]);
    p->weights = (const cx_plan_weight *)(const void *)(p->blob + at[2]);
    p->registers = (const cx_plan_register *)(const void *)(p->blob + at[3]);
    p->layers = (const cx_plan_layer *)(const void *)(p->blob + at[4]);
    p->ops = (const cx_plan_op *)(const void *)(p->blob + at[5]);
    p->consts = (const float *)(const void *)(p->blob + at[6]);
    p->strings = (const char *)(p->blob + at[7]);
    return CX_OK;
}

static bool string_fits(const struct plan *p, uint32_t at, uint32_t len) {
    return (uint64_t)at + len <= p->head->n_string_bytes;
}

static int32_t check_file(const struct plan *p, uint32_t index, cx_err *err) {
    const cx_plan_file *f = &p->files[index];
    if (!string_fits(p, f->name_at, f->name_len)) {
        return refuse(err, CX_PLAN, "file", index, "", "its name is outside the strings");
    }
    if (f->name_len == 0 || f->name_len >= PLAN_MAX_PATH) {
        return refuse(err, CX_PLAN, "file", index, "", "its path has %u bytes, must be 1 to %u",
                      f->name_len, PLAN_MAX_PATH - 1);
    }
    if (memchr(p->strings + f->name_at, '\0', f->name_len) != NULL) {
        return refuse(err, CX_PLAN, "file", index, "", "its path holds a NUL");
    }
    return CX_OK;
}

static int32_t check_part(const struct plan *p, uint32_t index, cx_err *err) {
    const cx_plan_part *t = &p->parts[index];
    char name[PLAN_NAME_BYTES];
    if (!string_fits(p, t->name_at, t->name_len)) {
        return refuse(err, CX_PLAN, "part", index, "", "its name is outside the strings");
    }
    plan_name(p, t->name_at, t->name_len, name);
    if (cx_dtype_block(t->dtype) == 0) {
        return refuse(err, CX_UNSUPPORTED, "part", index, name,
                      "element type %u is not supported", t->dtype);
    }
    if (t->rows < 1 || t->rows > CX_MAX_VOCAB) {
        return refuse(err, CX_PLAN, "part", index, name, "rows is %d, must be 1 to %d", t->rows,
                      CX_MAX_VOCAB);
    }
    if (t->cols < 1 || t->cols > CX_MAX_WIDTH) {
        return refuse(err, CX_PLAN, "part", index, name, "cols is %d, must be 1 to %d", t->cols,
                      CX_MAX_WIDTH);
    }
    const size_t row_bytes = cx_dtype_row_bytes(t->dtype, t->cols);
    if (row_bytes == 0) {
        return refuse(err, CX_PLAN, "part", index, name,
                      "cols is %d, element type %u comes in blocks of %d", t->cols, t->dtype,
                      cx_dtype_block(t->dtype));
    }
    /* At most 2^22 rows of 2^22 bytes. */
    const uint64_t bytes = (uint64_t)t->rows * row_bytes;
    if (t->bytes != bytes) {
        return refuse(err, CX_PLAN, "part", index, name,
                      "bytes is %llu, %d rows of %zu bytes are %llu",
                      (unsigned long long)t->bytes, t->rows, row_bytes,
                      (unsigned long long)bytes);
    }
    if (t->file == CX_FILE_CONSTS) {
        if (t->dtype != CX_F32) {
            return refuse(err, CX_PLAN, "part", index, name,
                          "element type is %u, consts hold type %u (float32)", t->dtype,
                          (unsigned)CX_F32);
        }
        const uint64_t n = bytes / sizeof(float);
        if (t->offset > p->head->n_consts || n > p->head->n_consts - t->offset) {
            return refuse(err, CX_PLAN, "part", index, name,
                          "needs consts %llu to %llu, there are %u",
                          (unsigned long long)t->offset, (unsigned long long)(t->offset + n),
                          p->head->n_consts);
        }
    } else {
        if (t->file >= p->head->n_files) {
            return refuse(err, CX_PLAN, "part", index, name, "file is %u, there are %u", t->file,
                          p->head->n_files);
        }
        const uint64_t size = p->files[t->file].bytes;
        if (t->offset > size || bytes > size - t->offset) {
            return refuse(err, CX_PLAN, "part", index, name,
                          "%llu bytes at offset %llu end after the file's %llu",
                          (unsigned long long)bytes, (unsigned long long)t->offset,
                          (unsigned long long)size);
        }
    }
    switch (t->transform) {
    case CX_TRANSFORM_NONE:
        return CX_OK;
    case CX_TRANSFORM_UNPERMUTE_ROPE:
        if (t->transform_arg < 1 || t->rows % t->transform_arg != 0 ||
            t->rows / t->transform_arg % 2 != 0) {
            return refuse(err, CX_PLAN, "part", index, name,
                          "%d rows cannot be unpermuted as %d heads of an even width", t->rows,
                          t->transform_arg);
        }
        return CX_OK;
    default:
        return refuse(err, CX_PLAN, "part", index, name, "transform is %u, known are 0 and 1",
                      t->transform);
    }
}

static int32_t check_weight(const struct plan *p, uint32_t index, uint64_t *segments, cx_err *err) {
    const cx_plan_weight *w = &p->weights[index];
    if (w->use != CX_USE_VECTOR && w->use != CX_USE_MATRIX) {
        return refuse(err, CX_PLAN, "weight", index, "", "use is %u, known are 0 and 1", w->use);
    }
    if (w->n_parts < 1 || (uint64_t)w->first_part + w->n_parts > p->head->n_parts) {
        return refuse(err, CX_PLAN, "weight", index, "", "takes parts %u to %llu, there are %u",
                      w->first_part, (unsigned long long)w->first_part + w->n_parts,
                      p->head->n_parts);
    }
    *segments += w->n_parts;
    if (*segments > PLAN_MAX_SEGMENTS) {
        return refuse(err, CX_PLAN, "weight", index, "",
                      "the weights' part lists have more than %u entries", PLAN_MAX_SEGMENTS);
    }
    /* At most 2^16 parts of 2^42 elements. */
    uint64_t rows = 0, elements = 0;
    for (uint32_t i = 0; i < w->n_parts; i++) {
        const cx_plan_part *t = &p->parts[w->first_part + i];
        if (w->use == CX_USE_MATRIX && t->cols != w->cols) {
            return refuse(err, CX_PLAN, "weight", index, "", "part %u has %d cols, the weight %d",
                          w->first_part + i, t->cols, w->cols);
        }
        rows += (uint64_t)t->rows;
        elements += (uint64_t)t->rows * (uint64_t)t->cols;
    }
    if (w->use == CX_USE_VECTOR) {
        if (w->rows != 1 || w->cols < 1 || w->cols > CX_MAX_VOCAB ||
            (uint64_t)w->cols != elements) {
            return refuse(err, CX_PLAN, "weight", index, "",
                          "is a vector [%d, %d], its parts have %llu elements (most: %d)", w->rows,
                          w->cols, (unsigned long long)elements, CX_MAX_VOCAB);
        }
    } else if (w->rows < 1 || w->rows > CX_MAX_VOCAB || (uint64_t)w->rows != rows) {
        return refuse(err, CX_PLAN, "weight", index, "",
                      "is a matrix of %d rows, its parts have %llu (most: %d)", w->rows,
                      (unsigned long long)rows, CX_MAX_VOCAB);
    }
    return CX_OK;
}

static int32_t check_register(const struct plan *p, uint32_t index, cx_err *err) {
    const cx_plan_register *r = &p->registers[index];
    char name[PLAN_NAME_BYTES];
    if (!string_fits(p, r->name_at, r->name_len)) {
        return refuse(err, CX_PLAN, "register", index, "", "its name is outside the strings");
    }
    plan_name(p, r->name_at, r->name_len, name);
    if (r->rows != CX_ROWS_STEP && r->rows != CX_ROWS_OUT) {
        return refuse(err, CX_PLAN, "register", index, name, "rows is %u, known are 0 and 1",
                      r->rows);
    }
    /* Only outputs may be as wide as the vocabulary: a step's rows of it would be gigabytes. */
    const int32_t most = r->rows == CX_ROWS_OUT && p->head->vocab > CX_MAX_WIDTH ? p->head->vocab
                                                                                 : CX_MAX_WIDTH;
    if (r->width < 1 || r->width > most) {
        return refuse(err, CX_PLAN, "register", index, name, "width is %d, must be 1 to %d",
                      r->width, most);
    }
    return CX_OK;
}

static int32_t check_layer(const struct plan *p, uint32_t index, cx_err *err) {
    const cx_plan_layer *l = &p->layers[index];
    if (l->n_kv_heads < 1 || l->n_heads < 1 || l->n_heads > CX_MAX_WIDTH ||
        l->n_heads % l->n_kv_heads != 0) {
        return refuse(err, CX_PLAN, "layer", index, "", "%d heads cannot share %d kv heads",
                      l->n_heads, l->n_kv_heads);
    }
    if (l->head_dim < PLAN_HEAD_DIM_STEP || l->head_dim > CX_MAX_HEAD_DIM ||
        l->head_dim % PLAN_HEAD_DIM_STEP != 0) {
        return refuse(err, CX_PLAN, "layer", index, "",
                      "head_dim is %d, must be a multiple of %d up to %d", l->head_dim,
                      PLAN_HEAD_DIM_STEP, CX_MAX_HEAD_DIM);
    }
    return CX_OK;
}

/* ---- ops ----------------------------------------------------------------------------------- */

#define REFUSE_OP(v, ...)                                                                          \
    refuse((v)->err, CX_PLAN, "op", (v)->index, plan_op_name((v)->op->kind), __VA_ARGS__)

static const cx_plan_register *reg(const struct verifier *v, int32_t index) {
    return &v->plan->registers[index];
}

static const cx_plan_weight *weight(const struct verifier *v, int32_t index) {
    return &v->plan->weights[index];
}

static int32_t check_operand(const struct verifier *v, const char *role, int32_t index,
                             enum operand kind, bool reads) {
    if (index == -1 && kind != NEED) return CX_OK;
    if (kind == NONE) return REFUSE_OP(v, "%s is %d, the op takes none (-1)", role, index);
    if (index < 0 || (uint32_t)index >= v->plan->head->n_registers) {
        return REFUSE_OP(v, "%s is register %d, there are %u", role, index,
                         v->plan->head->n_registers);
    }
    if (reads && !v->written[index]) {
        return REFUSE_OP(v, "%s is register %d, which nothing has written yet", role, index);
    }
    return CX_OK;
}

static int32_t check_op_weight(const struct verifier *v, const char *role, int32_t index,
                               enum operand kind, int use) {
    if (index == -1 && kind != NEED) return CX_OK;
    if (kind == NONE) return REFUSE_OP(v, "%s is %d, the op takes none (-1)", role, index);
    if (index < 0 || (uint32_t)index >= v->plan->head->n_weights) {
        return REFUSE_OP(v, "%s is weight %d, there are %u", role, index,
                         v->plan->head->n_weights);
    }
    if (weight(v, index)->use != (uint32_t)use) {
        return REFUSE_OP(v, "%s is weight %d, which is no %s", role, index,
                         use == CX_USE_MATRIX ? "matrix" : "vector");
    }
    return CX_OK;
}

/* `count` groups of `width` columns from column `at` lie inside the register. */
static int32_t check_columns(const struct verifier *v, const char *role, int32_t index, int32_t at,
                             int32_t width, int32_t count) {
    if (at < 0 || width < 1 || count < 1 || width > CX_MAX_VOCAB || count > CX_MAX_WIDTH ||
        at + (int64_t)width * count > reg(v, index)->width) {
        return REFUSE_OP(v, "%s has %d columns, %d x %d from column %d do not fit", role,
                         reg(v, index)->width, count, width, at);
    }
    return CX_OK;
}

static int32_t check_width(const struct verifier *v, const char *role, int32_t index, int64_t want,
                           const char *why) {
    if (reg(v, index)->width == want) return CX_OK;
    return REFUSE_OP(v, "%s has %d columns, %s needs %lld", role, reg(v, index)->width, why,
                     (long long)want);
}

static int32_t check_attend(struct verifier *v) {
    const cx_plan_op *op = v->op;
    if (op->i[0] < 0 || (uint32_t)op->i[0] >= v->plan->head->n_layers) {
        return REFUSE_OP(v, "layer is %d, there are %u", op->i[0], v->plan->head->n_layers);
    }
    if (v->attended[op->i[0]]) {
        return REFUSE_OP(v, "layer %d is attended twice, its keys would be overwritten", op->i[0]);
    }
    v->attended[op->i[0]] = true;
    const cx_plan_layer *l = &v->plan->layers[op->i[0]];
    const int64_t q = (int64_t)l->n_heads * l->head_dim, kv = (int64_t)l->n_kv_heads * l->head_dim;
    CX_TRY(check_width(v, "a", op->a, q + 2 * kv, "[q | k | v] of the layer"));
    CX_TRY(check_width(v, "dst", op->dst, q, "the layer"));
    if (op->i[1] < 0) return REFUSE_OP(v, "window is %d, must be 0 or more", op->i[1]);
    if (op->f[1] < 0) return REFUSE_OP(v, "softcap is %g, must be 0 or more", (double)op->f[1]);
    return CX_OK;
}

/* The shapes of one op whose operands exist, are written and agree in rows. */
static int32_t check_shapes(struct verifier *v) {
    const cx_plan_op *op = v->op;
    const int32_t w = reg(v, op->dst)->width;
    switch (op->kind) {
    case CX_OP_EMBED:
        if (weight(v, op->weight)->rows < v->plan->head->vocab) {
            return REFUSE_OP(v, "the weight has %d rows, the vocabulary %d tokens",
                             weight(v, op->weight)->rows, v->plan->head->vocab);
        }
        return check_width(v, "dst", op->dst, weight(v, op->weight)->cols, "the weight");
    case CX_OP_RMS_NORM:
        CX_TRY(check_columns(v, "a", op->a, op->i[1], op->i[0], op->i[2]));
        CX_TRY(check_columns(v, "dst", op->dst, op->i[1], op->i[0], op->i[2]));
        if (weight(v, op->weight)->cols != op->i[0]) {
            return REFUSE_OP(v, "the weight has %d elements, a group %d columns",
                             weight(v, op->weight)->cols, op->i[0]);
        }
        if (op->f[0] < 0) return REFUSE_OP(v, "epsilon is %g, must be 0 or more", (double)op->f[0]);
        return CX_OK;
    case CX_OP_MATMUL: {
        const cx_plan_weight *m = weight(v, op->weight);
        if (op->i[1] < 0 || (int64_t)op->i[1] + m->cols > reg(v, op->a)->width) {
            return REFUSE_OP(v, "a has %d columns, the weight needs %d from column %d",
                             reg(v, op->a)->width, m->cols, op->i[1]);
        }
        if (op->i[0] < 0 || (int64_t)op->i[0] + m->rows > w) {
            return REFUSE_OP(v, "dst has %d columns, the weight writes %d from column %d", w,
                             m->rows, op->i[0]);
        }
        if (op->dst == op->a) return REFUSE_OP(v, "dst and a are both register %d", op->a);
        if (op->weight2 >= 0 && weight(v, op->weight2)->cols != m->rows) {
            return REFUSE_OP(v, "the bias has %d elements, the weight %d rows",
                             weight(v, op->weight2)->cols, m->rows);
        }
        return CX_OK;
    }
    case CX_OP_ROPE_TABLE:
        if (op->i[0] < 1 || op->i[0] != weight(v, op->weight)->cols) {
            return REFUSE_OP(v, "i0 is %d, the weight has %d frequencies", op->i[0],
                             weight(v, op->weight)->cols);
        }
        return check_width(v, "dst", op->dst, 2 * (int64_t)op->i[0], "cos and sin of the table");
    case CX_OP_ROPE:
        CX_TRY(check_columns(v, "dst", op->dst, op->i[1], op->i[0], op->i[2]));
        if (op->i[3] < 1 || op->i[3] > op->i[0] / 2) {
            return REFUSE_OP(v, "half is %d, a head of %d columns takes 1 to %d", op->i[3],
                             op->i[0], op->i[0] / 2);
        }
        if (op->b == op->dst) return REFUSE_OP(v, "dst and b are both register %d", op->b);
        return check_width(v, "b", op->b, 2 * (int64_t)op->i[3], "the table");
    case CX_OP_ATTEND:
        return check_attend(v);
    case CX_OP_GATE:
        if (op->i[0] != CX_ACT_SILU && op->i[0] != CX_ACT_GELU_TANH) {
            return REFUSE_OP(v, "activation is %d, known are 0 and 1", op->i[0]);
        }
        return check_width(v, "a", op->a, 2 * (int64_t)w, "the gate");
    case CX_OP_ADD:
        CX_TRY(check_width(v, "a", op->a, w, "dst"));
        return check_width(v, "b", op->b, w, "dst");
    case CX_OP_SELECT:
        return check_width(v, "a", op->a, w, "dst");
    case CX_OP_SOFTCAP:
        if (!(op->f[0] > 0)) return REFUSE_OP(v, "cap is %g, must be above 0", (double)op->f[0]);
        return check_width(v, "a", op->a, w, "dst");
    default:
        return REFUSE_OP(v, "kind %u has no shape check", op->kind);
    }
}

static int32_t check_rows(const struct verifier *v, const struct op_form *form) {
    const cx_plan_op *op = v->op;
    static const char *const NAMES[] = {"step tokens", "outputs"};
    const uint32_t rows = reg(v, op->dst)->rows;
    if (form->rows != ANY_ROWS && rows != (uint32_t)form->rows) {
        return REFUSE_OP(v, "dst has a row for %s, must be %s", NAMES[rows], NAMES[form->rows]);
    }
    const uint32_t source = op->kind == CX_OP_SELECT ? (uint32_t)CX_ROWS_STEP : rows;
    if (op->a >= 0 && reg(v, op->a)->rows != source) {
        return REFUSE_OP(v, "a has a row for %s, must be %s", NAMES[reg(v, op->a)->rows],
                         NAMES[source]);
    }
    if (op->b >= 0 && reg(v, op->b)->rows != source) {
        return REFUSE_OP(v, "b has a row for %s, must be %s", NAMES[reg(v, op->b)->rows],
                         NAMES[source]);
    }
    return CX_OK;
}

static int32_t check_op(struct verifier *v) {
    const cx_plan_op *op = v->op;
    if (op->kind >= N_FORMS || FORMS[op->kind].name == NULL) {
        return refuse(v->err, CX_PLAN, "op", v->index, "", "kind %u is unknown", op->kind);
    }
    const struct op_form *form = &FORMS[op->kind];
    if ((op->flags & ~form->flags) != 0) {
        return REFUSE_OP(v, "flags are %#x, known are %#x", op->flags, form->flags);
    }
    for (int i = 0; i < 4; i++) {
        if (!isfinite(op->f[i])) return REFUSE_OP(v, "f%d is not finite", i);
    }
    const bool reads_dst = form->in_place || (op->flags & CX_FLAG_ADD) != 0;
    CX_TRY(check_operand(v, "dst", op->dst, NEED, reads_dst));
    CX_TRY(check_operand(v, "a", op->a, form->a, true));
    CX_TRY(check_operand(v, "b", op->b, form->b, true));
    CX_TRY(check_op_weight(v, "weight", op->weight, form->use < 0 ? NONE : NEED, form->use));
    CX_TRY(check_op_weight(v, "weight2", op->weight2, form->weight2, CX_USE_VECTOR));
    CX_TRY(check_rows(v, form));
    CX_TRY(check_shapes(v));
    v->written[op->dst] = true;
    return CX_OK;
}

static int32_t check_ops(const struct plan *p, cx_err *err) {
    struct verifier v = {.plan = p, .err = err};
    for (; v.index < p->head->n_ops; v.index++) {
        v.op = &p->ops[v.index];
        CX_TRY(check_op(&v));
    }
    const int32_t logits = p->head->logits;
    if (logits < 0 || (uint32_t)logits >= p->head->n_registers) {
        return err_set(err, CX_PLAN, "plan: logits is register %d, there are %u", logits,
                       p->head->n_registers);
    }
    const cx_plan_register *r = &p->registers[logits];
    if (r->rows != CX_ROWS_OUT || r->width != p->head->vocab) {
        return err_set(err, CX_PLAN,
                       "plan: the logits (register %d) need a row for outputs and %d columns, "
                       "they have %s and %d",
                       logits, p->head->vocab,
                       r->rows == CX_ROWS_OUT ? "it" : "one for step tokens", r->width);
    }
    if (!v.written[logits]) {
        return err_set(err, CX_PLAN, "plan: no op writes the logits (register %d)", logits);
    }
    return CX_OK;
}

static int32_t check_all(struct plan *p, uint64_t len, cx_err *err) {
    const cx_plan_head *h = p->head;
    CX_TRY(check_head(h, len, err));
    CX_TRY(place_sections(p, err));
    for (uint32_t i = 0; i < h->n_files; i++) CX_TRY(check_file(p, i, err));
    for (uint32_t i = 0; i < h->n_parts; i++) CX_TRY(check_part(p, i, err));
    uint64_t segments = 0;
    for (uint32_t i = 0; i < h->n_weights; i++) CX_TRY(check_weight(p, i, &segments, err));
    for (uint32_t i = 0; i < h->n_registers; i++) CX_TRY(check_register(p, i, err));
    for (uint32_t i = 0; i < h->n_layers; i++) CX_TRY(check_layer(p, i, err));
    return check_ops(p, err);
}

int32_t plan_open(struct plan *p, const void *bytes, uint64_t len, cx_err *err) {
    *p = (struct plan){0};
    if (len < sizeof(cx_plan_head)) {
        return err_set(err, CX_PLAN, "plan: %llu bytes came, its header alone has %zu",
                       (unsigned long long)len, sizeof(cx_plan_head));
    }
    if (len > SIZE_MAX / 2 || (p->blob = malloc((size_t)len)) == NULL) {
        return err_memory(err, (size_t)len, "the plan");
    }
    memcpy(p->blob, bytes, (size_t)len);
    p->head = (const cx_plan_head *)(const void *)p->blob;
    const int32_t code = check_all(p, len, err);
    if (code != CX_OK) plan_close(p);
    return code;
}

void plan_close(struct plan *p) {
    free(p->blob);
    *p = (struct plan){0};
}
