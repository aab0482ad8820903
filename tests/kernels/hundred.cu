// A hundred small kernels in CUDA C++, for a comparison of what a GPU and what the simulator make of the same PTX. Each reads three words a
// thread and writes one.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define KERNEL(NAME, ...)                                                                                    \
    extern "C" __global__ void NAME(const u32 *in, u32 *out, int n) {                                        \
        const int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;                                \
        const u32 a = in[i], b = in[n + i], c = in[2 * n + i];                                               \
        u32 r = 0;                                                                                           \
        __VA_ARGS__;                                                                                         \
        out[i] = r + 0 * t;                                                                                  \
    }

// Numbers of moderate size from words.
static __device__ float single(u32 word) { return (float)(int)word * 3.0517578e-5f; }
static __device__ double wide(u32 word) { return (double)(int)word * 1.52587890625e-5; }
static __device__ u32 bits(float value) { return __float_as_uint(value); }
static __device__ u32 bits(double value) { return (u32)(__double_as_longlong(value) >> 32) ^ (u32)__double_as_longlong(value); }

// Integers.
KERNEL(i_add_mul, r = a * b + c)
KERNEL(i_sub_neg, r = a - (u32)(-(int)b))
KERNEL(i_div, r = a / (b | 1))
KERNEL(i_rem, r = a % (b | 1))
KERNEL(i_signed_div, r = (u32)((int)a / ((int)(b & 0xffff) + 1)))
KERNEL(i_signed_rem, r = (u32)((int)a % ((int)(b & 0xffff) + 1)))
KERNEL(i_wide_mul, u64 p = (u64)a * b; r = (u32)(p >> 32) ^ (u32)p)
KERNEL(i_signed_wide, i64 p = (i64)(int)a * (int)b; r = (u32)(p >> 31))
KERNEL(i_div_64, r = (u32)((((u64)a << 32) | b) / ((u64)c + 1)))
KERNEL(i_rem_64, r = (u32)((((u64)a << 32) | b) % ((u64)c + 1)))
KERNEL(i_shift, r = (a << (b & 31)) | (a >> (c & 31)))
KERNEL(i_signed_shift, r = (u32)((int)a >> (b & 31)))
KERNEL(i_shift_64, u64 w = ((u64)a << 32) | b; r = (u32)(w >> (c & 63)))
KERNEL(i_rotate, r = __funnelshift_l(a, a, b) ^ __funnelshift_r(b, b, c))
KERNEL(i_bits, r = __popc(a) + 64 * __clz(b) + 4096 * (__ffs(c) + 1))
KERNEL(i_reverse, r = __brev(a) ^ __byte_perm(b, c, 0x0123))
KERNEL(i_permute, r = __byte_perm(a, b, c))
KERNEL(i_high, r = __umulhi(a, b) + (u32)__mulhi((int)a, (int)c))
KERNEL(i_min_max, r = max(min(a, b), c) ^ (u32)min(max((int)a, (int)b), (int)c))
KERNEL(i_abs, r = (u32)abs((int)a) + (u32)abs((int)b))
KERNEL(i_select, r = a > b ? (b > c ? a : b) : (a > c ? c : a))
KERNEL(i_hash, u32 h = a; for (int k = 0; k < 8; ++k) { h ^= h >> 16; h *= 0x7feb352d; h ^= h >> 15; h += b; } r = h)
KERNEL(i_gcd, u32 x = a & 0xffff; u32 y = b & 0xffff; while (y) { u32 z = x % y; x = y; y = z; } r = x)
KERNEL(i_power, u32 x = a; u32 p = 1; for (u32 e = b & 31; e; e >>= 1) { if (e & 1) p *= x; x *= x; } r = p)
KERNEL(i_bytes, unsigned char x = (unsigned char)a; signed char y = (signed char)b; short z = (short)c; r = (u32)(x * y + z))
KERNEL(i_dot_bytes, u32 s; asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(s) : "r"(a), "r"(b), "r"(c)); asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); r ^= s)
KERNEL(i_average, r = __hadd((int)a, (int)b) ^ (int)__uhadd(a, c))
KERNEL(i_difference, r = __sad((int)a, (int)b, c) + __usad(a, c, b))
KERNEL(i_bit_field, r = (a >> 5 & 0x7ff) | (b & 0x1f) << 11 | (c >> 27) << 20)
KERNEL(i_carry, u64 s = (u64)a + b; u64 d = (u64)a - c; r = (u32)(s >> 32) * 3 + (u32)(d >> 40))

