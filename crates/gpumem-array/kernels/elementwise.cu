// out[i] = a[i] ∘ b[i] for ∘ in + - * /, where an operand is an array, one element of device memory that is used for
// every i (step 0), or a value passed with the launch. `out` may be one of the operands.

#include "common.cuh"

template <class T> struct Array {
    const T *first;
    unsigned step; // 1: an element for every i; 0: the same element for every i
    __device__ T at(u64 i) const { return first[i * step]; }
    __device__ Pack<T> pack_at(u64 i) const {
        return step == 0 ? pack_of(*first) : reinterpret_cast<const Pack<T> *>(first)[i];
    }
    __device__ bool packs() const { return step == 0 || is_aligned(first); }
};

template <class T> struct Value {
    T value;
    __device__ T at(u64) const { return value; }
    __device__ Pack<T> pack_at(u64) const { return pack_of(value); }
    __device__ bool packs() const { return true; }
};

#define OPERATION(Name, function)                                                       \
    struct Name {                                                                       \
        template <class T> static __device__ T of(T a, T b) { return function(a, b); } \
    };
OPERATION(Add, add)
OPERATION(Sub, sub)
OPERATION(Mul, mul)
OPERATION(Div, div)

template <class Op, class T, class A, class B> __device__ void apply(T *out, A a, B b, u64 n) {
    const u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    const u64 threads = gridDim.x * (u64)blockDim.x;
    u64 done = 0;
    if (is_aligned(out) && a.packs() && b.packs()) {
        const u64 packs = n / Pack<T>::count;
        for (u64 i = thread; i < packs; i += threads) {
            const Pack<T> x = a.pack_at(i), y = b.pack_at(i);
            Pack<T> z;
#pragma unroll
            for (unsigned k = 0; k < Pack<T>::count; k++) z.lane[k] = Op::of(x.lane[k], y.lane[k]);
            reinterpret_cast<Pack<T> *>(out)[i] = z;
        }
        done = packs * Pack<T>::count;
    }
    for (u64 i = done + thread; i < n; i += threads) out[i] = Op::of(a.at(i), b.at(i));
}

#define ARRAYS(op, Op)                                                                                              \
    ENTRY(op)(Element *out, const Element *a, unsigned a_step, const Element *b, unsigned b_step, u64 n) {          \
        apply<Op>(out, Array<Element>{a, a_step}, Array<Element>{b, b_step}, n);                                    \
    }
#define ARRAY_VALUE(op, Op)                                                                                         \
    ENTRY(op)(Element *out, const Element *a, Element b, u64 n) {                                                   \
        apply<Op>(out, Array<Element>{a, 1}, Value<Element>{b}, n);                                                 \
    }
#define VALUE_ARRAY(op, Op)                                                                                         \
    ENTRY(op)(Element *out, Element a, const Element *b, u64 n) {                                                   \
        apply<Op>(out, Value<Element>{a}, Array<Element>{b, 1}, n);                                                 \
    }

// Compiled for each ELEMENT_SUFFIX.
ARRAYS(add, Add)
ARRAYS(sub, Sub)
ARRAYS(mul, Mul)
ARRAYS(div, Div)
ARRAY_VALUE(add_scalar, Add)
ARRAY_VALUE(sub_scalar, Sub)
ARRAY_VALUE(mul_scalar, Mul)
ARRAY_VALUE(div_scalar, Div)
VALUE_ARRAY(scalar_sub, Sub)
VALUE_ARRAY(scalar_div, Div)
