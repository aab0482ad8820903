//! Reads a trace: text, a recording of gpumem, a snapshot of PyTorch or a log of RMM, compressed or not, distinguished by its first bytes.
//! Lines and records are bounded. A snapshot is a pickle, of which only numbers, texts, lists and dictionaries are read; nothing in it is called.

mod lines;
mod pickle;
mod python_stacks;
mod pytorch;
mod recorded;
mod rmm;
mod streams;
mod text;

use crate::error::{Problem, TraceError};
use crate::trace::Trace;
use flate2::bufread::MultiGzDecoder;
use gpumem_pool::trace::{Recording, is_trace};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

impl Trace {
    /// Reads a file: a recording of gpumem, a memory snapshot of PyTorch, a log of RMM, or a trace in text, each also compressed with gzip.
    /// The first bytes tell which. The parts of a recording with a size limit, and what was live before them, become one trace.
    ///
    /// ```
    /// use gpumem_trace::Trace;
    /// use gpumem_trace::pool::trace::Trace as Recorder;
    /// use gpumem_trace::pool::{Device, Pool, Stream};
    ///
    /// # let path = std::env::temp_dir().join(format!("gpumem-doc-read-{}.trace", std::process::id()));
    /// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).adaptor(Recorder::create(&path)?).build()?;
    /// drop(pool.alloc(4096, &Stream::new(&device)?)?);
    /// drop(pool);
    ///
    /// let trace = Trace::read(&path)?;
    /// assert_eq!((trace.operation_count(), trace.peaks().live_bytes), (2, 4096));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TraceError`] with the line: the file cannot be read or is damaged, is not a trace of format 1, or its events contradict
    /// each other.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let failed = |problem| TraceError { file: path.into(), line: 0, problem };
        let file = File::open(path).map_err(|error| failed(Problem::Io(error)))?;
        let mut source = BufReader::with_capacity(1 << 16, file);
        if source.fill_buf().is_ok_and(is_trace) {
            // By its path, with the earlier parts beside it.
            let recording = Recording::read(path).map_err(|error| failed(error.into()))?;
            return recorded::convert(recording, stem(path)).map_err(failed);
        }
        Self::read_from(source, path)
    }

    /// Reads a trace from a reader. Errors name `path`, and its stem is the name of the trace if the header has none.
    ///
    /// ```
    /// use gpumem_trace::{Event, Trace};
    ///
    /// let log = "Thread,Time,Action,Pointer,Size,Stream\n7,10:00:00.000000,allocate,0x7f0000000000,1000,0x0\n";
    /// let trace = Trace::read_from(log.as_bytes(), "rmm.csv")?;
    /// assert_eq!(trace.events(), [Event::Alloc { slot: 0, stream: 0, size_bytes: 1000 }]);
    /// # Ok::<(), gpumem_trace::TraceError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::read`].
    pub fn read_from(mut source: impl BufRead, path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let mut line = 1;
        let trace = match source.fill_buf().map(|bytes| bytes.starts_with(&GZIP_MAGIC)) {
            Err(error) => Err(Problem::Io(error)),
            Ok(true) => read_uncompressed(BufReader::new(MultiGzDecoder::new(source)), path, &mut line),
            Ok(false) => read_uncompressed(source, path, &mut line),
        };
        trace.map_err(|problem| TraceError { file: path.into(), line, problem })
    }
}

fn read_uncompressed(mut source: impl BufRead, path: &Path, line: &mut u64) -> Result<Trace, Problem> {
    let start = source.fill_buf().map_err(lines::problem_of)?;
    match start {
        start if is_trace(start) => recorded::read(source, stem(path)),
        start if pytorch::is_snapshot(start) => pytorch::read(source, stem(path)),
        start if rmm::is_log(start) => rmm::read(source, stem(path), line),
        _ => text::read(source, stem(path), line),
    }
}

/// Returns `x` for `some/x.csv.gz`.
fn stem(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("trace");
    name.split('.').next().unwrap_or(name)
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

#[cfg(test)]
mod tests;
