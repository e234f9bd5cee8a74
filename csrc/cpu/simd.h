/*
 * simd.h: the vector vocabulary. A LOGICAL VECTOR HAS 16 LANES on every ISA.
 *
 *   vf  16 floats      vi  16 int32      vb  64 bytes: lane i of vi, seen as 4 bytes
 *
 * Included by kernels.c only, which is compiled once for each ISA. All functions are exact or
 * correctly rounded and mean the same everywhere, with one exception: vf_fma rounds once, but
 * twice on scalar, whose baseline has no such instruction. So all other ISAs give equal bits.
 */
#ifndef CALDRIX_SIMD_H
#define CALDRIX_SIMD_H

#include "../dtype.h"

#define CX_IS_scalar 1
#define CX_IS_avx2 2
#define CX_IS_avx512 3
#define CX_IS_avx512vnni 4
#define CX_IS_neon 5
#define CX_CAT_(a, b) a##b
#define CX_CAT(a, b) CX_CAT_(a, b)
#define CX_ISA_ID CX_CAT(CX_IS_, CX_ISA)

#define CX_NOINLINE static __attribute__((noinline))
#define LANES 16

/* UNROLL stands before a loop over groups or tile members, which must become straight code on
 * registers. Plain C has arrays for vectors and would gain only minutes of compilation from it and
 * from forced inlining. */
#if CX_ISA_ID == CX_IS_scalar
#define CX_INLINE static inline
#define UNROLL(n)
#else
#define CX_INLINE static inline __attribute__((always_inline))
#define UNROLL(n) UNROLL_(GCC unroll n)
#define UNROLL_(text) _Pragma(#text)
#endif

/* What the registers hold. A matmul tile: rows of activations x panels, each with an accumulator
 * and, for int8, a sum (two panels halve the loads of activations, which bind before the
 * arithmetic does on AVX-512). An attention tile: pairs of query and head x vectors of keys or
 * values. */
#if CX_ISA_ID == CX_IS_avx512vnni || CX_ISA_ID == CX_IS_avx512
#include <immintrin.h>
#define ROW_TILE 6
#define PANEL_TILE 2
#define FLOAT_PANEL_TILE 2
#define PAIR_TILE 4
#define VEC_TILE 4
typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb;
#elif CX_ISA_ID == CX_IS_avx2
#include <immintrin.h>
#define ROW_TILE 2
#define PANEL_TILE 1
#define FLOAT_PANEL_TILE 2
#define PAIR_TILE 2
#define VEC_TILE 2
typedef struct { __m256 a, b; } vf;
typedef struct { __m256i a, b; } vi;
typedef vi vb;
#elif CX_ISA_ID == CX_IS_neon
#include <arm_neon.h>
#define ROW_TILE 2
#define PANEL_TILE 1
#define FLOAT_PANEL_TILE 2
#define PAIR_TILE 2
#define VEC_TILE 2
typedef struct { float32x4_t v[4]; } vf;
typedef struct { int32x4_t v[4]; } vi;
typedef vi vb;
#else
#define ROW_TILE 1
#define PANEL_TILE 1
#define FLOAT_PANEL_TILE 1
#define PAIR_TILE 1
#define VEC_TILE 1
typedef struct { float v[16]; } vf;
typedef struct { int32_t v[16]; } vi;
typedef struct { uint8_t v[64]; } vb;
#endif

