//! The kernels of this example, `kernels.cu`, and their launches.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, Function, Gpu, GpuArray, GpuArray2, LaunchShape, kernels};

/// The numbers of a point.
pub(crate) const DIMS: usize = 8;

/// The loaded kernels.
pub(crate) struct Kernels {
    assign: Function,
    update: Function,
}

/// The points' nearest centroids, and the squares of their distances.
pub(crate) struct Clusters {
    pub(crate) labels: GpuArray<u32, Ix1>,
    pub(crate) distances: GpuArray<f32, Ix1>,
}

impl Kernels {
    /// Loads the kernels for the device of `gpu`.
    pub(crate) fn load(gpu: &Gpu) -> Result<Self, ArrayError> {
        let module = gpu.compile(&KERNELS)?;
        Ok(Self { assign: module.function("assign")?, update: module.function("update")? })
    }

    /// Finds the nearest centroid of each point. Returns the number of points that had another one, which stays on the device.
    pub(crate) fn assign(
        &self,
        gpu: &Gpu,
        clusters: &mut Clusters,
        points: &GpuArray2<f32>,
        centroids: &GpuArray2<f32>,
    ) -> Result<GpuArray<u32, Ix1>, ArrayError> {
        let (n, k) = (points.nrows(), centroids.nrows());
        assert!(points.ncols() == DIMS && centroids.ncols() == DIMS && k > 0 && n < 1 << 31);
        assert!(points.is_standard_layout() && centroids.is_standard_layout());
        assert!(clusters.labels.len() == n && clusters.distances.len() == n);
        let mut changed = GpuArray::zeros(gpu, 1)?;
        let launch = self.assign.launch(LaunchShape::for_len(n));
        let launch = launch.write(&mut clusters.labels).write(&mut clusters.distances).write(&mut changed);
        let launch = launch.read(points).read(centroids).scalar(n as u32).scalar(k as u32);
        // SAFETY: the arguments are the kernel's parameters. It accesses `n` labels and distances, one counter, and `n` points and `k`
        // centroids of `DIMS` numbers in row-major order; all of this is checked above.
        unsafe { launch.enqueue(gpu)? };
        Ok(changed)
    }

    /// Moves each centroid to the mean of its points.
    pub(crate) fn update(
        &self,
        gpu: &Gpu,
        centroids: &mut GpuArray2<f32>,
        points: &GpuArray2<f32>,
        clusters: &Clusters,
    ) -> Result<(), ArrayError> {
        const THREADS: u32 = 256;
        let (n, k) = (points.nrows(), centroids.nrows());
        assert!(points.ncols() == DIMS && centroids.ncols() == DIMS && n < 1 << 31);
        assert!(points.is_standard_layout() && centroids.is_standard_layout() && clusters.labels.len() == n);
        let shape = LaunchShape { grid: [k as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes: 8 * THREADS };
        let launch = self.update.launch(shape).write(centroids).read(points).read(&clusters.labels);
        // SAFETY: the arguments are the kernel's parameters. It accesses a centroid for each block, `n` points and `n` labels, as checked
        // above, and a number of shared memory for each thread.
        unsafe { launch.scalar(n as u32).enqueue(gpu) }
    }
}

kernels! {
    static KERNELS = ptx include_str!("kernels.ptx");
}
