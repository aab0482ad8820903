//! A device is lost while another one waits for its work: the wait ends as if the work had run. What the host reads from the other device
//! is an error then.

use gpumem_array::ndarray::{Ix1, s};
use gpumem_array::pool::sys::{Driver, types::CUresult};
use gpumem_array::pool::{Device, DeviceError, Pool, PoolError};
use gpumem_array::{ArrayError, Gpu, GpuArray, PinnedArray, UnifiedArray};
use gpumem_sim::{Effect, Rule, Schedule, SimConfig};

type Vector = GpuArray<f32, Ix1>;

/// Two devices of one machine. The call of [`Pair::lose`] loses the first.
struct Pair {
    first: Gpu,
    second: Gpu,
    driver: Driver,
}

impl Pair {
    /// Work runs as late as possible, with a link between the devices or without.
    fn new(has_link: bool) -> Self {
        let effect = Effect::LoseDevice { device: 0, code: CUresult::CUDA_ERROR_ILLEGAL_ADDRESS };
        let config = SimConfig::new().devices(3).schedule(Schedule::Late);
        let config = config.rule(Rule::new("cuDeviceGetPCIBusId", effect));
        let config = if has_link { config } else { config.without_link(0, 1) };
        let driver = gpumem_sim::driver(config).unwrap();
        let [first, second] = [0, 1].map(|ordinal| gpu(&driver, ordinal));
        Self { first, second, driver }
    }

    fn both() -> [Self; 2] {
        [true, false].map(Self::new)
    }

    fn lose(&self) {
        let mut text = [0; 64];
        let driver = self.first.device().driver();
        // SAFETY: the text has as many bytes, and outlives the call.
        unsafe { driver.cuDeviceGetPCIBusId(text.as_mut_ptr(), 64, 0).unwrap() };
    }

    /// Elements that the first device has not made yet.
    fn pending(&self) -> Vector {
        self.first.synchronize().unwrap();
        let x = Vector::from_elem(&self.first, LEN, 1.0).unwrap();
        x.try_mul(3.0).unwrap()
    }
}

fn gpu(driver: &Driver, ordinal: u32) -> Gpu {
    Gpu::new(&Pool::from_env(&Device::new(driver, ordinal).unwrap()).unwrap()).unwrap()
}

/// Two pieces of a copy without a link.
const LEN: usize = 70_000;

#[track_caller]
fn assert_lost<T>(read: Result<T, ArrayError>) {
    let error = read.err().expect("an error in place of wrong elements");
    assert!(is_loss_of_first(&error), "{error}");
}

fn is_loss_of_first(error: &ArrayError) -> bool {
    matches!(
        error,
        ArrayError::Pool(PoolError::Device(DeviceError::AwaitedDeviceLost { ordinal: 1, awaited: 0, .. }))
    )
}