// Numbers with a fraction.
KERNEL(f_add, r = bits(single(a) + single(b) - single(c)))
KERNEL(f_mul, r = bits(single(a) * single(b)))
KERNEL(f_fused, r = bits(fmaf(single(a), single(b), single(c))))
KERNEL(f_div, r = bits(single(a) / (single(b) + 0.5f)))
KERNEL(f_root, r = bits(sqrtf(fabsf(single(a)))))
KERNEL(f_reciprocal, r = bits(1.0f / (fabsf(single(a)) + 1.0f)))
KERNEL(f_round, r = bits(floorf(single(a)) + ceilf(single(b)) * truncf(single(c))))
KERNEL(f_nearest, r = bits(rintf(single(a)) - roundf(single(b))))
KERNEL(f_modes, r = bits(__fadd_rd(single(a), single(b))) ^ bits(__fmul_ru(single(b), single(c))) ^ bits(__fdiv_rz(single(a), single(c) + 0.25f)))
KERNEL(f_to_int, r = (u32)(int)single(a) + (u32)fabsf(single(b)))
KERNEL(f_to_int_modes, r = (u32)__float2int_rd(single(a)) ^ __float2uint_ru(fabsf(single(b))) ^ (u32)__float2int_rn(single(c)))
KERNEL(f_from_int, r = bits((float)(int)a) ^ bits((float)b) ^ bits(__int2float_rz((int)c)))
KERNEL(f_min_max, r = bits(fminf(fmaxf(single(a), single(b)), single(c))))
KERNEL(f_compare, r = (single(a) < single(b)) + 2 * (single(b) >= single(c)) + 4 * (single(a) != single(c)))
KERNEL(f_saturate, r = bits(__saturatef(single(a) * 1e-4f)))
KERNEL(f_sign, r = bits(copysignf(single(a), single(b))) ^ signbit(single(c)))
KERNEL(f_remainder, r = bits(fmodf(single(a), 7.25f)))
KERNEL(f_scale, r = bits(ldexpf(single(a), (int)(b & 31) - 16)))
KERNEL(f_horner, float x = single(a) * 1e-4f; float s = 0; for (int k = 0; k < 12; ++k) s = s * x + 1.0f / (k + 1); r = bits(s))
KERNEL(f_mean, float m = 0; for (int k = 1; k <= 16; ++k) m += (single(a + k * b) - m) / k; r = bits(m))
KERNEL(f_newton, float x = fabsf(single(a)) + 1; float y = x; for (int k = 0; k < 10; ++k) y = 0.5f * (y + x / y); r = bits(y))
KERNEL(f_kahan, float s = 0; float e = 0; for (int k = 0; k < 20; ++k) { float y = single(a ^ (b * k)) - e; float u = s + y; e = (u - s) - y; s = u; } r = bits(s))
KERNEL(f_cube_root, r = bits(single(a) * single(a) * single(a)))
KERNEL(f_hypotenuse, float x = single(a); float y = single(b); r = bits(sqrtf(x * x + y * y)))
KERNEL(f_interpolate, float w = (b & 0xff) * (1.0f / 255); r = bits(single(a) * (1 - w) + single(c) * w))

