/*
 * caldrix.h: the whole C API of the engine, and every struct shared with TypeScript.
 *
 * The engine runs operations on rows of numbers. It knows no model name, text, JSON or clock. One
 * thread opens and uses a handle; only cx_abi, cx_probe and cx_interrupt may be called from any.
 *
 *     cx_err err;
 *     cx_model *m = cx_model_open(plan, len, &opts, &err);       // reads and repacks the weights
 *     cx_engine *e = cx_engine_open(m, &limits, &err);           // arenas, KV rows, thread pool
 *     uint64_t len; cx_io *io = cx_engine_io(e, &len);           // the step block; never moves
 *     ... write tokens, positions, rows, wants, sampling into the block ...
 *     if (cx_step(e, &err)) handle(err);                         // blocks; results go to the block
 *     cx_engine_close(e); cx_model_close(m);
 *
 * Every struct is little-endian, of fixed size, a multiple of 8 bytes, with no pointers inside. A
 * call that fails returns NULL or a non-zero code, fills the caller's cx_err and changes no more.
 */
#ifndef CALDRIX_H
#define CALDRIX_H

#include <stdint.h>

#define CX_API __attribute__((visibility("default")))
#define CX_ABI_VERSION 1u

/* ---- codes --------------------------------------------------------------------------------- */

enum {
    CX_OK = 0,
    CX_ARG = 1,         /* an argument or step-block value is outside its range                 */
    CX_PLAN = 2,        /* the plan blob does not verify; the message says where and why        */
    CX_FILE = 3,        /* a weight file cannot be opened or read, or is shorter than planned */
    CX_NOMEM = 4,       /* an allocation failed; the message says what for                      */
    CX_STATE = 5,       /* the call does not fit the row's or engine's state                    */
    CX_INTERRUPTED = 6, /* cx_interrupt stopped the step; no row length changed                 */
    CX_GPU = 7,         /* a device call failed                                                 */
    CX_UNSUPPORTED = 8, /* known, but not built in or not possible on this machine              */
    CX_NUMERIC = 9      /* a token was wanted from logits that hold a NaN or no finite value    */
};

typedef struct { /* 512 bytes, caller-owned, may be reused */
    int32_t code;
    char msg[508]; /* UTF-8, NUL-terminated */
} cx_err;

/* ---- the plan blob ------------------------------------------------------------------------- */
/*
 * header | files | parts | weights | registers | layers | ops | consts | strings
 * Sections follow each other in this order, each starting at a multiple of 8. The blob is copied.
 */

#define CX_PLAN_MAGIC 0x4c505843u /* "CXPL" */
#define CX_PLAN_VERSION 1u

/* Limits of a plan; each is far above any model served and keeps products inside 64 bits. */
#define CX_MAX_FILES 1024u
#define CX_MAX_PARTS 65536u
#define CX_MAX_WEIGHTS 65536u
#define CX_MAX_REGISTERS 64u
#define CX_MAX_LAYERS 1024u
#define CX_MAX_OPS 65536u
#define CX_MAX_CONSTS 16777216u
#define CX_MAX_WIDTH 1048576 /* columns of a register or part, except the vocabulary */
#define CX_MAX_VOCAB 4194304
#define CX_MAX_CONTEXT 1048576

typedef struct { /* 72 bytes */
    uint32_t magic, version;
    uint64_t bytes; /* of the whole blob */
    uint32_t n_files, n_parts, n_weights, n_registers, n_layers, n_ops, n_consts, n_string_bytes;
    int32_t vocab;   /* width of the logits register */
    int32_t context; /* positions the model was made for */
    int32_t logits;  /* register index of the logits; rows = CX_ROWS_OUT */
    int32_t reserved[3];
} cx_plan_head;

typedef struct { /* 16 bytes */
    uint32_t name_at, name_len; /* path, in the strings section, not NUL-terminated */
    uint64_t bytes;             /* size the header parser saw; a shorter file is refused */
} cx_plan_file;