CX_INLINE int32_t load_i32(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

#if CX_ISA_ID == CX_IS_avx512vnni || CX_ISA_ID == CX_IS_avx512
/* ---- one zmm -------------------------------------------------------------------------------- */

CX_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
CX_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
CX_INLINE vf vf_load_n(const float *p, int n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
CX_INLINE void vf_store_n(float *p, vf x, int n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
}
CX_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
CX_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
CX_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
CX_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
CX_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
CX_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
CX_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
CX_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
CX_INLINE vf vf_abs(vf a) { return _mm512_abs_ps(a); }
CX_INLINE vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
CX_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
CX_INLINE void vf_store_f16(uint16_t *p, vf x) {
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
CX_INLINE vf vf_select_lt(vi a, vi b, vf yes, vf no) {
    return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(a, b), no, yes);
}
CX_INLINE vf vf_from_vi(vi x) { return _mm512_cvtepi32_ps(x); }
CX_INLINE vi vf_bits(vf x) { return _mm512_castps_si512(x); }
CX_INLINE vf vi_bits(vi x) { return _mm512_castsi512_ps(x); }
CX_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
CX_INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
CX_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
CX_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
CX_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
CX_INLINE vi vi_shl(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
CX_INLINE vi vi_shr(vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
CX_INLINE vi vi_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}
CX_INLINE vi vi_load_i8(const uint8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p));
}
CX_INLINE void vi_store_i8(int8_t *p, vi x) {
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(x));
}
CX_INLINE vb vb_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
CX_INLINE vb vb_and(vb a, int m) { return _mm512_and_si512(a, _mm512_set1_epi8((char)m)); }
CX_INLINE vb vb_or_and(vb a, vb b, int m) {
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8((char)m), 0xf8);
}
CX_INLINE vb vb_shl(vb a, int n) { return _mm512_slli_epi16(a, (unsigned)n); }
CX_INLINE vb vb_shr(vb a, int n) { return _mm512_srli_epi16(a, (unsigned)n); }
CX_INLINE vi vb_byte(vb a, int j) {
    return _mm512_and_si512(_mm512_srli_epi32(a, 8 * (unsigned)j), _mm512_set1_epi32(255));
}

#if CX_ISA_ID == CX_IS_avx512vnni
CX_INLINE vi vi_dot6(vi acc, vb w, int32_t a4) {
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(a4));
}
CX_INLINE vi vi_dot8_start(int32_t minus128) { return _mm512_set1_epi32(minus128); }
CX_INLINE vi vi_dot8(vi acc, vb w, int32_t a4) { return vi_dot6(acc, w, a4); }
#else
CX_INLINE vi vi_dot6(vi acc, vb w, int32_t a4) {
    __m512i pairs = _mm512_maddubs_epi16(w, _mm512_set1_epi32(a4));
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
CX_INLINE vi vi_dot8_start(int32_t minus128) {
    (void)minus128;
    return _mm512_setzero_si512();
}
CX_INLINE vi vi_dot8(vi acc, vb w, int32_t a4) {
    __m512i s = _mm512_xor_si512(w, _mm512_set1_epi8(-128)), a = _mm512_set1_epi32(a4);
    a = _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(s), _mm512_setzero_si512(), a);
    __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(s), a);
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#endif

