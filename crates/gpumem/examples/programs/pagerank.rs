//! PageRank of the members of a karate club, with a sparse matrix.
//!
//! In CuPy:
//!
//! ```python
//! a = cupyx.scipy.sparse.csr_matrix((values, indices, offsets))
//! for _ in range(100):
//!     rank = 0.15 / n + 0.85 * (a @ rank)
//! ```

use crate::check;
use gpumem::adapt::Csr;
use gpumem::ndarray::Ix1;
use gpumem::{Adapt, Gpu, GpuArray};
use std::error::Error;

const MEMBERS: usize = 34;
/// Who met outside of the club.
const FRIENDS: [(usize, usize); 78] = [
    (0, 1),
    (0, 2),
    (0, 3),
    (0, 4),
    (0, 5),
    (0, 6),
    (0, 7),
    (0, 8),
    (0, 10),
    (0, 11),
    (0, 12),
    (0, 13),
    (0, 17),
    (0, 19),
    (0, 21),
    (0, 31),
    (1, 2),
    (1, 3),
    (1, 7),
    (1, 13),
    (1, 17),
    (1, 19),
    (1, 21),
    (1, 30),
    (2, 3),
    (2, 7),
    (2, 8),
    (2, 9),
    (2, 13),
    (2, 27),
    (2, 28),
    (2, 32),
    (3, 7),
    (3, 12),
    (3, 13),
    (4, 6),
    (4, 10),
    (5, 6),
    (5, 10),
    (5, 16),
    (6, 16),
    (8, 30),
    (8, 32),
    (8, 33),
    (9, 33),
    (13, 33),
    (14, 32),
    (14, 33),
    (15, 32),
    (15, 33),
    (18, 32),
    (18, 33),
    (19, 33),
    (20, 32),
    (20, 33),
    (22, 32),
    (22, 33),
    (23, 25),
    (23, 27),
    (23, 29),
    (23, 32),
    (23, 33),
    (24, 25),
    (24, 27),
    (24, 31),
    (25, 31),
    (26, 29),
    (26, 33),
    (27, 33),
    (28, 31),
    (28, 33),
    (29, 32),
    (29, 33),
    (30, 32),
    (30, 33),
    (31, 32),
    (31, 33),
    (32, 33),
];

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    let friends_of = |one: usize| -> Vec<usize> {
        let of = |(a, b): &(usize, usize)| (*a == one).then_some(*b).or((*b == one).then_some(*a));
        FRIENDS.iter().filter_map(of).collect()
    };
    let all: Vec<Vec<usize>> = (0..MEMBERS).map(friends_of).collect();
    let (mut offsets, mut indices, mut values) = (vec![0_i32], Vec::new(), Vec::new());
    for friends in &all {
        for friend in friends {
            // A member's rank goes to all friends in equal parts.
            indices.push(*friend as i32);
            values.push(1.0 / all[*friend].len() as f64);
        }
        offsets.push(indices.len() as i32);
    }
    let matrix = Csr::new([MEMBERS, MEMBERS], offsets, indices, values)?;
    let matrix: Csr<GpuArray<f64, Ix1>, GpuArray<i32, Ix1>> = matrix.adapt(gpu)?;
    let mut rank = GpuArray::from_elem(gpu, MEMBERS, 1.0 / MEMBERS as f64)?;
    for _ in 0..100 {
        rank = (matrix.dot(&rank)?.lazy() * 0.85 + 0.15 / MEMBERS as f64).eval()?;
    }
    check("the sum of the ranks", rank.sum()?.into_scalar()?, 1.0, 1e-12)?;
    let first = rank.argmax()?.into_scalar()?;
    let highest = rank.max_element()?.into_scalar()?;
    // The president; the number is that of networkx.
    check("the member of the highest rank", first as f64, 33.0, 0.0)?;
    check("the highest rank", highest, 0.100_919, 1e-4)?;
    Ok(format!("member {first} has the highest rank, {highest:.4}"))
}