/* Element types, numbered as in GGUF so that no second table is needed. */
enum {
    CX_F32 = 0, CX_F16 = 1, CX_Q4_0 = 2, CX_Q4_1 = 3, CX_Q5_0 = 6, CX_Q5_1 = 7, CX_Q8_0 = 8,
    CX_Q4_K = 12, CX_Q5_K = 13, CX_Q6_K = 14, CX_BF16 = 30
};

#define CX_FILE_CONSTS 0xffffffffu /* the part's data is float32 in the consts section */

enum {
    CX_TRANSFORM_NONE = 0,
    /* rows of llama-architecture GGUF attn_q / attn_k: per head the file holds pairs (i, i+d/2)
     * next to each other; undo to rotate-half order:
     * out row h*d + s*d/2 + i = file row h*d + 2i + s. arg = number of heads. */
    CX_TRANSFORM_UNPERMUTE_ROPE = 1
};

typedef struct { /* 56 bytes: one tensor of a file, or a run of consts: [rows, cols], row-major */
    uint32_t file;       /* index of a file, or CX_FILE_CONSTS */
    uint32_t dtype;      /* CX_F32 ... */
    uint64_t offset;     /* bytes from the start of the file; floats from the start of consts */
    uint64_t bytes;      /* rows * (bytes of a row of cols elements) */
    int32_t rows, cols;
    uint32_t transform;
    int32_t transform_arg;
    uint32_t name_at, name_len; /* for messages */
    uint32_t reserved[2];
} cx_plan_part;

enum {
    CX_USE_VECTOR = 0, /* parts end to end as one float32 vector (norms, biases, tables) of 1 row */
    CX_USE_MATRIX = 1  /* [sum of part rows, cols], repacked into panels; also embedded from */
};

typedef struct { /* 24 bytes */
    uint32_t use;
    uint32_t first_part, n_parts; /* parts stacked by rows (matrix) or end to end (vector) */
    int32_t rows, cols;           /* of the whole: checked against the parts */
    uint32_t reserved;
} cx_plan_weight;

enum { CX_ROWS_STEP = 0, CX_ROWS_OUT = 1 }; /* rows of a register: step tokens, or wanted outputs */

typedef struct { /* 16 bytes: float32 [rows, width] */
    int32_t width;
    uint32_t rows;
    uint32_t name_at, name_len;
} cx_plan_register;

typedef struct { /* 16 bytes: one layer with a KV cache */
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t reserved;
} cx_plan_layer;

/*
 * Operations. a, b, dst: register indices or -1; weight, weight2: weight indices or -1.
 * n = rows of dst (step tokens or outputs). "cols [c, c+w)" is a column range of a register.
 */
enum {
    /* dst[n, w] = f0 * row token[n] of matrix `weight` [vocab, w]. f0 multiplies (1 = plain). */
    CX_OP_EMBED = 1,
    /* For each of i2 groups of i0 columns from column i1: g = a[.., i1 + k*i0 ..], written to the
     * same columns of dst (dst may be a): dst = g / sqrt(mean(g^2) + f0) * (f1 + weight[0..i0)).
     * One group of the whole width is the ordinary norm; per-head q/k norms have many groups.
     * CX_FLAG_ADD: dst += instead of dst =. */
    CX_OP_RMS_NORM = 2,
    /* dst[n, i0 .. i0+rows) = a[n, i1 .. i1+cols) . weight[rows, cols]^T (+ weight2[rows] bias).
     * CX_FLAG_ADD: dst +=. dst must not be a. */
    CX_OP_MATMUL = 3,
    /* dst[n, 2*r] : cos in [0, r), sin in [r, 2r) of pos[n] * weight[r] (f32 product), r = i0,
     * both multiplied by f0 (1 = plain). */
    CX_OP_ROPE_TABLE = 4,
    /* In place on dst: i2 heads of i0 columns from column i1; the first 2*i3 columns of a head
     * turn, rotate-half:
     * y[j] = x[j] cos[j] - x[j+i3] sin[j]; y[j+i3] = x[j+i3] cos[j] + x[j] sin[j].
     * b = table register of width 2*i3. */
    CX_OP_ROPE = 5,
    /* Layer i0: a = [q | k | v] of widths n_heads*hd, n_kv*hd, n_kv*hd. Stores k and v at pos[n] of
     * row[n], then dst[n, n_heads*hd] = softmax(f0 * q.K) . V over keys j <= pos[n] of the same
     * row, and pos - j < i1 when i1 > 0 (sliding window, counts the token itself). Query head h
     * reads kv head h / (n_heads / n_kv). f1 > 0: scores become f1 * tanh(score / f1) before the
     * softmax. */
    CX_OP_ATTEND = 6,
    /* dst[n, w] = act(a[n, 0..w)) * a[n, w..2w); i0 = CX_ACT_*. */
    CX_OP_GATE = 7,
    /* dst[n, w] = a + b; dst may be a or b. */
    CX_OP_ADD = 8,
    /* dst (CX_ROWS_OUT) = rows of a (CX_ROWS_STEP) whose want != 0, in step order. */
    CX_OP_SELECT = 9,
    /* dst = f0 * tanh(a / f0); dst may be a. */
    CX_OP_SOFTCAP = 10
};