CX_INLINE __m256 half_add(vf x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
CX_INLINE __m256 half_max(vf x) {
    return _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
CX_INLINE float sqrt1(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

#elif CX_ISA_ID == CX_IS_avx2
/* ---- two ymm -------------------------------------------------------------------------------- */

#define PS(e_a, e_b) ((vf){(e_a), (e_b)})
#define EP(e_a, e_b) ((vi){(e_a), (e_b)})

CX_INLINE vf vf_load(const float *p) { return PS(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
CX_INLINE void vf_store(float *p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
CX_INLINE vf vf_load_n(const float *p, int n) {
    float tmp[16] = {0};
    memcpy(tmp, p, (size_t)n * sizeof *p);
    return vf_load(tmp);
}
CX_INLINE void vf_store_n(float *p, vf x, int n) {
    float tmp[16];
    vf_store(tmp, x);
    memcpy(p, tmp, (size_t)n * sizeof *p);
}
CX_INLINE vf vf_set1(float x) { return PS(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
CX_INLINE vf vf_add(vf a, vf b) { return PS(_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)); }
CX_INLINE vf vf_sub(vf a, vf b) { return PS(_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)); }
CX_INLINE vf vf_mul(vf a, vf b) { return PS(_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)); }
CX_INLINE vf vf_div(vf a, vf b) { return PS(_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)); }
CX_INLINE vf vf_fma(vf a, vf b, vf c) {
    return PS(_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b));
}
CX_INLINE vf vf_max(vf a, vf b) { return PS(_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)); }
CX_INLINE vf vf_min(vf a, vf b) { return PS(_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)); }
CX_INLINE vf vf_abs(vf a) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return PS(_mm256_andnot_ps(sign, a.a), _mm256_andnot_ps(sign, a.b));
}
CX_INLINE vf vf_load_f16(const uint16_t *p) {
    return PS(_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
              _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8))));
}
CX_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(p + 8)));
    return PS(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)));
}
CX_INLINE void vf_store_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
CX_INLINE vf vf_select_lt(vi a, vi b, vf yes, vf no) {
    __m256 ma = _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.a, a.a));
    __m256 mb = _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.b, a.b));
    return PS(_mm256_blendv_ps(no.a, yes.a, ma), _mm256_blendv_ps(no.b, yes.b, mb));
}
CX_INLINE vf vf_from_vi(vi x) { return PS(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)); }
CX_INLINE vi vf_bits(vf x) { return EP(_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)); }
CX_INLINE vf vi_bits(vi x) { return PS(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)); }
CX_INLINE vi vi_set1(int32_t x) { return EP(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
CX_INLINE vi vi_load(const int32_t *p) {
    return EP(_mm256_loadu_si256((const void *)p), _mm256_loadu_si256((const void *)(p + 8)));
}
CX_INLINE vi vi_add(vi a, vi b) {
    return EP(_mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b));
}
CX_INLINE vi vi_sub(vi a, vi b) {
    return EP(_mm256_sub_epi32(a.a, b.a), _mm256_sub_epi32(a.b, b.b));
}
CX_INLINE vi vi_and(vi a, vi b) {
    return EP(_mm256_and_si256(a.a, b.a), _mm256_and_si256(a.b, b.b));
}
CX_INLINE vi vi_max(vi a, vi b) {
    return EP(_mm256_max_epi32(a.a, b.a), _mm256_max_epi32(a.b, b.b));
}
CX_INLINE vi vi_shl(vi a, int n) {
    return EP(_mm256_slli_epi32(a.a, n), _mm256_slli_epi32(a.b, n));
}
CX_INLINE vi vi_shr(vi a, int n) {
    return EP(_mm256_srai_epi32(a.a, n), _mm256_srai_epi32(a.b, n));
}
CX_INLINE vi vi_load_u8(const uint8_t *p) {
    return EP(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)),
              _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p + 8))));
}
CX_INLINE vi vi_load_i8(const uint8_t *p) {
    return EP(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)),
              _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8))));
}
CX_INLINE void vi_store_i8(int8_t *p, vi x) {
    __m128i a = _mm_packs_epi32(_mm256_castsi256_si128(x.a), _mm256_extracti128_si256(x.a, 1));
    __m128i b = _mm_packs_epi32(_mm256_castsi256_si128(x.b), _mm256_extracti128_si256(x.b, 1));
    _mm_storeu_si128((void *)p, _mm_packs_epi16(a, b));
}
CX_INLINE vb vb_load(const uint8_t *p) {
    return EP(_mm256_loadu_si256((const void *)p), _mm256_loadu_si256((const void *)(p + 32)));
}
CX_INLINE vb vb_and(vb a, int m) {
    __m256i mask = _mm256_set1_epi8((char)m);
    return EP(_mm256_and_si256(a.a, mask), _mm256_and_si256(a.b, mask));
}
CX_INLINE vb vb_or_and(vb a, vb b, int m) {
    b = vb_and(b, m);
    return EP(_mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b));
}
CX_INLINE vb vb_shl(vb a, int n) {
    return EP(_mm256_slli_epi16(a.a, n), _mm256_slli_epi16(a.b, n));
}
CX_INLINE vb vb_shr(vb a, int n) {
    return EP(_mm256_srli_epi16(a.a, n), _mm256_srli_epi16(a.b, n));
}
CX_INLINE vi vb_byte(vb a, int j) {
    return vi_and(EP(_mm256_srli_epi32(a.a, 8 * j), _mm256_srli_epi32(a.b, 8 * j)), vi_set1(255));
}
CX_INLINE vi vi_dot6(vi acc, vb w, int32_t a4) {
    __m256i a = _mm256_set1_epi32(a4), ones = _mm256_set1_epi16(1);
    __m256i x = _mm256_madd_epi16(_mm256_maddubs_epi16(w.a, a), ones);
    __m256i y = _mm256_madd_epi16(_mm256_maddubs_epi16(w.b, a), ones);
    return EP(_mm256_add_epi32(acc.a, x), _mm256_add_epi32(acc.b, y));
}
CX_INLINE vi vi_dot8_start(int32_t minus128) {
    (void)minus128;
    return vi_set1(0);
}
/* |w| * (a with w's sign): at most 128 * 127 * 2, which does not saturate as w + 128 would. */
CX_INLINE vi vi_dot8(vi acc, vb w, int32_t a4) {
    __m256i a = _mm256_set1_epi32(a4), ones = _mm256_set1_epi16(1), flip = _mm256_set1_epi8(-128);
    __m256i x = _mm256_xor_si256(w.a, flip), y = _mm256_xor_si256(w.b, flip);
    x = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(a, x));
    y = _mm256_maddubs_epi16(_mm256_abs_epi8(y), _mm256_sign_epi8(a, y));
    return EP(_mm256_add_epi32(acc.a, _mm256_madd_epi16(x, ones)),
              _mm256_add_epi32(acc.b, _mm256_madd_epi16(y, ones)));
}
CX_INLINE __m256 half_add(vf x) { return _mm256_add_ps(x.a, x.b); }
CX_INLINE __m256 half_max(vf x) { return _mm256_max_ps(x.a, x.b); }
CX_INLINE float sqrt1(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

#elif CX_ISA_ID == CX_IS_neon
/* ---- four NEON registers; armv8.0, no dot product extension ---------------------------------- */

#define EACH4 for (int i = 0; i < 4; i++)
#define MAP_F(expr) vf r; EACH4 r.v[i] = (expr); return r
#define MAP_I(expr) vi r; EACH4 r.v[i] = (expr); return r
#define AS_U16(x) vreinterpretq_u16_s32(x)
#define AS_U32(x) vreinterpretq_u32_s32(x)
#define AS_S8(x) vreinterpretq_s8_s32(x)

CX_INLINE vf vf_load(const float *p) { MAP_F(vld1q_f32(p + 4 * i)); }
CX_INLINE void vf_store(float *p, vf x) { EACH4 vst1q_f32(p + 4 * i, x.v[i]); }
CX_INLINE vf vf_load_n(const float *p, int n) {
    float tmp[16] = {0};
    memcpy(tmp, p, (size_t)n * sizeof *p);
    return vf_load(tmp);
}
CX_INLINE void vf_store_n(float *p, vf x, int n) {
    float tmp[16];
    vf_store(tmp, x);
    memcpy(p, tmp, (size_t)n * sizeof *p);
}
CX_INLINE vf vf_set1(float x) { MAP_F(vdupq_n_f32(x)); }
CX_INLINE vf vf_add(vf a, vf b) { MAP_F(vaddq_f32(a.v[i], b.v[i])); }
CX_INLINE vf vf_sub(vf a, vf b) { MAP_F(vsubq_f32(a.v[i], b.v[i])); }
CX_INLINE vf vf_mul(vf a, vf b) { MAP_F(vmulq_f32(a.v[i], b.v[i])); }
CX_INLINE vf vf_div(vf a, vf b) { MAP_F(vdivq_f32(a.v[i], b.v[i])); }
CX_INLINE vf vf_fma(vf a, vf b, vf c) { MAP_F(vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
CX_INLINE vf vf_max(vf a, vf b) { MAP_F(vmaxq_f32(a.v[i], b.v[i])); }
CX_INLINE vf vf_min(vf a, vf b) { MAP_F(vminq_f32(a.v[i], b.v[i])); }
CX_INLINE vf vf_abs(vf a) { MAP_F(vabsq_f32(a.v[i])); }
CX_INLINE vf vf_load_f16(const uint16_t *p) {
    MAP_F(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
CX_INLINE vf vf_load_bf16(const uint16_t *p) {
    MAP_F(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
CX_INLINE void vf_store_f16(uint16_t *p, vf x) {
    EACH4 vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
CX_INLINE vf vf_select_lt(vi a, vi b, vf yes, vf no) {
    MAP_F(vbslq_f32(vcltq_s32(a.v[i], b.v[i]), yes.v[i], no.v[i]));
}
CX_INLINE vf vf_from_vi(vi x) { MAP_F(vcvtq_f32_s32(x.v[i])); }
CX_INLINE vi vf_bits(vf x) { MAP_I(vreinterpretq_s32_f32(x.v[i])); }
CX_INLINE vf vi_bits(vi x) { MAP_F(vreinterpretq_f32_s32(x.v[i])); }
CX_INLINE vi vi_set1(int32_t x) { MAP_I(vdupq_n_s32(x)); }
CX_INLINE vi vi_load(const int32_t *p) { MAP_I(vld1q_s32(p + 4 * i)); }
CX_INLINE vi vi_add(vi a, vi b) { MAP_I(vaddq_s32(a.v[i], b.v[i])); }
CX_INLINE vi vi_sub(vi a, vi b) { MAP_I(vsubq_s32(a.v[i], b.v[i])); }
CX_INLINE vi vi_and(vi a, vi b) { MAP_I(vandq_s32(a.v[i], b.v[i])); }
CX_INLINE vi vi_max(vi a, vi b) { MAP_I(vmaxq_s32(a.v[i], b.v[i])); }
CX_INLINE vi vi_shl(vi a, int n) { MAP_I(vshlq_s32(a.v[i], vdupq_n_s32(n))); }
CX_INLINE vi vi_shr(vi a, int n) { MAP_I(vshlq_s32(a.v[i], vdupq_n_s32(-n))); }
CX_INLINE vi vi_load_u8(const uint8_t *p) {
    uint8x16_t x = vld1q_u8(p);
    uint16x8_t lo = vmovl_u8(vget_low_u8(x)), hi = vmovl_u8(vget_high_u8(x));
    return (vi){{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(lo))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(hi)))}};
}
CX_INLINE vi vi_load_i8(const uint8_t *p) {
    int8x16_t x = vreinterpretq_s8_u8(vld1q_u8(p));
    int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_s8(vget_high_s8(x));
    return (vi){{vmovl_s16(vget_low_s16(lo)), vmovl_s16(vget_high_s16(lo)),
                 vmovl_s16(vget_low_s16(hi)), vmovl_s16(vget_high_s16(hi))}};
}
CX_INLINE void vi_store_i8(int8_t *p, vi x) {
    int16x8_t lo = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
    int16x8_t hi = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
}
CX_INLINE vb vb_load(const uint8_t *p) { MAP_I(vreinterpretq_s32_u8(vld1q_u8(p + 16 * i))); }
CX_INLINE vb vb_and(vb a, int m) {
    int32x4_t mask = vreinterpretq_s32_u8(vdupq_n_u8((uint8_t)m));
    MAP_I(vandq_s32(a.v[i], mask));
}
CX_INLINE vb vb_or_and(vb a, vb b, int m) {
    b = vb_and(b, m);
    MAP_I(vorrq_s32(a.v[i], b.v[i]));
}
CX_INLINE vb vb_shl(vb a, int n) {
    int16x8_t by = vdupq_n_s16((int16_t)n);
    MAP_I(vreinterpretq_s32_u16(vshlq_u16(AS_U16(a.v[i]), by)));
}
CX_INLINE vb vb_shr(vb a, int n) { return vb_shl(a, -n); }
CX_INLINE vi vb_byte(vb a, int j) {
    int32x4_t by = vdupq_n_s32(-8 * j);
    vi r;
    EACH4 r.v[i] = vreinterpretq_s32_u32(vshlq_u32(AS_U32(a.v[i]), by));
    return vi_and(r, vi_set1(255));
}
CX_INLINE int32x4_t dot4(int32x4_t acc, int8x16_t w, int8x16_t a) {
    int16x8_t lo = vmull_s8(vget_low_s8(w), vget_low_s8(a));
    int16x8_t hi = vmull_s8(vget_high_s8(w), vget_high_s8(a));
    return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(lo), vpaddlq_s16(hi)));
}
CX_INLINE vi vi_dot6(vi acc, vb w, int32_t a4) {
    int8x16_t a = AS_S8(vdupq_n_s32(a4));
    MAP_I(dot4(acc.v[i], AS_S8(w.v[i]), a));
}
CX_INLINE vi vi_dot8_start(int32_t minus128) {
    (void)minus128;
    return vi_set1(0);
}
CX_INLINE vi vi_dot8(vi acc, vb w, int32_t a4) {
    int8x16_t a = AS_S8(vdupq_n_s32(a4)), flip = vdupq_n_s8(-128);
    MAP_I(dot4(acc.v[i], veorq_s8(AS_S8(w.v[i]), flip), a));
}
CX_INLINE float vf_hsum(vf x) {
    float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
CX_INLINE float vf_hmax(vf x) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[2]), vmaxq_f32(x.v[1], x.v[3])));
}
CX_INLINE float sqrt1(float x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }

