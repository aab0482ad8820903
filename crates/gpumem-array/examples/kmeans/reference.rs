//! k-means on the host: the expected result.

use crate::kernels::DIMS;

/// A point, or a centroid.
pub(crate) type Point = [f32; DIMS];

/// Runs until no point changes its centroid. Returns the centroids, the sum of the squared distances, and the number of steps.
pub(crate) fn kmeans(
    points: &[Point],
    mut centroids: Vec<Point>,
    steps_max: usize,
) -> (Vec<Point>, f64, usize) {
    let mut labels = vec![u32::MAX; points.len()];
    for step in 1.. {
        let (mut changed, mut inertia) = (0, 0.0);
        for (label, point) in labels.iter_mut().zip(points) {
            let (nearest, least) = nearest(point, &centroids);
            changed += usize::from(core::mem::replace(label, nearest) != nearest);
            inertia += f64::from(least);
        }
        if changed == 0 || step == steps_max {
            return (centroids, inertia, step);
        }
        let means = means(points.iter().copied().zip(labels.iter().copied()), centroids.len());
        centroids.iter_mut().zip(means).for_each(|(centroid, mean)| *centroid = mean.unwrap_or(*centroid));
    }
    unreachable!("the last step returns")
}

/// The nearest centroid, and the square of its distance.
fn nearest(point: &Point, centroids: &[Point]) -> (u32, f32) {
    let distance = |centroid: &Point| point.iter().zip(centroid).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
    let distances = centroids.iter().map(distance).zip(0..);
    let first = |least: (f32, u32), next: (f32, u32)| if next.0 < least.0 { next } else { least };
    distances.reduce(first).map_or((0, 0.0), |(least, nearest)| (nearest, least))
}

/// The mean of the points of each label below `count`; `None` for a label without points.
fn means(labelled: impl Iterator<Item = (Point, u32)>, count: usize) -> Vec<Option<Point>> {
    let mut sums = vec![([0.0_f64; DIMS], 0.0); count];
    for (point, label) in labelled {
        let (sum, points) = &mut sums[label as usize];
        sum.iter_mut().zip(point).for_each(|(sum, number)| *sum += f64::from(number));
        *points += 1.0;
    }
    let mean =
        |(sum, points): ([f64; DIMS], f64)| (points > 0.0).then(|| sum.map(|sum| (sum / points) as f32));
    sums.into_iter().map(mean).collect()
}
