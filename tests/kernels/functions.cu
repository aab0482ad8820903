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