#else
/* ---- plain C -------------------------------------------------------------------------------- */

#define EACH for (int i = 0; i < 16; i++)
#define MAP_F(expr) vf r; EACH r.v[i] = (expr); return r
#define MAP_I(expr) vi r; EACH r.v[i] = (expr); return r

CX_INLINE vf vf_load(const float *p) { MAP_F(p[i]); }
CX_INLINE void vf_store(float *p, vf x) { EACH p[i] = x.v[i]; }
CX_INLINE vf vf_load_n(const float *p, int n) { MAP_F(i < n ? p[i] : 0.0f); }
CX_INLINE void vf_store_n(float *p, vf x, int n) { for (int i = 0; i < n; i++) p[i] = x.v[i]; }
CX_INLINE vf vf_set1(float x) { MAP_F(x); }
CX_INLINE vf vf_add(vf a, vf b) { MAP_F(a.v[i] + b.v[i]); }
CX_INLINE vf vf_sub(vf a, vf b) { MAP_F(a.v[i] - b.v[i]); }
CX_INLINE vf vf_mul(vf a, vf b) { MAP_F(a.v[i] * b.v[i]); }
CX_INLINE vf vf_div(vf a, vf b) { MAP_F(a.v[i] / b.v[i]); }
CX_INLINE vf vf_fma(vf a, vf b, vf c) { MAP_F(a.v[i] * b.v[i] + c.v[i]); }
CX_INLINE vf vf_max(vf a, vf b) { MAP_F(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
CX_INLINE vf vf_min(vf a, vf b) { MAP_F(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
CX_INLINE vf vf_abs(vf a) { MAP_F(cx_bits_f32(cx_f32_bits(a.v[i]) & 0x7fffffffu)); }
CX_INLINE vf vf_load_f16(const uint16_t *p) { MAP_F(cx_f16_f32(p[i])); }
CX_INLINE vf vf_load_bf16(const uint16_t *p) { MAP_F(cx_bf16_f32(p[i])); }
CX_INLINE void vf_store_f16(uint16_t *p, vf x) { EACH p[i] = cx_f32_f16(x.v[i]); }
CX_INLINE vf vf_select_lt(vi a, vi b, vf yes, vf no) {
    MAP_F(a.v[i] < b.v[i] ? yes.v[i] : no.v[i]);
}
CX_INLINE vf vf_from_vi(vi x) { MAP_F((float)x.v[i]); }
CX_INLINE vi vf_bits(vf x) { MAP_I((int32_t)cx_f32_bits(x.v[i])); }
CX_INLINE vf vi_bits(vi x) { MAP_F(cx_bits_f32((uint32_t)x.v[i])); }
CX_INLINE vi vi_set1(int32_t x) { MAP_I(x); }
CX_INLINE vi vi_load(const int32_t *p) { MAP_I(p[i]); }
/* Sums wrap, as they do in vector registers: exponent arithmetic relies on it. */
CX_INLINE vi vi_add(vi a, vi b) { MAP_I((int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i])); }
CX_INLINE vi vi_sub(vi a, vi b) { MAP_I((int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i])); }
CX_INLINE vi vi_max(vi a, vi b) { MAP_I(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
CX_INLINE vi vi_shl(vi a, int n) { MAP_I((int32_t)((uint32_t)a.v[i] << n)); }
CX_INLINE vi vi_shr(vi a, int n) { MAP_I(a.v[i] >> n); }
CX_INLINE vi vi_load_u8(const uint8_t *p) { MAP_I(p[i]); }
CX_INLINE vi vi_load_i8(const uint8_t *p) { MAP_I((int8_t)p[i]); }
CX_INLINE void vi_store_i8(int8_t *p, vi x) { EACH p[i] = (int8_t)x.v[i]; }
CX_INLINE vb vb_load(const uint8_t *p) {
    vb r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
CX_INLINE vb vb_and(vb a, int m) {
    for (int i = 0; i < 64; i++) a.v[i] &= (uint8_t)m;
    return a;
}
CX_INLINE vb vb_or_and(vb a, vb b, int m) {
    for (int i = 0; i < 64; i++) a.v[i] |= b.v[i] & (uint8_t)m;
    return a;
}
/* Shifts of bytes; the vector ISAs shift 16 bits, so callers mask off what crossed over. */
CX_INLINE vb vb_shl(vb a, int n) {
    for (int i = 0; i < 64; i++) a.v[i] = (uint8_t)(a.v[i] << n);
    return a;
}
CX_INLINE vb vb_shr(vb a, int n) {
    for (int i = 0; i < 64; i++) a.v[i] = (uint8_t)(a.v[i] >> n);
    return a;
}
CX_INLINE vi vb_byte(vb a, int j) { MAP_I(a.v[4 * i + j]); }
CX_INLINE vi vi_dot6(vi acc, vb w, int32_t a4) {
    int8_t a[4];
    memcpy(a, &a4, sizeof a);
    EACH acc.v[i] += w.v[4 * i] * a[0] + w.v[4 * i + 1] * a[1] + w.v[4 * i + 2] * a[2] +
                     w.v[4 * i + 3] * a[3];
    return acc;
}
CX_INLINE vi vi_dot8_start(int32_t minus128) { return vi_set1(minus128); }
CX_INLINE vi vi_dot8(vi acc, vb w, int32_t a4) { return vi_dot6(acc, w, a4); }
CX_INLINE float vf_hsum(vf x) {
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++) x.v[i] += x.v[i + n];
    return x.v[0];
}
CX_INLINE float vf_hmax(vf x) {
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++) x.v[i] = x.v[i] > x.v[i + n] ? x.v[i] : x.v[i + n];
    return x.v[0];
}
#if defined(__SSE2__)
#include <emmintrin.h>
CX_INLINE float sqrt1(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
#else
CX_INLINE float sqrt1(float x) { return __builtin_sqrtf(x); }
#endif

#endif

#if CX_ISA_ID == CX_IS_avx512vnni || CX_ISA_ID == CX_IS_avx512 || CX_ISA_ID == CX_IS_avx2
/* One tree on every ISA: lanes i and i + 8, then + 4, + 2, + 1. */
CX_INLINE float vf_hsum(vf x) {
    __m256 eight = half_add(x);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
CX_INLINE float vf_hmax(vf x) {
    __m256 eight = half_max(x);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#endif

/* Sums and maxima of the lowest n lanes only need padding by the caller: vf_load_n gives zeros. */
CX_INLINE vf vf_zero(void) { return vf_set1(0.0f); }

/* Nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves it in the low bits. */
#define ROUND_MAGIC 12582912.0f
CX_INLINE vi vi_round(vf x) {
    vf magic = vf_set1(ROUND_MAGIC);
    return vi_sub(vf_bits(vf_add(x, magic)), vf_bits(magic));
}

/* 2^n for n in -126..127. */
CX_INLINE vf vf_pow2(vi n) { return vi_bits(vi_shl(vi_add(n, vi_set1(127)), 23)); }

/*
 * e^x within 2 ulp for every float; below -104 zero, above 88.73 infinity, NaN stays. x = n ln 2 +
 * r, then a polynomial in r (Cephes expf) and two multiplications by powers of two, which also
 * round subnormal results.
 */
CX_INLINE vf vf_exp(vf x) {
    x = vf_max(vf_set1(-104.0f), vf_min(vf_set1(89.0f), x));
    vf magic = vf_set1(ROUND_MAGIC);
    vf t = vf_fma(x, vf_set1(1.44269504089f), magic);
    vi n = vi_sub(vf_bits(t), vf_bits(magic));
    vf whole = vf_sub(t, magic);
    vf r = vf_fma(whole, vf_set1(-0.693359375f), x);
    r = vf_fma(whole, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_add(vf_fma(vf_mul(r, r), p, r), vf_set1(1.0f));
    vi half = vi_shr(n, 1);
    return vf_mul(vf_mul(p, vf_pow2(half)), vf_pow2(vi_sub(n, half)));
}

/* tanh within about 3 ulp: an odd polynomial below 0.625 (Cephes tanhf), above it
 * 1 - 2 / (e^2x + 1). */
CX_INLINE vf vf_tanh(vf x) {
    vf z = vf_mul(x, x);
    vf p = vf_set1(-5.70498872745e-3f);
    p = vf_fma(p, z, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set1(-3.33332819422e-1f));
    vf small = vf_fma(vf_mul(p, z), x, x);
    vf one = vf_set1(1.0f), e = vf_exp(vf_add(x, x));
    vf large = vf_sub(one, vf_div(vf_set1(2.0f), vf_add(e, one)));
    vi limit = vf_bits(vf_set1(0.625f)); /* positive floats order like their bits */
    return vf_select_lt(vf_bits(vf_abs(x)), limit, small, large);
}

#endif
