//! A service on one GPU: sixteen sessions, whose arrays need three times the memory together. Each request multiplies with all arrays of its
//! session, several times, and waits for its result. With admission (`Pool::room`), and without, at fixed numbers of requests at a time.
//!
//! `cargo bench -p gpumem-array --features cudarc,half --bench service`. Without a GPU, in small sizes, which says nothing about speed.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::ndarray::{Ix2, s};
use gpumem_array::pool::sys::DriverKind;
use gpumem_array::pool::{Device, Pool, Spill};
use gpumem_array::{Cublas, Gpu, GpuArray};
use half::bf16;
use std::error::Error;
use std::sync::{Barrier, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

type Matrix = GpuArray<bf16, Ix2>;

fn main() -> Result<(), Box<dyn Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}", driver.kind());
    let service = if driver.kind() == DriverKind::Cuda {
        Service {
            device,
            len: 8192,
            rows: 4096,
            rounds: 4,
            time: Duration::from_secs(3),
            deadline: Duration::from_secs(1),
        }
    } else {
        Service {
            device,
            len: 512,
            rows: 1,
            rounds: 1,
            time: Duration::from_secs(1),
            deadline: Duration::from_secs(60),
        }
    };
    println!(
        "{SESSIONS} sessions of {} MiB, {} MiB of memory, deadline {:?}",
        service.session_bytes() >> 20,
        service.limit_bytes() >> 20,
        service.deadline
    );
    let fits = service.run(Admission::Fixed(4), false)?;
    println!("everything fits, 4 at a time: {fits}");
    let room = service.run(Admission::Room, true)?;
    println!("admission: {room}");
    let mut best: f64 = 0.0;
    for count in [1, 2, 3, 4, 8, SESSIONS] {
        let fixed = service.run(Admission::Fixed(count), true)?;
        println!("{count} at a time: {fixed}");
        best = best.max(fixed.rate);
    }
    println!("admission: {:.3} of the best fixed number", room.rate / best);
    Ok(())
}

#[derive(Clone, Copy)]
enum Admission {
    /// Each request asks for room for its working set.
    Room,
    /// A fixed number of requests runs at a time, in the order of arrival.
    Fixed(usize),
}

struct Service {
    device: Device,
    len: usize,
    rows: usize,
    rounds: usize,
    time: Duration,
    deadline: Duration,
}

struct Served {
    /// Requests a second.
    rate: f64,
    /// The times of all requests, the shortest first.
    seconds: Vec<f64>,
    refused: usize,
    up_mib: u64,
    down_mib: u64,
    call_count: u64,
    call_ms: f64,
}

impl std::fmt::Display for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |part: f64| {
            let at = (self.seconds.len() as f64 * part) as usize;
            1e3 * self.seconds.get(at.min(self.seconds.len().saturating_sub(1))).copied().unwrap_or(0.0)
        };
        let count = self.seconds.len().max(1) as u64;
        write!(
            f,
            "{:.1} requests a second, half within {:.0} ms, 99 of 100 within {:.0} ms, the slowest {:.0} ms, {} refused; a request moves {} MiB up, {} MiB down, with {} driver calls of the pool in {:.1} ms",
            self.rate,
            part(0.5),
            part(0.99),
            part(1.0),
            self.refused,
            self.up_mib / count,
            self.down_mib / count,
            self.call_count / count,
            self.call_ms / count as f64
        )
    }
}

/// The matrices of a session, and what it remembers between its requests.
struct Session {
    weights: Vec<Matrix>,
    memory: Matrix,
}

impl Service {
    fn matrix_bytes(&self) -> u64 {
        (self.len * self.len * 2) as u64
    }

    /// A product, and what a session remembers.
    fn row_bytes(&self) -> u64 {
        (self.rows * self.len * 2) as u64
    }

    fn session_bytes(&self) -> u64 {
        WEIGHTS as u64 * self.matrix_bytes() + self.row_bytes()
    }

    fn request_bytes(&self) -> u64 {
        self.session_bytes() + 4 * self.row_bytes()
    }

    fn limit_bytes(&self) -> u64 {
        (SESSIONS as u64 * self.session_bytes()).div_ceil(3)
    }

