//! Transfers that own their host memory, on both drivers: many at once, ordered with other work, dropped and forgotten. Also host
//! memory that is registered for a closure, and unified memory.

use gpumem_adapt::array::ndarray::{Axis, s};
use gpumem_adapt::array::pool::sys::Driver;
use gpumem_adapt::array::pool::{Device, DeviceError, Pool, PoolError};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray, PinnedArray};
use gpumem_tests::cases;
use gpumem_tests::driver::stream_gate::StreamGate;
use pollster::block_on;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

fn gpu(driver: &Driver) -> Gpu {
    let device = Device::new(driver, 0).unwrap();
    Gpu::new(&Pool::from_env(&device).unwrap()).unwrap()
}

fn close_gate(gpu: &Gpu) -> StreamGate {
    let _bound = gpu.device().bind().unwrap();
    // SAFETY: the stream is alive and of the context that is current.
    unsafe { StreamGate::close(gpu.device().driver(), gpu.stream().raw()).unwrap() }
}

/// Polls all futures whenever one of them may have resolved.
async fn all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.into_iter().enumerate().collect();
    let mut outputs: Vec<_> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        pending.retain_mut(|(index, future)| match Pin::new(future).poll(context) {
            Poll::Ready(output) => {
                outputs[*index] = Some(output);
                false
            }
            Poll::Pending => true,
        });
        if pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().map(Option::unwrap).collect()
}

