// One leapfrog step of each planet: `place` and `speed` have two coordinates for each of `n` planets.
extern "C" __global__ void orbit(double2 *place, double2 *speed, double step, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double2 p = place[i], v = speed[i];
    p.x += 0.5 * step * v.x;
    p.y += 0.5 * step * v.y;
    double square = p.x * p.x + p.y * p.y;
    double pull = step / (square * sqrt(square));
    v.x -= pull * p.x;
    v.y -= pull * p.y;
    p.x += 0.5 * step * v.x;
    p.y += 0.5 * step * v.y;
    place[i] = p;
    speed[i] = v;
}
