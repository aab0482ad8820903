//! Prints the host time of an allocation and its free through the C interface, beside the same pair in Rust. In C, the free has only the
//! pointer (`pointer`), or the pointer and the stream (`pointer_and_stream`), or the allocation has only the handle of another library's
//! stream (`borrowed`). Rust needs no look-up: its block holds what C must find by the pointer.
//!
//! On the driver that `GPUMEM_DRIVER` names; without one, with the drop-in on the library path: `GPUMEM_DRIVER=drop-in`. With `--rows`, in the format
//! of `cargo xtask bench`; with `--quick`, few pairs.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use ::gpumem_pool::sys::Driver;
use ::gpumem_pool::{Device, Pool, Stream};
use gpumem_capi::entry::*;
use gpumem_capi::error::gpumem_result::{self, GPUMEM_SUCCESS};
use std::error::Error;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;
use std::time::Instant;

const ROUNDS: usize = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let driver = Driver::from_env()?;
    let device = Device::new(&driver, 0)?;
    let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);

    // SAFETY: null pointers, zeros and no function are valid options.
    let mut options: gpumem_pool_options = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<gpumem_pool_options>();
    let (mut c_pool, mut c_stream) = (null_mut(), null_mut());
    // SAFETY: the options are complete, and the place is a local.
    assert_eq!(unsafe { gpumem_pool_create(&options, &mut c_pool) }, GPUMEM_SUCCESS);
    // SAFETY: the place is a local.
    assert_eq!(unsafe { gpumem_stream_create(c_pool, &mut c_stream) }, GPUMEM_SUCCESS);

    let (_bound, mut theirs) = (device.bind()?, null_mut());
    // SAFETY: the place is a local, and the context current.
    unsafe { driver.cuStreamCreate(&mut theirs, 1)? };
    let theirs = theirs.cast::<c_void>();

    let (as_rows, pairs) = (has("--rows"), if has("--quick") { 100 } else { 200_000 });
    if !as_rows {
        println!("nanoseconds a pair, the median of {ROUNDS} interleaved rounds, on the {}", driver.kind());
        println!(
            "{:>10} {:>8} {:>12} {:>12} {:>12}",
            "bytes", "Rust", "C, pointer", "and stream", "borrowed"
        );
    }
    for size_bytes in [512_u64, 64 << 10, 1 << 20, 64 << 20] {
        let [mut rust, mut pointer, mut and_stream, mut borrowed] = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            rust.push(timed(pairs, || {
                drop(black_box(pool.alloc(black_box(size_bytes), &stream)?));
                Ok(())
            })?);
            let c_pair = |free: &dyn Fn(*mut c_void) -> gpumem_result| {
                timed(pairs, || {
                    let mut address = null_mut();
                    // SAFETY: the place is a local that outlives the call.
                    let allocated =
                        unsafe { gpumem_alloc(c_pool, black_box(size_bytes), c_stream, &mut address) };
                    let freed = free(black_box(address));
                    assert!(allocated == GPUMEM_SUCCESS && freed == GPUMEM_SUCCESS);
                    Ok(())
                })
            };
            pointer.push(c_pair(&|address| gpumem_free(address))?);
            and_stream.push(c_pair(&|address| gpumem_free_on(address, c_stream))?);
            borrowed.push(timed(pairs, || {
                let mut address = null_mut();
                let size_bytes = black_box(size_bytes);
                // SAFETY: the place is a local that outlives the call, and the stream is alive.
                let allocated = unsafe { gpumem_alloc_borrowed(c_pool, size_bytes, theirs, &mut address) };
                assert!(allocated == GPUMEM_SUCCESS && gpumem_free(black_box(address)) == GPUMEM_SUCCESS);
                Ok(())
            })?);
        }
        let [rust, pointer, and_stream, borrowed] = [rust, pointer, and_stream, borrowed].map(median);
        if as_rows {
            let ways = [("rust", rust), ("pointer", pointer), ("pointer_and_stream", and_stream)];
            for (way, ns) in ways.into_iter().chain([("borrowed", borrowed)]) {
                println!("row\tcapi/pair_{size_bytes}B@{way}/1\t{ns:.2}\tns");
            }
        } else {
            println!("{size_bytes:>10} {rust:>8.1} {pointer:>12.1} {and_stream:>12.1} {borrowed:>12.1}");
        }
    }
    // SAFETY: no later call names the stream.
    unsafe { driver.cuStreamDestroy_v2(theirs.cast())? };
    assert_eq!(gpumem_stream_destroy(c_stream), GPUMEM_SUCCESS);
    assert_eq!(gpumem_pool_destroy(c_pool), GPUMEM_SUCCESS);
    Ok(())
}

fn has(option: &str) -> bool {
    std::env::args().any(|arg| arg == option)
}

fn timed(pairs: u32, mut pair: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..pairs {
        pair()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(pairs))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
