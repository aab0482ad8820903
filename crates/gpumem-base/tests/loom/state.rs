//! The end of a pool happens once, after all uses by its threads.

use gpumem_base::sync::Lifetime;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// A pool with a backend that counts live blocks until it is closed.
struct Pool {
    lifetime: Lifetime,
    backend: Mutex<Option<u64>>,
    /// Written by each thread before it counts, with relaxed order.
    touched: [AtomicBool; 3],
    end_count: AtomicU64,
}

impl Pool {
    /// `by_backend` live blocks are counted by the backend, the others are not.
    fn new(by_backend: u64, others: u64) -> Arc<Self> {
        let lifetime = Lifetime::new();
        (0..others).for_each(|_| lifetime.count_in());
        let touched = [(); 3].map(|()| AtomicBool::new(false));
        let (backend, end_count) = (Mutex::new(Some(by_backend)), AtomicU64::new(0));
        Arc::new(Self { lifetime, backend, touched, end_count })
    }

    fn free(&self, index: usize) {
        self.touched[index].store(true, Ordering::Relaxed);
        let counted = self.backend.lock().unwrap().as_mut().map(|alive| *alive -= 1).is_some();
        if !counted && self.lifetime.count_off() {
            self.end();
        }
    }

    fn free_uncounted(&self, index: usize) {
        self.touched[index].store(true, Ordering::Relaxed);
        if self.lifetime.count_off() {
            self.end();
        }
    }

    fn drop_handle(&self, index: usize) {
        self.touched[index].store(true, Ordering::Relaxed);
        if self.lifetime.drop_handle() {
            let alive = self.backend.lock().unwrap().take().unwrap();
            if self.lifetime.close(alive) {
                self.end();
            }
        }
    }

    fn end(&self) {
        assert!(self.touched.iter().all(|touched| touched.load(Ordering::Relaxed)));
        assert_eq!(self.end_count.fetch_add(1, Ordering::Relaxed), 0);
    }
}

/// Three threads have too many interleavings: only those with at most three preemptions are explored, or `LOOM_MAX_PREEMPTIONS`.
fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(body);
}

fn race(pool: &Arc<Pool>, parts: [fn(&Pool); 3]) {
    let threads = parts.map(|part| {
        let pool = Arc::clone(pool);
        thread::spawn(move || part(&pool))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(pool.end_count.load(Ordering::Relaxed), 1);
}

#[test]
fn the_last_of_handle_and_counted_blocks_ends_the_pool() {
    model(|| {
        let pool = Pool::new(2, 0);
        race(&pool, [|pool| pool.drop_handle(0), |pool| pool.free(1), |pool| pool.free(2)]);
    });
}

#[test]
fn the_last_of_two_handles_and_an_uncounted_block_ends_the_pool() {
    model(|| {
        let pool = Pool::new(0, 1);
        pool.lifetime.add_handle();
        race(&pool, [|p| p.drop_handle(0), |p| p.drop_handle(1), |p| p.free_uncounted(2)]);
    });
}
