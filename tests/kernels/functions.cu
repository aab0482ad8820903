// Calls through addresses of functions that variables of the module hold: tables, and the tables of virtual functions.
// Each kernel computes `b[i]` of `a[i]` for `n` numbers.

typedef int (*Function)(int);

__device__ __noinline__ int twice(int value) { return 2 * value; }
__device__ __noinline__ int square(int value) { return value * value; }
__device__ __noinline__ int negated(int value) { return -value; }

__device__ Function functions[3] = {twice, square, negated};
__constant__ Function fixed[2] = {square, twice};

// The number of each lies before its function.
struct Named {
    int number;
    Function function;
};
__device__ Named named[2] = {{5, negated}, {7, square}};

// The host reads the pointer, and gives it to `given`.
__device__ Function chosen = negated;

extern "C" __global__ void by_table(const int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = functions[i % 3](a[i]) + fixed[i % 2](1) + named[i % 2].function(a[i]) * named[i % 2].number;
}

extern "C" __global__ void given(const int *a, int *b, int n, Function function) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = function(a[i]);
}

struct Shape {
    int size;
    __device__ Shape(int size) : size(size) {}
    virtual __device__ int area(int height) const = 0;
    virtual __device__ int sides() const { return 4; }
};

struct Square : Shape {
    __device__ Square(int size) : Shape(size) {}
    __device__ int area(int height) const override { return size * size; }
};

struct Triangle : Shape {
    __device__ Triangle(int size) : Shape(size) {}
    __device__ int area(int height) const override { return size * height / 2; }
    __device__ int sides() const override { return 3; }
};

static __device__ int described(const Shape *shape, int height) { return 10 * shape->area(height) + shape->sides(); }

extern "C" __global__ void by_virtual(const int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Square square(a[i]);
    Triangle triangle(a[i]);
    const Shape *shapes[2] = {&square, &triangle};
    b[i] = described(shapes[a[i] & 1], i);
}

// Objects that one kernel makes and another one uses. The second one names no table.
extern "C" __global__ void make(const int *a, char *objects, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (a[i] & 1)
        new (objects + 16 * i) Triangle(a[i]);
    else
        new (objects + 16 * i) Square(a[i]);
}

extern "C" __global__ void use(const char *objects, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = described((const Shape *)(objects + 16 * i), i);
}

// The number of the function is wrong: behind the table are zeros.
__device__ Function short_table[4] = {twice};

extern "C" __global__ void wild(const int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = short_table[1 + i % 3](a[i]);
}

// Structures with gaps between and behind their members, which are passed, returned and copied whole.
struct Padded {
    int first;
    double second;
    char third;
};

__device__ __noinline__ Padded padded(int value) {
    Padded made;
    made.first = value;
    made.second = value * 2.0;
    made.third = 3;
    return made;
}

__device__ __noinline__ int total(Padded padded) { return padded.first + (int)padded.second + padded.third; }

extern "C" __global__ void by_value(const int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Padded own;
    own.first = i;
    own.second = a[i];
    own.third = 1;
    Padded all[3];
    const int at = i % 3;
    all[at] = padded(a[i]);
    all[(at + 1) % 3] = own;
    all[(at + 2) % 3] = all[at];
    b[i] = total(all[(at + 1) % 3]) + 2 * total(all[(at + 2) % 3]);
}

struct Pair {
    char first;
    int second;
};

extern "C" __global__ void make_pairs(const int *a, Pair *pairs, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    pairs[i].first = 2;
    pairs[i].second = a[i];
}

// Through shared memory. A block has 32 threads.
extern "C" __global__ void use_pairs(const Pair *pairs, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ Pair known[32], copied[32];
    known[threadIdx.x] = pairs[i < n ? i : 0];
    copied[threadIdx.x].first = 1;
    copied[threadIdx.x].second = 1;
    __syncthreads();
    const Pair pair = known[threadIdx.x];
    copied[31 - threadIdx.x] = pair;
    __syncthreads();
    const Pair last = copied[31 - threadIdx.x];
    if (i < n) b[i] = last.first * last.second;
}
