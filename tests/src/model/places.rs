//! The threads of a running case. Operations move between them; one thread runs at a time.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The case's own thread.
    Here,
    /// A second, persistent thread.
    Other,
    /// A new thread that ends after the operation.
    OfItsOwn,
}

/// The persistent thread, started at its first job.
#[derive(Default)]
pub(super) struct Other {
    running: Option<(Sender<Job>, JoinHandle<()>)>,
}

type Job = Box<dyn FnOnce() + Send>;

/// A job of another thread.
pub(super) struct Pending<R>(Receiver<R>);

impl Other {
    /// Starts a job on the thread.
    pub(super) fn start<R: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Pending<R> {
        let (done, receiver) = channel();
        let job = Box::new(move || {
            // The receiver may be gone.
            let _ = done.send(work());
        });
        // If the thread has panicked, the job is dropped, and `wait` reports the closed channel.
        let _ = self.sender().send(job);
        Pending(receiver)
    }

    /// Ends the thread and joins it.
    pub(super) fn end(&mut self) -> Result<(), String> {
        let Some((jobs, thread)) = self.running.take() else { return Ok(()) };
        drop(jobs);
        thread.join().map_err(|_| "the other thread panicked".to_string())
    }

    fn sender(&mut self) -> &Sender<Job> {
        let run = || {
            let (jobs, receiver) = channel::<Job>();
            (jobs, std::thread::spawn(move || receiver.iter().for_each(|job| job())))
        };
        &self.running.get_or_insert_with(run).0
    }
}

impl<R> Pending<R> {
    /// Waits for the result.
    pub(super) fn wait(self) -> Result<R, String> {
        self.0.recv_timeout(HANG).map_err(|error| match error {
            RecvTimeoutError::Timeout => "another thread hangs".into(),
            RecvTimeoutError::Disconnected => "another thread panicked".into(),
        })
    }
}

/// Runs a job on a new thread and waits for it.
pub(super) fn of_its_own<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, String> {
    std::thread::spawn(work).join().map_err(|_| "another thread panicked".into())
}

/// Longer than any operation of a pool takes.
const HANG: Duration = Duration::from_secs(20);