// Wide ones.
KERNEL(d_add_mul, r = bits(wide(a) * wide(b) + wide(c)))
KERNEL(d_div, r = bits(wide(a) / (wide(b) + 0.5)))
KERNEL(d_root, r = bits(sqrt(fabs(wide(a)))))
KERNEL(d_round, r = bits(floor(wide(a)) - ceil(wide(b)) + rint(wide(c))))
KERNEL(d_narrow, r = bits((float)wide(a)) ^ bits(__double2float_ru(wide(b))))
KERNEL(d_to_int, r = (u32)(i64)(wide(a) * 1e5) ^ (u32)(u64)fabs(wide(b) * 1e3))
KERNEL(d_from_int, r = bits((double)(i64)(((u64)a << 32) | b)) ^ bits((double)(((u64)c << 32) | a)))
KERNEL(d_sine, r = bits(sin(wide(a) * 1e-3)))
KERNEL(d_exponential, r = bits(exp(wide(a) * 1e-3)))
KERNEL(d_logarithm, r = bits(log(fabs(wide(a)) + 1e-3)))
KERNEL(d_series, double s = 0; for (int k = 1; k < 30; ++k) s += wide(a) / ((double)k * k + wide(b) * wide(b)); r = bits(s))

// Threads of a block.
KERNEL(s_reverse, __shared__ u32 s[128]; s[t] = a; __syncthreads(); r = s[127 - t])
KERNEL(s_sum, __shared__ u32 s[128]; s[t] = a; __syncthreads(); for (int d = 64; d; d /= 2) { if (t < d) s[t] += s[t + d]; __syncthreads(); } r = s[0])
KERNEL(s_scan, __shared__ u32 s[128]; s[t] = a; __syncthreads(); for (int d = 1; d < 128; d *= 2) { u32 v = t >= d ? s[t - d] : 0; __syncthreads(); s[t] += v; __syncthreads(); } r = s[t])
KERNEL(s_transpose, __shared__ u32 s[8][17]; s[t / 16][t % 16] = a; __syncthreads(); r = s[t % 8][t / 8])
KERNEL(s_bytes, __shared__ unsigned char s[128]; s[t] = (unsigned char)a; __syncthreads(); r = s[t ^ 1] * 256u + s[127 - t])
KERNEL(s_wide, __shared__ u64 s[128]; s[t] = ((u64)a << 32) | b; __syncthreads(); r = (u32)(s[(t + 5) % 128] >> 20))
KERNEL(s_vectors, __shared__ uint4 s[128]; s[t] = make_uint4(a, b, c, t); __syncthreads(); uint4 v = s[t ^ 3]; r = v.x ^ v.y ^ v.z ^ v.w)
KERNEL(s_count, r = __syncthreads_count(a & 1) * 4 + __syncthreads_and(b > 5) * 2 + __syncthreads_or(c == 0))
KERNEL(s_sort, __shared__ u32 s[128]; s[t] = a; __syncthreads(); for (int k = 2; k <= 128; k *= 2) for (int j = k / 2; j; j /= 2) { int o = t ^ j; if (o > t && ((t & k) == 0) == (s[t] > s[o])) { u32 v = s[t]; s[t] = s[o]; s[o] = v; } __syncthreads(); } r = s[t])
KERNEL(s_histogram, __shared__ u32 s[16]; if (t < 16) s[t] = 0; __syncthreads(); atomicAdd(&s[a % 16], b % 7); __syncthreads(); r = s[t % 16])
KERNEL(s_exchange, __shared__ float s[128]; float x = single(a); for (int k = 0; k < 4; ++k) { s[t] = x; __syncthreads(); x = 0.5f * (s[(t + 1) % 128] + s[(t + 127) % 128]); __syncthreads(); } r = bits(x))