    fn run(&self, admission: Admission, is_limited: bool) -> Result<Served, Box<dyn Error>> {
        let mut builder = Pool::builder(&self.device);
        if is_limited {
            let host_bytes = (SESSIONS as u64 + 2) * self.session_bytes();
            builder = builder.hard_limit(self.limit_bytes()).spill(Spill::to_host(host_bytes));
        }
        let pool = builder.build()?;
        let gpu = Gpu::new(&pool)?;
        let start = Matrix::from_elem(&gpu, (self.rows, self.len), bf16::ONE)?;
        let (begin, gate) = (Barrier::new(SESSIONS + 1), Gate::default());
        let (served, took, before) = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..SESSIONS)
                .map(|index| {
                    let (begin, gate, start, gpu) = (&begin, &gate, &start, &gpu);
                    scope.spawn(move || self.client(index, gpu, start, admission, begin, gate))
                })
                .collect();
            begin.wait(); // Each client has had some requests.
            let (began, before) = (Instant::now(), pool.status().map(|status| status.counters));
            let served: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
            (served, began.elapsed().as_secs_f64(), before)
        });
        let (mut seconds, mut refused) = (Vec::new(), 0);
        for client in served {
            let (of_client, refusals) =
                client.map_err(|_| "a client panicked")?.map_err(|error| error as Box<dyn Error>)?;
            seconds.extend(of_client);
            refused += refusals;
        }
        seconds.sort_by(f64::total_cmp);
        let (before, after) = (before?, pool.status()?.counters);
        Ok(Served {
            rate: seconds.len() as f64 / took,
            seconds,
            refused,
            up_mib: (after.spilled_up_bytes - before.spilled_up_bytes) >> 20,
            down_mib: (after.spilled_down_bytes - before.spilled_down_bytes) >> 20,
            call_count: after.driver_call_count - before.driver_call_count,
            call_ms: 1e3 * (after.driver_call_time - before.driver_call_time).as_secs_f64(),
        })
    }

    /// The seconds of each request, and how many were refused.
    fn client(
        &self,
        index: usize,
        gpu: &Gpu,
        start: &Matrix,
        admission: Admission,
        begin: &Barrier,
        gate: &Gate,
    ) -> Result<(Vec<f64>, usize), Box<dyn Error + Send + Sync>> {
        let gpu = gpu.fork()?;
        let tag = gpu.pool().tag(&format!("session {index}"));
        let blas = Cublas::new(&gpu)?;
        let mut session: Option<Session> = None;
        let mut request = |deadline: Duration| -> Result<(), Box<dyn Error + Send + Sync>> {
            let (room, _turn) = match admission {
                Admission::Room => {
                    let room = gpu.pool().room(self.request_bytes()).tag(&tag).within(deadline).wait()?;
                    (Some(room), None)
                }
                Admission::Fixed(count) => (None, Some(gate.enter(count))),
            };
            let _drawing = room.as_ref().map(|room| room.scope());
            if session.is_none() {
                let value = bf16::from_f32(1.0 / self.len as f32);
                let weights = (0..WEIGHTS).map(|_| Matrix::from_elem(&gpu, (self.len, self.len), value));
                let memory = Matrix::zeros(&gpu, (self.rows, self.len))?;
                session = Some(Session { weights: weights.collect::<Result<_, _>>()?, memory });
            }
            let Some(Session { weights, memory }) = &mut session else { return Ok(()) };
            let mut x: Option<Matrix> = None;
            for weight in (0..self.rounds).flat_map(|_| weights.iter()) {
                x = Some(blas.dot(x.as_ref().unwrap_or(start), weight)?);
            }
            let x = x.ok_or("no weights")?;
            memory.try_add_assign(&x)?;
            let first = x.slice(s![0..1, 0..1])?.to_vec()?;
            assert!(first.iter().all(|first| (f32::from(*first) - 1.0).abs() < 0.2), "{first:?}");
            Ok(())
        };
        // The first ones make the session, and pin host memory for all of its contents.
        let first = (0..WARM_UP).try_for_each(|_| request(Duration::from_secs(60)));
        begin.wait();
        first?;
        let (began, mut seconds, mut refused) = (Instant::now(), Vec::new(), 0);
        while began.elapsed() < self.time {
            let arrived = Instant::now();
            match request(self.deadline) {
                Ok(()) => seconds.push(arrived.elapsed().as_secs_f64()),
                Err(_) => refused += 1,
            }
        }
        Ok((seconds, refused))
    }
}

/// Lets some requests in at a time, in the order of their arrival.
#[derive(Default)]
struct Gate {
    /// The next ticket, and the number of requests that have ended.
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

struct Inside<'a>(&'a Gate);

impl Gate {
    fn enter(&self, count: usize) -> Inside<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = state.0;
        state.0 += 1;
        while ticket >= state.1 + count {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Inside(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).1 += 1;
        self.0.changed.notify_all();
    }
}

const SESSIONS: usize = 16;
/// The requests of a client before the time is taken.
const WARM_UP: usize = 4;
/// Matrices of a session.
const WEIGHTS: usize = 6;
