//! Kernels in cubecl's language. cubecl writes CUDA text from them, and NVRTC compiles it when the program runs.

use cubecl_core as cubecl;

use cubecl::prelude::*;
use cubecl_core::client::ComputeClient;
use cubecl_core::server::Handle;
use cubecl_cuda::CudaRuntime;

pub type Client = ComputeClient<CudaRuntime>;

/// Threads of a block.
const BLOCK: usize = 128;
/// Not a multiple of a block or a warp: the last threads have nothing to do.
const LENGTH: usize = 10_007;

/// The bias, the activation and the product with the gate, as one kernel in place of three.
#[cube(launch)]
fn gated<F: Float + CubeElement>(
    input: &Array<F>,
    gate: &Array<F>,
    output: &mut Array<F>,
    scale: F,
    bias: F,
) {
    if ABSOLUTE_POS < output.len() {
        let number = input[ABSOLUTE_POS] * scale + bias;
        let activated = number / (F::new(1.0) + (-number).exp());
        output[ABSOLUTE_POS] = activated * gate[ABSOLUTE_POS];
    }
}

/// The sum of each block, by halves in shared memory.
#[cube(launch)]
fn block_sums<N: Numeric>(input: &Array<N>, sums: &mut Array<N>, #[comptime] block: usize) {
    let mut partial = SharedMemory::<N>::new(block);
    let thread = UNIT_POS as usize;
    let mut sum = N::from_int(0);
    if ABSOLUTE_POS < input.len() {
        sum = input[ABSOLUTE_POS];
    }
    partial[thread] = sum;
    sync_cube();
    let mut half = CUBE_DIM as usize / 2;
    while half > 0 {
        if thread < half {
            partial[thread] = partial[thread] + partial[thread + half];
        }
        sync_cube();
        half /= 2;
    }
    if thread == 0 {
        sums[CUBE_POS] = partial[0];
    }
}

/// The largest number, by shuffles within each warp and an atomic between warps.
#[cube(launch)]
fn maximum(input: &Array<u32>, largest: &mut Array<Atomic<u32>>) {
    let mut number = 0u32;
    if ABSOLUTE_POS < input.len() {
        number = input[ABSOLUTE_POS];
    }
    let of_warp = plane_max(number);
    if UNIT_POS_PLANE == 0 {
        largest[0].fetch_max(of_warp);
    }
}

pub fn fused(client: &Client) {
    let (scale, bias) = (0.75_f32, -0.5_f32);
    let (input, gate) = (numbers(1), numbers(2));
    let (on_device, gate_on_device) =
        (client.create_from_slice(f32::as_bytes(&input)), client.create_from_slice(f32::as_bytes(&gate)));
    let output = client.empty(size_of_val(&*input));
    gated::launch::<f32, CudaRuntime>(
        client,
        blocks(LENGTH),
        CubeDim::new_1d(BLOCK as u32),
        array(&on_device, LENGTH),
        array(&gate_on_device, LENGTH),
        array(&output, LENGTH),
        scale,
        bias,
    );
    let output = client.read_one(output).expect("it can be read");
    for (index, output) in f32::from_bytes(&output).iter().enumerate() {
        let number = input[index] * scale + bias;
        let expected = number / (1.0 + (-number).exp()) * gate[index];
        assert!((output - expected).abs() <= 1e-6 * expected.abs(), "{index}: {output}, expected {expected}");
    }
}

pub fn sum(client: &Client) {
    // Whole numbers, so that the sum is exact in each order.
    let input: Vec<f32> = numbers(3).iter().map(|number| (number * 100.0).round()).collect();
    let mut left = client.create_from_slice(f32::as_bytes(&input));
    let mut length = LENGTH;
    while length > 1 {
        let sums = client.empty(length.div_ceil(BLOCK) * size_of::<f32>());
        block_sums::launch::<f32, CudaRuntime>(
            client,
            blocks(length),
            CubeDim::new_1d(BLOCK as u32),
            array(&left, length),
            array(&sums, length.div_ceil(BLOCK)),
            BLOCK,
        );
        (left, length) = (sums, length.div_ceil(BLOCK));
    }
    let sum = client.read_one(left).expect("it can be read");
    assert_eq!(f32::from_bytes(&sum), [input.iter().sum::<f32>()]);
}

pub fn largest(client: &Client) {
    let input: Vec<u32> = numbers(4).iter().map(|number| number.to_bits() >> 1).collect();
    let on_device = client.create_from_slice(u32::as_bytes(&input));
    let largest = client.create_from_slice(u32::as_bytes(&[0]));
    maximum::launch::<CudaRuntime>(
        client,
        blocks(LENGTH),
        CubeDim::new_1d(BLOCK as u32),
        array(&on_device, LENGTH),
        array(&largest, 1),
    );
    let largest = client.read_one(largest).expect("it can be read");
    assert_eq!(u32::from_bytes(&largest).first(), input.iter().max());
}

fn blocks(length: usize) -> CubeCount {
    CubeCount::Static(length.div_ceil(BLOCK) as u32, 1, 1)
}

fn array(handle: &Handle, length: usize) -> ArrayArg<CudaRuntime> {
    // SAFETY: the caller created the memory for this many elements.
    unsafe { ArrayArg::from_raw_parts(handle.clone(), length) }
}

/// Numbers between -4 and 4.
fn numbers(seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 21) as f32 - 4.0
    };
    (0..LENGTH).map(|_| next()).collect()
}
