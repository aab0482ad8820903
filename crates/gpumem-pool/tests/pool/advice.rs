//! Advice on unified memory, with backends that do not support it.

use crate::fixture::{built_backends, small, stand_in};
use gpumem_pool::adaptor::Fallback;
use gpumem_pool::sys::types::CUresult;
use gpumem_pool::{
    BackendKind, Block, Device, DeviceError, MemoryAdvice, MemoryKind, Pool, PoolBuilder, PoolError, Stream,
    Unsupported,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

stand_in!(advices, cuMemAdvise(address: CUdeviceptr, size: usize, advice: CUmem_advise, device: CUdevice));

const MIB: u64 = 1 << 20;

fn advise(block: &Block) -> Result<(), PoolError> {
    block.advise(0..block.size_bytes(), MemoryAdvice::ReadMostly(true))
}

/// True if the error names the backends that support advice.
fn says_who(advised: Result<(), PoolError>) -> bool {
    let said = advised.as_ref().map_err(ToString::to_string).err().unwrap_or_default();
    matches!(
        advised,
        Err(PoolError::Unsupported(Unsupported::OnBackend { backend: BackendKind::Native, .. }))
    ) && said.contains(
        "the backend `native` cannot take advice on unified memory; use the backend `caching` or `none`",
    )
}

/// Memory of driver pools, from every source.
#[test]
fn advice_on_memory_of_driver_pools_is_refused_with_the_supporting_backends() {
    // SAFETY: the wrapper calls the function that it replaces, or fails without effect.
    let driver = unsafe { gpumem_sim::driver(small()).unwrap().with_table(advices::install) };
    let device = Device::new(&driver, 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let unified = |backend| Pool::builder(&device).backend(backend).kind(MemoryKind::Unified);
    let native = unified(BackendKind::Native).build().unwrap();
    for backend in built_backends() {
        let lends =
            |builder: PoolBuilder| builder.hard_limit(4 * MIB).adaptor(Arc::new(Fallback::new(&native)));
        let pool = lends(unified(backend)).build().unwrap();
        let [own, lent] = [2, 8].map(|size| pool.alloc(size * MIB, &stream).unwrap());
        for code in
            [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_NOT_SUPPORTED]
        {
            advices::FAIL_WITH.store(code.0, Ordering::SeqCst);
            let advised = advise(&own);
            let is_as_said = match (backend, code) {
                (BackendKind::Native, _) => says_who(advised),
                (_, CUresult::CUDA_SUCCESS) => advised.is_ok(),
                _ => {
                    matches!(advised, Err(PoolError::Device(DeviceError::Driver(error))) if error.code() == code)
                }
            };
            assert!(is_as_said, "{backend}, {code:?}");
            if code != CUresult::CUDA_SUCCESS {
                assert!(says_who(advise(&lent)), "lent to {backend}, {code:?}");
            }
        }
        advices::FAIL_WITH.store(0, Ordering::SeqCst);
        assert!(says_who(advise(&lent)), "lent to {backend}");
    }
}
