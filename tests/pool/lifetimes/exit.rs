//! The end of the process with everything alive: in statics, in thread-local storage, with threads that wait and threads that
//! work. The process must end without help and with success.

use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::pool::{Block, Device, Event, Pool, Stream};
use gpumem_tests::sys::DriverKind;
use std::cell::RefCell;
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::channel;

cases! {
    /// Runs in a child process, because that process ends.
    fn a_process_ends_well_with_everything_alive(driver: &Driver) {
        let child = match driver.kind() {
            DriverKind::Sim => "lifetimes::exit::sim::leaves_everything_alive",
            _ => "lifetimes::exit::cuda::leaves_everything_alive",
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args([child, "--exact", "--ignored", "--nocapture"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
    }

    #[ignore = "run by the case above, as a process of its own"]
    fn leaves_everything_alive(driver: &Driver) {
        // Live memory in the simulator's report is not a failure here, because the machine must outlive the case.
        let driver = match gpumem_sim::Sim::of(driver) {
            Some(_) => gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(),
            None => driver.clone(),
        };
        let device = Device::new(&driver, 0).unwrap();
        for backend in backends(&device) {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let hoard = Hoard::new(&pool);
            KEPT.lock().unwrap().push(hoard);
            OWN.with_borrow_mut(|own| own.push(Hoard::new(&pool)));
            let (notify, notified) = channel();
            for is_busy in [false, true] {
                let (pool, notify) = (pool.clone(), notify.clone());
                // This thread is never joined and runs when the process ends.
                std::thread::spawn(move || {
                    let hoard = Hoard::new(&pool);
                    notify.send(()).unwrap();
                    drop(notify);
                    if is_busy {
                        loop {
                            drop((pool.alloc(5000, &hoard.stream), pool.alloc(3 << 20, &hoard.stream)));
                        }
                    }
                    std::thread::park();
                    drop(hoard);
                });
            }
            drop(notify);
            assert_eq!(notified.iter().count(), 2);
        }
    }
}

static KEPT: Mutex<Vec<Hoard>> = Mutex::new(Vec::new());
thread_local! {
    static OWN: RefCell<Vec<Hoard>> = const { RefCell::new(Vec::new()) };
}

/// One object of each type.
struct Hoard {
    stream: Stream,
    _other: Stream,
    _event: Event,
    _blocks: Vec<Block>,
    _pool: Pool,
}

impl Hoard {
    fn new(pool: &Pool) -> Self {
        let (stream, other) = (Stream::new(pool.device()).unwrap(), Stream::new(pool.device()).unwrap());
        let event = Event::new(pool.device()).unwrap();
        event.record(&stream).unwrap();
        other.wait(&event).unwrap();
        let blocks: Vec<_> =
            [300, 9000, 2 << 20].map(|size_bytes| pool.alloc(size_bytes, &stream).unwrap()).into();
        blocks.iter().for_each(|block| block.record_use(&other));
        Self { stream, _other: other, _event: event, _blocks: blocks, _pool: pool.clone() }
    }
}
