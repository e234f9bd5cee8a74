/*
 * api.c: the boundary: NULL checks, error text, figures. No logic: the work is in model.c and
 * engine.c. See caldrix.h for each function.
 */
#include <string.h>

#include "caldrix.h"
#include "cpu/kernels.h"
#include "engine.h"
#include "model.h"
#include "pool.h"

_Static_assert(sizeof(cx_err) == 512 && sizeof(cx_open) == 32 && sizeof(cx_limits) == 32, "abi");
_Static_assert(sizeof(cx_io) == 64 && sizeof(cx_sampling) == 40, "abi");
_Static_assert(sizeof(cx_probe_out) == 64 && sizeof(cx_counters_out) == 96, "abi");

static int32_t null_argument(cx_err *err, const char *name) {
    return err_set(err, CX_ARG, "%s is NULL", name);
}

CX_API uint32_t cx_abi(uint32_t *sizes, uint32_t n) {
    static const uint32_t SIZES[] = {
        sizeof(cx_err),         sizeof(cx_plan_head),     sizeof(cx_plan_file),
        sizeof(cx_plan_part),   sizeof(cx_plan_weight),   sizeof(cx_plan_register),
        sizeof(cx_plan_layer),  sizeof(cx_plan_op),       sizeof(cx_open),
        sizeof(cx_limits),      sizeof(cx_io),            sizeof(cx_sampling),
        sizeof(cx_probe_out),   sizeof(cx_counters_out),
    };
    const uint32_t have = sizeof SIZES / sizeof SIZES[0];
    if (sizes != NULL) memcpy(sizes, SIZES, (n < have ? n : have) * sizeof *sizes);
    return CX_ABI_VERSION;
}

CX_API int32_t cx_probe(cx_probe_out *out) {
    if (out == NULL) return CX_ARG;
    *out = (cx_probe_out){.cores = (uint32_t)pool_cores()};
    const struct cx_kernels *kernels = cx_kernels_best();
    /* An empty name says that CALDRIX_ISA asks for what this machine cannot run. */
    if (kernels != NULL) strncpy(out->isa, kernels->name, sizeof out->isa - 1);
    return CX_OK;
}

CX_API cx_model *cx_model_open(const void *plan, uint64_t len, const cx_open *opts, cx_err *err) {
    cx_model *model = NULL;
    if (plan == NULL) (void)null_argument(err, "plan");
    else if (opts == NULL) (void)null_argument(err, "opts");
    else (void)model_open(&model, plan, len, opts, err);
    return model;
}

CX_API void cx_model_close(cx_model *model) { model_close(model); }

CX_API cx_engine *cx_engine_open(cx_model *model, const cx_limits *limits, cx_err *err) {
    cx_engine *engine = NULL;
    if (model == NULL) (void)null_argument(err, "model");
    else if (limits == NULL) (void)null_argument(err, "limits");
    else (void)engine_open(&engine, model, limits, err);
    return engine;
}

CX_API void cx_engine_close(cx_engine *engine) { engine_close(engine); }

CX_API void *cx_engine_io(cx_engine *engine, uint64_t *len) {
    if (engine == NULL) return NULL;
    if (len != NULL) *len = engine->block_bytes;
    return engine->io;
}

CX_API int32_t cx_step(cx_engine *engine, cx_err *err) {
    if (engine == NULL) return null_argument(err, "engine");
    return engine_step(engine, err);
}

CX_API int32_t cx_row_copy(cx_engine *engine, int32_t src, int32_t dst, int32_t n_tokens,
                           cx_err *err) {
    if (engine == NULL) return null_argument(err, "engine");
    return engine_row_copy(engine, src, dst, n_tokens, err);
}

CX_API int32_t cx_row_trim(cx_engine *engine, int32_t row, int32_t n_tokens, cx_err *err) {
    if (engine == NULL) return null_argument(err, "engine");
    return engine_row_trim(engine, row, n_tokens, err);
}

CX_API int32_t cx_embed_image(cx_engine *engine, const uint8_t *rgb, int32_t n_tiles, int32_t slot,
                              cx_err *err) {
    if (engine == NULL) return null_argument(err, "engine");
    if (rgb == NULL) return null_argument(err, "rgb");
    return err_set(err, CX_UNSUPPORTED, "%d tiles for slot %d: the plan has no vision program",
                   n_tiles, slot);
}

CX_API int32_t cx_read(cx_engine *engine, int32_t reg, int64_t at, float *dst, int64_t n,
                       cx_err *err) {
    if (engine == NULL) return null_argument(err, "engine");
    if (dst == NULL) return null_argument(err, "dst");
    return engine_read(engine, reg, at, dst, n, err);
}

CX_API void cx_interrupt(cx_engine *engine) {
    if (engine != NULL) atomic_store(&engine->interrupt, true);
}

CX_API int32_t cx_counters(cx_engine *engine, cx_counters_out *out) {
    if (engine == NULL || out == NULL) return CX_ARG;
    *out = (cx_counters_out){
        .steps = engine->steps,
        .tokens = engine->n_tokens,
        .outputs = engine->n_outputs,
        .step_ns = engine->step_ns,
        .matmul_ns = engine->time[TIME_MATMUL],
        .attend_ns = engine->time[TIME_ATTEND],
        .sample_ns = engine->time[TIME_SAMPLE],
        .other_ns = engine->time[TIME_OTHER],
        .weight_bytes = engine->model->panels.bytes + engine->model->vectors.bytes,
        .kv_row_bytes = engine->kv_row_bytes,
    };
    return CX_OK;
}