cases! {
    /// None can be complete before all are queued, so none has waited.
    fn one_thread_drives_a_thousand_downloads(driver: &Driver) {
        let gpu = gpu(driver);
        let streams: Vec<_> = (0..4).map(|_| gpu.fork().unwrap()).collect();
        let mut x = GpuArray::<i32, _>::zeros(&gpu, 4096).unwrap();
        gpu.synchronize().unwrap();
        let gate = close_gate(&streams[0]);
        let downloads: Vec<_> = (0..1000)
            .map(|number| {
                let stream = &streams[number % streams.len()];
                x.on_mut(stream).fill(number as i32).unwrap();
                x.on(stream).download()
            })
            .collect();
        assert!(downloads.iter().all(|download| !download.is_complete()));
        assert!(gate.open(), "a download has waited");
        for (number, elements) in block_on(all(downloads)).into_iter().enumerate() {
            assert_eq!(elements.unwrap(), [number as i32; 4096]);
        }
    }

    fn large_and_odd_transfers_come_back(driver: &Driver) {
        let gpu = gpu(driver);
        for len in [1, 1000, (4 << 20) + 3] {
            let elements: Vec<u32> = (0..len).collect();
            let (x, elements) = block_on(GpuArray::upload(&gpu, elements)).unwrap();
            let pinned = PinnedArray::from_slice(&gpu.pinned(), &elements).unwrap();
            let (y, pinned) = block_on(GpuArray::upload(&gpu, pinned)).unwrap();
            assert_eq!(block_on(x.download()).unwrap(), elements);
            assert_eq!(block_on(y.download_into(pinned)).unwrap().as_slice().unwrap(), elements);
        }
    }

    /// A transfer in flight keeps its array and its host memory alive.
    fn dropped_and_forgotten_transfers_harm_nothing(driver: &Driver) {
        let gpu = gpu(driver);
        // Not in the loop: NVIDIA's driver waits for the device when it creates about the 34th stream.
        let other = gpu.fork().unwrap();
        let gate = close_gate(&gpu);
        let (mut kept, mut forgotten) = (Vec::new(), Vec::new());
        for number in 0..60 {
            let host = PinnedArray::from_elem(&other.pinned(), 5000, number).unwrap();
            let upload = GpuArray::upload(&gpu, vec![number; 5000]);
            let second = GpuArray::upload(&gpu, host);
            let x = GpuArray::from_elem(&gpu, 5000, number).unwrap();
            let target = PinnedArray::zeros(&gpu.pinned(), 5000).unwrap();
            let (mut download, into) = (x.download(), x.download_into(target));
            match number % 3 {
                0 => {
                    assert!(Pin::new(&mut download).poll(&mut Context::from_waker(Waker::noop())).is_pending());
                    drop((upload, second, x, into, download));
                }
                1 => {
                    // Like `mem::forget`, but the simulator finds leaks.
                    forgotten.push((upload, into));
                    kept.push((number, second, download));
                }
                _ => kept.push((number, second, download)),
            }
        }
        assert!(gate.open(), "a drop has waited");
        for (number, second, download) in kept {
            assert_eq!(block_on(download).unwrap(), [number; 5000]);
            let (x, host) = block_on(second).unwrap();
            assert_eq!((x.to_vec().unwrap(), host.to_vec().unwrap()), (vec![number; 5000], vec![number; 5000]));
        }
    }

    /// A download has the values of the moment, and an array is used on another stream once it is there.
    fn transfers_are_ordered(driver: &Driver) {
        let gpu = gpu(driver);
        let other = gpu.fork().unwrap();
        let (mut x, _) = block_on(GpuArray::upload(&gpu, vec![1_i32; 100_000])).unwrap();
        let downloads: Vec<_> = (0..20)
            .map(|_| {
                let download = x.on(&other).download();
                x += 1;
                download
            })
            .collect();
        drop(x);
        for (number, elements) in block_on(all(downloads)).into_iter().enumerate() {
            assert_eq!(elements.unwrap(), vec![number as i32 + 1; 100_000]);
        }
    }

    /// The device works on the program's own slice, in place.
    fn a_slice_is_an_array_while_a_closure_runs(driver: &Driver) {
        let gpu = gpu(driver);
        let other = gpu.fork().unwrap();
        let mut table: Vec<i32> = (0..300_000).collect();
        let sum = gpu.with_registered(&mut table, |mut x| {
            x.try_add_assign(1).unwrap();
            x.view_mut().on_mut(&other).try_mul_assign(2).unwrap();
            x.view().sum().unwrap()
        });
        assert!(table.iter().zip(1..).all(|(element, number)| *element == 2 * number));
        assert_eq!(sum.unwrap().into_scalar().unwrap(), table.iter().fold(0, |sum: i32, x| sum.wrapping_add(*x)));
        for copy in [
            gpu.with_registered_read_only(&table, |x| x.to_owned().unwrap()),
            gpu.with_pageable(&mut table.clone(), |x| x.view().to_owned().unwrap()),
        ] {
            match copy {
                Ok(copy) => assert_eq!(copy.to_vec().unwrap(), table),
                Err(error) => assert!(matches!(error, ArrayError::Pool(PoolError::Device(DeviceError::HostAccess { .. }))), "{error}"),
            }
        }
    }

    /// Elements of one byte may begin at any address: wide loads and stores only where the address allows them.
    fn a_slice_may_have_any_address(driver: &Driver) {
        let gpu = gpu(driver);
        let bytes: Vec<u8> = (0..4112_u16).map(|number| (number % 251) as u8).collect();
        for start in 0..=16 {
            let mut table = bytes.clone();
            let expected = |count: usize, at: &dyn Fn(usize) -> usize| -> Vec<u8> {
                (0..count).map(|index| bytes[start + at(index)]).collect()
            };
            gpu.with_registered(&mut table[start..][..4096], |mut x| {
                let cube = x.view().reshape((16, 16, 16)).unwrap();
                let turned = cube.permuted_axes([1, 0, 2]).unwrap().to_vec().unwrap();
                assert_eq!(turned, expected(4096, &|index| index / 16 % 16 * 256 + index / 256 * 16 + index % 16));
                let tiles = x.view().reshape((64, 64)).unwrap().t().to_owned().unwrap().to_vec().unwrap();
                assert_eq!(tiles, expected(4096, &|index| index % 64 * 64 + index / 64));
                let back = x.view().slice(s![..;-1]).unwrap().to_owned().unwrap().to_vec().unwrap();
                assert_eq!(back, expected(4096, &|index| 4095 - index));
                let picked = cube.select(Axis(1), &[3, 0]).unwrap().to_vec().unwrap();
                assert_eq!(picked, expected(512, &|index| index / 32 * 256 + [48, 0][index / 16 % 2] + index % 16));

                let words = x.view().reinterpret::<u32>();
                assert_eq!(words.is_ok(), x.address().is_multiple_of(4));
                if let Ok(words) = words {
                    assert_eq!(words.slice(s![..;2]).unwrap().to_owned().unwrap().len(), 512);
                }
                let quads = x.view_mut().reinterpret_mut::<[u8; 4]>().unwrap();
                let mut quads = quads.reshape_mut((32, 32)).unwrap();
                quads.fill([1, 2, 3, 4]).unwrap();
                let mut halves = quads.slice_mut(s![..;2, 8..24]).unwrap();
                halves.fill([5, 6, 7, 8]).unwrap();
                halves.assign(&GpuArray::from_elem(&gpu, (16, 16), [9, 8, 7, 6]).unwrap()).unwrap();
            })
            .unwrap();
            for (index, quad) in table[start..][..4096].chunks(4).enumerate() {
                let is_changed = index / 32 % 2 == 0 && (8..24).contains(&(index % 32));
                assert_eq!(quad, if is_changed { [9, 8, 7, 6] } else { [1, 2, 3, 4] }, "{start} {index}");
            }
            assert_eq!((&table[..start], &table[start + 4096..]), (&bytes[..start], &bytes[start + 4096..]));
        }
    }

    /// Prefetches change no values, in any order of uses by the host and the device.
    fn unified_memory_is_used_in_turns(driver: &Driver) {
        let gpu = gpu(driver);
        let other = gpu.fork().unwrap();
        let mut x = GpuArray::from_elem(&gpu.unified(), 1 << 20, 1_i32).unwrap();
        for round in 0..10 {
            x.on_mut(if round % 2 == 0 { &gpu } else { &other }).try_add_assign(1).unwrap();
            if round % 3 == 0 {
                x.as_mut_slice().unwrap()[round] += 100;
            }
            assert_eq!(x[1 << 19], round as i32 + 2);
        }
        let expected = 11 * (1 << 20) + 400;
        assert_eq!(x.sum().unwrap().into_scalar().unwrap(), expected);
        assert_eq!(x.as_slice().unwrap().iter().sum::<i32>(), expected);
    }
}
