//! Samples of all processes, one after another.

use super::client::Client;
use super::find::Places;
use super::snapshot::Process;
use serde_json::json;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// One sample of each process.
pub(super) fn once(places: &Places) -> Vec<Process> {
    Sampler::new(places.clone()).sample()
}

/// Sends samples until the receiver is dropped. A thread of its own: a process that does not answer must not stop the screen.
pub(super) fn start(places: Places) -> Receiver<Vec<Process>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || send(places, &sender));
    receiver
}

fn send(places: Places, sender: &Sender<Vec<Process>>) {
    let mut sampler = Sampler::new(places);
    loop {
        let start = Instant::now();
        if sender.send(sampler.sample()).is_err() {
            return;
        }
        std::thread::sleep(PERIOD.saturating_sub(start.elapsed()));
    }
}

struct Sampler {
    places: Places,
    clients: HashMap<PathBuf, Client>,
    /// Processes that did not answer, until when they are not asked, and the problem.
    silent: HashMap<PathBuf, (Instant, String)>,
}

impl Sampler {
    fn new(places: Places) -> Self {
        Self { places, clients: HashMap::new(), silent: HashMap::new() }
    }

    fn sample(&mut self) -> Vec<Process> {
        let sockets = self.places.sockets();
        self.clients.retain(|path, _| sockets.contains(path));
        self.silent.retain(|path, _| sockets.contains(path));
        let processes = sockets.into_iter().map(|path| self.ask(path));
        processes
            .collect::<Vec<_>>()
            .into_iter()
            .filter(|one| one.is_silent() || self.places.wants(one.pid()))
            .collect()
    }

    fn ask(&mut self, path: PathBuf) -> Process {
        if let Some((until, problem)) = self.silent.get(&path)
            && Instant::now() < *until
        {
            return Process::silent(path, problem);
        }
        let client = match self.clients.remove(&path) {
            Some(client) => Ok(client),
            None => Client::connect(&path, TIMEOUT).map_err(anyhow::Error::from),
        };
        let answer = client.and_then(|mut client| {
            let answer = client.ask(&json!({ "do": "status" }))?;
            self.clients.insert(path.clone(), client);
            Ok(answer)
        });
        match answer {
            Ok(value) => {
                self.silent.remove(&path);
                Process::new(path, value)
            }
            Err(error) => {
                let problem = format!("{error:#}");
                self.silent.insert(path.clone(), (Instant::now() + SILENCE, problem.clone()));
                Process::silent(path, &problem)
            }
        }
    }
}

const PERIOD: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long a process that did not answer is left alone.
const SILENCE: Duration = Duration::from_secs(5);
