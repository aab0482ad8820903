//! The data of the programs.
//!
//! - `digits.txt`: 1,797 handwritten digits of 8 × 8 pixels from 0 to 16, each a digit of base 17, and which one it is. From E. Alpaydin
//!   and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, CC BY 4.0.
//! - `tumours.csv`: ten mean measurements of the cell nuclei of 569 tumours, and 1 for benign. From W. Wolberg, O. Mangasarian, N. Street
//!   and W. Street, *Breast Cancer Wisconsin (Diagnostic)*, UCI Machine Learning Repository, CC BY 4.0.
//! - The friendships in a karate club of 34 people, in `pagerank.rs`. From W. W. Zachary, *An information flow model for conflict and
//!   fission in small groups*, 1977.

use gpumem::ndarray::{Array1, Array2};
use std::error::Error;

/// Images of 64 pixels from 0 to 16, and the digit that each shows.
pub(crate) fn digits() -> Result<(Array2<f32>, Array1<i32>), Box<dyn Error>> {
    let (mut pixels, mut shown) = (Vec::new(), Vec::new());
    for line in include_str!("digits.txt").lines() {
        let (image, digit) = line.split_once(' ').ok_or("a line without a digit")?;
        for pixel in image.chars() {
            pixels.push(pixel.to_digit(17).ok_or("a pixel above 16")? as f32);
        }
        shown.push(digit.parse()?);
    }
    Ok((Array2::from_shape_vec((shown.len(), 64), pixels)?, Array1::from_vec(shown)))
}

/// Ten measurements of each tumour, and 1 for those that are benign.
pub(crate) fn tumours() -> Result<(Array2<f64>, Array1<f64>), Box<dyn Error>> {
    let (mut measured, mut benign) = (Vec::new(), Vec::new());
    for line in include_str!("tumours.csv").lines() {
        let numbers = line.split(',').map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        let (kind, numbers) = numbers.split_last().ok_or("an empty line")?;
        measured.extend_from_slice(numbers);
        benign.push(*kind);
    }
    Ok((Array2::from_shape_vec((benign.len(), 10), measured)?, Array1::from_vec(benign)))
}
