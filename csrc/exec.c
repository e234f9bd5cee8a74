/*
 * exec.c: the interpreter: one loop, one case an operation. plan.c has proved every operand, so
 * nothing is checked here; the backend does the work.
 *
 * The comment above a case gives the name that messages use, the formula, the fields of the record
 * that it takes, and notes.
 */
#include "engine.h"

/* The rows of register `index` in use in this step. */
static struct view view_of(const struct cx_engine *e, int32_t index) {
    if (index < 0) return (struct view){0};
    const cx_plan_register *r = &e->model->plan.registers[index];
    return (struct view){.at = e->registers[index],
                         .n = r->rows == CX_ROWS_OUT ? e->step.n_out : e->step.n_tokens,
                         .width = r->width};
}

static void exec_op(struct cx_engine *e, const cx_plan_op *op) {
    const struct cx_backend *b = e->backend;
    void *self = e->backend_self;
    const struct step *step = &e->step;
    const struct view dst = view_of(e, op->dst), a = view_of(e, op->a);
    const struct weight *w = op->weight < 0 ? NULL : &e->model->weights[op->weight];
    const bool add = (op->flags & CX_FLAG_ADD) != 0;

    switch (op->kind) {
    /*
     * op: embed
     * dst[n, w] = f0 * row token[n] of the weight
     * takes: dst, weight = matrix [>= vocab, w], f0 = factor (1 = plain)
     * dst has a row a step token.
     */
    case CX_OP_EMBED:
        b->embed(self, dst, w, step->token, op->f[0]);
        break;
    /*
     * op: rms_norm
     * dst[c] (=|+=) a[c] / sqrt(mean(a[group]^2) + f0) * (f1 + weight[c]), for each group
     * takes: dst, a (may be dst), weight = vector [i0], i0 = columns of a group, i1 = first column,
     *   i2 = number of groups, f0 = epsilon, f1 = offset (0, or 1 where weights are stored less
     *   one), flag add
     * One group of the whole width is the ordinary norm; one group a head is the q/k norm.
     */
    case CX_OP_RMS_NORM:
        b->rms_norm(self, dst, a, w->vector, op->i[1], op->i[0], op->i[2], op->f[0], op->f[1], add);
        break;
    /*
     * op: matmul
     * dst[n, i0 + r] (=|+=) sum over k of a[n, i1 + k] * weight[r, k] (+ weight2[r])
     * takes: dst, a (not dst), weight = matrix [rows, cols], weight2 = vector [rows] or -1,
     *   i0 = first column of dst, i1 = first column of a, flag add
     * In fast mode inputs of quantised parts are rounded to int8 blocks of 32.
     */
    case CX_OP_MATMUL:
        b->matmul(self, dst, op->i[0], a, op->i[1], w,
                  op->weight2 < 0 ? NULL : e->model->weights[op->weight2].vector, add);
        break;
    /*
     * op: rope_table
     * dst[n, j] = f0 * cos(pos[n] * weight[j]); dst[n, i0 + j] = f0 * sin(pos[n] * weight[j])
     * takes: dst [2 * i0], weight = vector [i0], i0 = half the turning columns, f0 = factor
     * The angle is a float32 product; f0 is 1 when plain. One table serves every layer
     * of the same frequencies.
     */
    case CX_OP_ROPE_TABLE:
        b->rope_table(self, dst, step->pos, w->vector, op->i[0], op->f[0]);
        break;
    /*
     * op: rope
     * y[j] = x[j] cos[j] - x[j + i3] sin[j]; y[j + i3] = x[j + i3] cos[j] + x[j] sin[j]
     * takes: dst (in place), b = table [2 * i3], i0 = columns of a head, i1 = first column,
     *   i2 = number of heads, i3 = half the turning columns of a head
     * Rotate-half order; columns from 2 * i3 on stay.
     */
    case CX_OP_ROPE:
        b->rope(self, dst, view_of(e, op->b), op->i[1], op->i[0], op->i[2], op->i[3]);
        break;
    /*
     * op: attend
     * dst[n, n_heads * hd] = softmax(f0 * q . K) . V over keys j <= pos[n] of the token's row
     * takes: dst, a = [q | k | v], i0 = layer, i1 = window (0 = none: pos - j < i1 otherwise),
     *   f0 = scale, f1 = softcap (0 = none: f1 * tanh(score / f1) otherwise)
     * Stores k and v of all tokens first. Query head h reads kv head h / (n_heads / n_kv_heads).
     */
    case CX_OP_ATTEND: {
        struct kv_layer layer = e->layers[op->i[0]];
        layer.args.window = op->i[1];
        layer.args.scale = op->f[0];
        layer.args.softcap = op->f[1];
        b->attend(self, dst, a, &layer, step);
        break;
    }
    /*
     * op: gate
     * dst[n, w] = act(a[n, 0 .. w)) * a[n, w .. 2w)
     * takes: dst, a [2w], i0 = activation: 0 silu, 1 gelu_tanh
     */
    case CX_OP_GATE:
        b->gate(self, dst, a, op->i[0]);
        break;
    /*
     * op: add
     * dst = a + b
     * takes: dst, a, b of one width; dst may be a or b
     */
    case CX_OP_ADD:
        b->add(self, dst, a, view_of(e, op->b));
        break;
    /*
     * op: select
     * dst = the rows of a whose token is wanted, in step order
     * takes: dst with a row an output, a with a row a step token, of one width
     * The only way from step rows to output rows.
     */
    case CX_OP_SELECT:
        b->select(self, dst, a, step->out_token);
        break;
    /*
     * op: softcap
     * dst = f0 * tanh(a / f0)
     * takes: dst, a (may be dst) of one width, f0 = cap, above 0
     */
    case CX_OP_SOFTCAP:
        b->softcap(self, dst, a, op->f[0]);
        break;
    }
}

static enum time_kind time_kind(uint32_t kind) {
    return kind == CX_OP_MATMUL ? TIME_MATMUL : kind == CX_OP_ATTEND ? TIME_ATTEND : TIME_OTHER;
}

int32_t exec_program(struct cx_engine *e, cx_err *err) {
    const struct plan *p = &e->model->plan;
    uint64_t before = now_ns();
    for (uint32_t i = 0; i < p->head->n_ops; i++) {
        const cx_plan_op *op = &p->ops[i];
        if (engine_interrupted(e)) {
            return err_set(err, CX_INTERRUPTED, "interrupted before op %u (%s)", i,
                           plan_op_name(op->kind));
        }
        /* Nothing wanted: the head and all that leads only to it is not run. */
        if (e->step.n_out == 0 && p->registers[op->dst].rows == CX_ROWS_OUT) continue;
        exec_op(e, op);
        const uint64_t after = now_ns();
        e->time[time_kind(op->kind)] += after - before;
        before = after;
    }
    return CX_OK;
}