enum { CX_FLAG_ADD = 1 };
enum { CX_ACT_SILU = 0, CX_ACT_GELU_TANH = 1 };

typedef struct { /* 64 bytes */
    uint32_t kind, flags;
    int32_t dst, a, b, weight, weight2;
    int32_t reserved;
    int32_t i[4];
    float f[4];
} cx_plan_op;

/* ---- opening ------------------------------------------------------------------------------- */

enum { CX_BACKEND_CPU = 0, CX_BACKEND_HIP = 1, CX_BACKEND_HOST = 2 };
enum {
    CX_ACTIVATIONS_FAST = 0, /* inputs of quantised matrices as int8 blocks of 32, KV in f16     */
    CX_ACTIVATIONS_F32 = 1   /* every product in float32, KV in f32: the reference mode          */
};

typedef struct { /* 32 bytes */
    uint32_t backend;
    uint32_t activations;
    int32_t threads; /* for repacking; 0 = all cores allowed to this process */
    int32_t reserved[3];
    uint64_t progress; /* 0, or the address of an int32 set to 0..1000 as weights get ready */
} cx_open;

typedef struct { /* 32 bytes */
    int32_t max_rows;    /* KV rows, at least 1 */
    int32_t context;     /* positions a row can hold; memory is reserved, not touched */
    int32_t step_tokens; /* most tokens of one step */
    int32_t max_out;     /* most tokens with want != 0 in one step */
    int32_t threads;     /* 0 = all cores allowed to this process */
    int32_t reserved[3];
} cx_limits;

/* ---- the step block ------------------------------------------------------------------------ */

enum { CX_WANT_NOTHING = 0, CX_WANT_SAMPLE = 1, CX_WANT_LOGITS = 2 };

typedef struct { /* 64 bytes, first in the block; arrays stand at the byte offsets given here */
    int32_t max_tokens, max_rows, max_out, vocab; /* set at open */
    uint32_t token_at;    /* int32[max_tokens]: token ids                                         */
    uint32_t pos_at;      /* int32[max_tokens]: position in its row = the row's length by then    */
    uint32_t row_at;      /* int32[max_tokens]: KV row                                            */
    uint32_t want_at;     /* int32[max_tokens]: CX_WANT_*                                         */
    uint32_t sampling_at; /* cx_sampling[max_rows], indexed by row; read for CX_WANT_SAMPLE       */
    uint32_t out_at;      /* int32[max_out]: sampled id for each want != 0 token, in order; -1 for
                             CX_WANT_LOGITS                                                       */
    int32_t n_tokens;     /* in: tokens of this step                                              */
    int32_t n_out;        /* out: tokens with want != 0                                           */
    int32_t reserved[4];
} cx_io;

typedef struct { /* 40 bytes */
    float temperature;        /* 0 = greedy                                                       */
    float top_p;              /* 1 = off                                                          */
    float min_p;              /* 0 = off                                                          */
    float repetition_penalty; /* 1 = off; covers every token of the row up to and with this one   */
    int32_t top_k;            /* 0 = off                                                          */
    uint32_t reserved;
    uint64_t seed;
    uint64_t draw; /* counter of the generator: the index of the new token in its reply */
} cx_sampling;

