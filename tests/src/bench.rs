//! A pool on one backend, with patterns to see what becomes of its blocks: what tests that hold for every backend share.

use crate::backends::{Setting, settings};
use crate::pattern::{Ledger, Patterns, Wrong};
use crate::pool::{BackendKind, Block, Device, Pool, PoolBuilder, PoolError, Stream};
use crate::sys::Driver;

/// One MiB.
pub const MIB: u64 = 1 << 20;

/// A pool, and the pattern kernels on its device. Whatever fails is a failed test, so its methods panic.
pub struct Bench {
    /// The device.
    pub device: Device,
    /// A pool of it.
    pub pool: Pool,
    patterns: Patterns,
    ledger: Ledger,
}

impl Bench {
    /// Runs a body on device 0 with each backend that is built in, and each of its profiles, and then looks at what its checks have found.
    ///
    /// # Panics
    ///
    /// When the body does, or a check found wrong contents.
    pub fn each(driver: &Driver, options: impl Fn(PoolBuilder) -> PoolBuilder, body: impl Fn(&Self)) {
        let device = ok(Device::new(driver, 0));
        for setting in settings(&device) {
            let told = Told(setting);
            let pool = ok(options(setting.builder(&device)).build());
            let bench = Self::new(&pool);
            body(&bench);
            bench.finish();
            drop(told);
        }
    }

    /// A bench for a pool.
    ///
    /// # Panics
    ///
    /// When the driver refuses memory or kernels.
    #[must_use]
    pub fn new(pool: &Pool) -> Self {
        let device = pool.device().clone();
        let (patterns, ledger) = {
            let _bound = ok(device.bind());
            (ok(Patterns::load(device.driver())), ok(Ledger::new(device.driver())))
        };
        Self { device, pool: pool.clone(), patterns, ledger }
    }

    /// Where the pool's memory comes from.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.pool.backend()
    }

    /// Whether this is the backend of that name: for what only one of them promises.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.backend().to_string() == name
    }

    /// A new stream.
    #[must_use]
    pub fn stream(&self) -> Stream {
        ok(Stream::new(&self.device))
    }

    /// A block that must be had.
    pub fn alloc(&self, size_bytes: u64, stream: &Stream) -> Block {
        ok(self.pool.alloc(size_bytes, stream))
    }

    /// A block that must be had, filled on its stream.
    pub fn filled(&self, size_bytes: u64, key: u64, stream: &Stream) -> Block {
        let block = self.alloc(size_bytes, stream);
        self.write(&block, key, stream);
        block
    }

    /// Queues the filling of a block.
    pub fn write(&self, block: &Block, key: u64, stream: &Stream) {
        let _bound = ok(self.device.bind());
        let (address, size_bytes) = (block.address(), block.size_bytes() as usize);
        // SAFETY: the block is alive, and its free will come behind this if the test and the pool are right.
        ok(unsafe { self.patterns.write(address, size_bytes, key, stream.raw()) });
    }

    /// Queues the check of what was filled with this key.
    pub fn check(&self, block: &Block, key: u64, stream: &Stream) {
        let _bound = ok(self.device.bind());
        let (address, size_bytes) = (block.address(), block.size_bytes() as usize);
        // SAFETY: as for `write`; the ledger is closed by `finish`.
        ok(unsafe { self.patterns.check(address, size_bytes, key, self.ledger, stream.raw()) });
    }

    /// What the pool holds from the device.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        ok(self.pool.status()).reserved_bytes
    }

    /// Waits for the device and looks at what the checks have found.
    ///
    /// # Panics
    ///
    /// When it is anything.
    pub fn finish(self) {
        let _bound = ok(self.device.bind());
        // SAFETY: the context is current, and the ledger goes with this.
        let wrong = ok(unsafe { self.ledger.close(self.device.driver()) });
        assert_eq!(wrong, Wrong::default(), "{}: {wrong}", self.pool.backend());
    }
}

fn ok<T, E: Into<PoolError>>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{}", error.into()))
}

/// Names the setting when a body panics.
struct Told(Setting);

impl Drop for Told {
    #[expect(clippy::print_stderr, reason = "libtest shows it with the failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("backend {}", self.0);
        }
    }
}