// Lanes of a warp.
KERNEL(w_shuffle, r = __shfl_sync(~0u, a, b & 31) ^ __shfl_xor_sync(~0u, c, 7))
KERNEL(w_up_down, r = __shfl_up_sync(~0u, a, 3) + 5 * __shfl_down_sync(~0u, b, 9))
KERNEL(w_segments, r = __shfl_down_sync(~0u, a, 2, 8) ^ __shfl_sync(~0u, b, 3, 4))
KERNEL(w_sum, u32 s = a; for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d); r = s)
KERNEL(w_scan, u32 s = a; for (int d = 1; d < 32; d *= 2) { u32 v = __shfl_up_sync(~0u, s, d); if ((t & 31) >= d) s += v; } r = s)
KERNEL(w_ballot, r = __ballot_sync(~0u, a & 1) ^ (u32)__popc(__ballot_sync(~0u, b > c)))
KERNEL(w_votes, r = __any_sync(~0u, a % 40 == 0) + 2 * __all_sync(~0u, b % 3 != 1))
KERNEL(w_match, r = __match_any_sync(~0u, a % 5) ^ (u32)__popc(__match_any_sync(~0u, b & 3)))
KERNEL(w_divergent, if (a & 1) { r = __popc(__activemask()) > 0 ? b * 3 : 0; } else { r = b + c; } __syncwarp(); r ^= __shfl_xor_sync(~0u, r, 1))
KERNEL(w_half, if ((t & 31) < 16) r = __shfl_xor_sync(0xffffu, a, 5); else r = __shfl_xor_sync(0xffff0000u, b, 3))
KERNEL(w_maximum, float m = single(a); for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d)); r = bits(m))

// Memory of a thread, and control.
struct Pair { u32 low; float high; };
static __device__ Pair made(u32 x) { Pair pair = {x * 3, (float)x}; return pair; }
static __device__ __noinline__ u32 called(u32 x, u32 y, float z) { return x * 7 + (y ^ (u32)z); }
static __device__ __noinline__ u32 fibonacci(u32 k) { return k < 2 ? k : fibonacci(k - 1) + fibonacci(k - 2); }
static __device__ u32 first(u32 x) { return x + 1; }
static __device__ u32 second(u32 x) { return x * 2; }
static __device__ u32 third(u32 x) { return x ^ 0xabcd; }
static __constant__ u32 TABLE[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};

KERNEL(m_array, u32 list[16]; for (int k = 0; k < 16; ++k) list[k] = a * k + b; r = list[c % 16] + list[a % 16])
KERNEL(m_struct, Pair pair = made(a & 0xffff); r = pair.low ^ bits(pair.high))
KERNEL(m_call, r = called(a, b, single(c & 0xfffff)))
KERNEL(m_recursion, r = fibonacci(a % 12))
KERNEL(m_pointer, u32 (*volatile list[3])(u32) = {first, second, third}; r = list[a % 3](b))
KERNEL(m_switch, switch (a % 6) { case 0: r = b; break; case 1: r = c * 2; break; case 2: r = b ^ c; break; case 3: r = b / 3; break; case 4: r = ~c; break; default: r = b + c; })
KERNEL(m_constant, r = TABLE[a % 16] * 100 + TABLE[b % 16])
KERNEL(m_nested, for (u32 x = 0; x < a % 9; ++x) for (u32 y = x; y < b % 11; ++y) { if ((x ^ y) == c % 8) continue; if (x * y > 40) break; r += x * 13 + y; })
KERNEL(m_vector, const uint2 *pairs = (const uint2 *)in; uint2 pair = pairs[i / 2]; r = pair.x * 31 + pair.y)
KERNEL(m_halves, unsigned short x; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(single(a))); float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); r = x ^ bits(y))
KERNEL(m_swap, u32 list[4] = {a, b, c, a ^ b}; for (int x = 0; x < 3; ++x) for (int y = x + 1; y < 4; ++y) if (list[x] > list[y]) { u32 v = list[x]; list[x] = list[y]; list[y] = v; } r = list[1] * 3 + list[2])
KERNEL(s_atomics, __shared__ u32 s[4]; if (t < 4) s[t] = t == 0 ? ~0u : 0; __syncthreads(); atomicMin(&s[0], a); atomicMax(&s[1], b); atomicXor(&s[2], c); atomicOr(&s[3], a & b); __syncthreads(); r = s[0] ^ s[1] ^ s[2] ^ s[3])
