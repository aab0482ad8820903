//! The threads of a running case: operations move between them, and one runs at a time.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// On which thread something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the case's own.
    Here,
    /// On another that stays.
    Other,
    /// On a new one that ends afterwards.
    OfItsOwn,
}

/// The thread that stays, once it is wanted.
#[derive(Default)]
pub(super) struct Other {
    running: Option<(Sender<Job>, JoinHandle<()>)>,
}

type Job = Box<dyn FnOnce() + Send>;

/// What a thread is about to have done.
pub(super) struct Pending<R>(Receiver<R>);

impl Other {
    /// Has work done there.
    pub(super) fn start<R: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Pending<R> {
        let (done, receiver) = channel();
        let job = Box::new(move || {
            // Nobody may be waiting for it any more.
            let _ = done.send(work());
        });
        // A thread that has died drops the job, which whoever waits for it sees.
        let _ = self.sender().send(job);
        Pending(receiver)
    }

    /// Ends the thread, and waits for its end.
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
    /// Waits for it.
    pub(super) fn wait(self) -> Result<R, String> {
        self.0.recv_timeout(HANG).map_err(|error| match error {
            RecvTimeoutError::Timeout => "another thread hangs".into(),
            RecvTimeoutError::Disconnected => "another thread panicked".into(),
        })
    }
}

/// Has work done on a thread of its own.
pub(super) fn of_its_own<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, String> {
    std::thread::spawn(work).join().map_err(|_| "another thread panicked".into())
}

/// Nothing that a pool does takes as long.
const HANG: Duration = Duration::from_secs(20);