/* ---- figures ------------------------------------------------------------------------------- */

typedef struct { /* 64 bytes */
    uint32_t cores;    /* cores this process may run on */
    uint32_t gpus;     /* HIP devices that can be used by this library: 0 until it has that lane */
    char isa[24];      /* name of the chosen kernel table, NUL-terminated: "avx512vnni" ... */
    uint32_t reserved[8];
} cx_probe_out;

typedef struct { /* 96 bytes; times in nanoseconds since open */
    uint64_t steps, tokens, outputs;
    uint64_t step_ns, matmul_ns, attend_ns, sample_ns, other_ns;
    uint64_t weight_bytes; /* resident panels and vectors */
    uint64_t kv_row_bytes; /* reserved for one row at full context */
    uint64_t reserved[2];
} cx_counters_out;

/* ---- the API: 14 functions ----------------------------------------------------------------- */

typedef struct cx_model cx_model;
typedef struct cx_engine cx_engine;

/*
 * Returns CX_ABI_VERSION and writes sizeof of up to n shared structs into sizes, in this order:
 * cx_err, cx_plan_head, cx_plan_file, cx_plan_part, cx_plan_weight, cx_plan_register,
 * cx_plan_layer, cx_plan_op, cx_open, cx_limits, cx_io, cx_sampling, cx_probe_out, cx_counters_out.
 */
CX_API uint32_t cx_abi(uint32_t *sizes, uint32_t n);

/* What this machine offers; opens nothing. Returns CX_OK, or CX_ARG when out is NULL. */
CX_API int32_t cx_probe(cx_probe_out *out);

/* Verifies the plan, reads its files, repacks the weights. Seconds. NULL and err on failure. */
CX_API cx_model *cx_model_open(const void *plan, uint64_t len, const cx_open *opts, cx_err *err);

/* Frees a model. All its engines must be closed before. NULL is allowed. */
CX_API void cx_model_close(cx_model *model);

/* Arenas, KV rows and the thread pool; nothing is allocated after this. */
CX_API cx_engine *cx_engine_open(cx_model *model, const cx_limits *limits, cx_err *err);

/* Joins the pool and frees the engine. NULL is allowed. */
CX_API void cx_engine_close(cx_engine *engine);

/* The step block and its length in bytes; owned by the engine, its address never changes. */
CX_API void *cx_engine_io(cx_engine *engine, uint64_t *len);

/*
 * Runs the tokens of the step block. On success each row's length has grown by its tokens and out[]
 * is filled. Tokens of one row stand in order and start at the row's length. On any error no row
 * length has changed. CX_NUMERIC: as on success for the rows, but the output is refused.
 */
CX_API int32_t cx_step(cx_engine *engine, cx_err *err);

/* Copies the first n_tokens positions of row src over row dst, whose length becomes n_tokens. */
CX_API int32_t cx_row_copy(cx_engine *engine, int32_t src, int32_t dst, int32_t n_tokens,
                           cx_err *err);

/* Cuts a row to n_tokens positions, at most its length. */
CX_API int32_t cx_row_trim(cx_engine *engine, int32_t row, int32_t n_tokens, cx_err *err);

/* Embeds image tiles into a slot. CX_UNSUPPORTED for a plan without a vision program. */
CX_API int32_t cx_embed_image(cx_engine *engine, const uint8_t *rgb, int32_t n_tiles, int32_t slot,
                              cx_err *err);

/*
 * Copies n floats of register `reg` of the last step, starting at element `at` of the register
 * taken as one run [rows * width], into dst. For reading logits: at = out_index * vocab + id.
 */
CX_API int32_t cx_read(cx_engine *engine, int32_t reg, int64_t at, float *dst, int64_t n,
                       cx_err *err);

/* ANY thread: makes the running step return CX_INTERRUPTED between two operations, or the next
 * step at once when none runs. */
CX_API void cx_interrupt(cx_engine *engine);

/* Figures since open. Returns CX_OK or CX_ARG. */
CX_API int32_t cx_counters(cx_engine *engine, cx_counters_out *out);

#endif