/// An array of the second device that depends on an array of the first.
type Way = (&'static str, fn(&Pair, &Vector) -> Result<Vector, ArrayError>);

const WAYS: &[Way] = &[
    ("a copy", |pair, x| x.copy_to(&pair.second)),
    ("a copy over an array", |pair, x| {
        let mut y = Vector::zeros(&pair.second, LEN)?;
        y.assign(x)?;
        Ok(y)
    }),
    ("a copy of one half", |pair, x| {
        let mut y = Vector::zeros(&pair.second, LEN)?;
        y.slice_mut(s![..LEN / 2])?.assign(&x.slice(s![..LEN / 2])?)?;
        Ok(y)
    }),
    ("a copy of every second element", |pair, x| x.slice(s![..;2])?.copy_to(&pair.second)),
    ("a result of a copy", |pair, x| x.copy_to(&pair.second)?.try_mul(2.0)),
    ("a result of a result", |pair, x| {
        let y = x.copy_to(&pair.second)?.try_mul(2.0)?;
        Vector::ones(&pair.second, LEN)?.try_add(&y)
    }),
    ("a change in place", |pair, x| {
        let mut y = x.copy_to(&pair.second)?;
        y.try_add_assign(1.0)?;
        Ok(y)
    }),
    ("a result on another stream", |pair, x| {
        let (y, other) = (x.copy_to(&pair.second)?, pair.second.fork()?);
        y.on(&other).to_owned()?.try_sub(1.0)
    }),
    ("a result of pinned memory", |pair, x| {
        let pinned = x.copy_to(&pair.first.pinned())?;
        pinned.copy_to(&pair.second)
    }),
    ("a result of the other device's pinned memory", |pair, x| {
        let mut pinned = PinnedArray::<f32, _>::zeros(&pair.second.pinned(), LEN)?;
        pinned.on_mut(&pair.first).assign(x)?;
        pinned.on(&pair.second).to_owned()?.copy_to(&pair.second)
    }),
    ("elements of a launch of a graph", |pair, x| {
        let y = x.copy_to(&pair.second)?;
        let mut sum = Vector::zeros(&pair.second, LEN)?;
        let (mut graph, ()) = pair.second.capture(|c| sum.on_mut(c).try_add_assign(&y))?;
        graph.launch(&pair.second).read(&y).write(&mut sum).run()?;
        Ok(sum)
    }),
];

/// The host reads an array.
type Read = (&'static str, fn(&Pair, &Vector) -> Result<(), ArrayError>);

const READS: &[Read] = &[
    ("a vector", |_, y| y.to_vec().map(drop)),
    ("a slice", |_, y| y.copy_to_slice(&mut vec![0.0; y.len()])),
    ("an element", |_, y| y.slice(s![-1])?.into_scalar().map(drop)),
    ("every second element", |_, y| y.slice(s![..;2])?.to_vec().map(drop)),
    ("a sum", |_, y| y.sum()?.into_scalar().map(drop)),
    ("a download", |_, y| y.download().wait().map(drop)),
    ("a download into a vector", |_, y| {
        y.download_into(Vec::new()).wait().map(drop).map_err(|error| error.error().clone())
    }),
    ("a download into pinned memory", |pair, y| {
        let target = PinnedArray::<f32, _>::zeros(&pair.second.pinned(), y.len())?;
        y.download_into(target).wait().map(drop).map_err(|error| error.error().clone())
    }),
    ("a pinned copy", |pair, y| y.copy_to(&pair.second.pinned())?.as_slice().map(drop)),
    ("a unified copy", |pair, y| y.copy_to(&pair.second.unified())?.as_array().map(drop)),
    ("memory of the program", |pair, y| {
        let mut table = vec![0.0; y.len()];
        pair.second.with_registered(&mut table, |mut view| view.assign(y))?
    }),
    ("a vector, after the device was waited for", |pair, y| {
        pair.second.device().synchronize()?;
        y.to_vec().map(drop)
    }),
    ("a pinned copy, after the device was waited for", |pair, y| {
        let pinned = y.copy_to(&pair.second.pinned())?;
        pair.second.device().synchronize()?;
        pinned.as_slice().map(drop)
    }),
];

#[test]
fn elements_of_a_lost_device_are_errors() {
    for (way, make) in WAYS {
        for (name, read) in READS {
            for (link, pair) in [true, false].into_iter().zip(Pair::both()) {
                let x = pair.pending();
                let y = make(&pair, &x).unwrap_or_else(|error| panic!("{way}: {error}"));
                pair.lose();
                let error = read(&pair, &y).err();
                assert!(
                    error.as_ref().is_some_and(is_loss_of_first),
                    "{name} of {way}, link: {link}: {error:?}"
                );
                // Again, and for whatever is made of it.
                read(&pair, &y).unwrap_err();
                assert_lost(y.try_mul(2.0).and_then(|z| z.to_vec()));
            }
        }
    }
}

/// The host has seen the elements, or other work that shows that they were there, before the loss.
#[test]
fn a_later_loss_changes_nothing() {
    for pair in Pair::both() {
        let x = pair.pending();
        let y = x.copy_to(&pair.second).unwrap();
        let z = y.try_mul(2.0).unwrap();
        let mut pinned = PinnedArray::<f32, _>::zeros(&pair.second.pinned(), LEN).unwrap();
        pinned.on_mut(&pair.first).assign(&x).unwrap();
        assert_eq!(z.to_vec().unwrap(), [6.0; LEN]);
        assert_eq!(y.to_vec().unwrap(), [3.0; LEN]);
        assert_eq!(pinned[LEN - 1], 3.0);
        let own = Vector::ones(&pair.second, LEN).unwrap();
        pair.lose();
        assert_eq!(z.to_vec().unwrap(), [6.0; LEN]);
        assert_eq!(y.try_add(&z).unwrap().to_vec().unwrap(), [9.0; LEN]);
        assert_eq!(pinned[0], 3.0);
        assert_eq!(pinned.on(&pair.second).sum().unwrap().into_scalar().unwrap(), 3.0 * LEN as f32);
        assert_eq!(own.to_vec().unwrap(), [1.0; LEN]);
    }
}

/// Another device's wait shows that the work of the lost device is over, not that it has run.
#[test]
fn pinned_memory_that_a_lost_device_should_have_written_is_an_error() {
    for pair in Pair::both() {
        let x = pair.pending();
        let mut pinned = PinnedArray::<f32, _>::zeros(&pair.second.pinned(), LEN).unwrap();
        let mut unified = UnifiedArray::<f32, _>::zeros(&pair.second.unified(), LEN).unwrap();
        pinned.on_mut(&pair.first).assign(&x).unwrap();
        unified.on_mut(&pair.first).assign(&x).unwrap();
        let sums = [pinned.on(&pair.second).sum().unwrap(), unified.on(&pair.second).sum().unwrap()];
        pair.lose();
        assert_lost(pair.second.synchronize());
        assert_lost(pinned.as_slice());
        assert_lost(unified.as_mut_slice());
        sums.into_iter().for_each(|sum| assert_lost(sum.into_scalar()));
    }
}

/// The second device copies from pinned memory of the first, which must exist until then.
#[test]
fn memory_of_a_lost_device_stays_while_another_one_reads_it() {
    for pair in Pair::both() {
        drop(pair.pending().copy_to(&pair.second).unwrap());
        pair.lose();
        let Pair { first, second, .. } = pair;
        drop(first);
        assert_lost(second.synchronize());
    }
}

#[test]
fn an_upload_behind_a_lost_copy_is_an_error() {
    for pair in Pair::both() {
        let pinned = pair.pending().copy_to(&pair.first.pinned()).unwrap();
        let upload = GpuArray::upload(&pair.second, pinned);
        pair.lose();
        assert_lost(upload.wait().map_err(|rejected| rejected.error().clone()));
    }
}

/// The third device copies what the second made of the first's.
#[test]
fn a_loss_concerns_devices_that_have_not_waited() {
    let pair = Pair::new(true);
    let third = gpu(&pair.driver, 2);
    let y = pair.pending().copy_to(&pair.second).unwrap();
    pair.lose();
    // The work of the second device is complete: the third need not wait for it.
    assert_lost(pair.second.synchronize());
    let z = y.copy_to(&third).unwrap();
    assert_lost(z.to_vec());
}

/// All handles are dropped after a loss: a device that is opened again has a new context, and has waited for nothing.
#[test]
fn a_device_that_is_opened_again_works() {
    for pair in Pair::both() {
        let y = pair.pending().copy_to(&pair.second).unwrap();
        pair.lose();
        assert_lost(y.to_vec());
        drop(y);
        let Pair { first, second, driver } = pair;
        drop((first, second));
        let pool = Pool::from_env(&Device::new(&driver, 1).unwrap()).unwrap();
        let own = Vector::ones(&Gpu::new(&pool).unwrap(), LEN).unwrap();
        assert_eq!(own.to_vec().unwrap(), [1.0; LEN]);
    }
}

/// The lost device is closed before the other one is waited for.
#[test]
fn a_closed_device_was_lost_too() {
    for pair in Pair::both() {
        let y = pair.pending().copy_to(&pair.second).unwrap();
        pair.lose();
        let Pair { first, second: _second, .. } = pair;
        drop(first);
        assert_lost(y.to_vec());
    }
}
