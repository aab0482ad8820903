//! The pool through its public interface, on the simulator. Most tests run with every backend that is built in, under several
//! seeds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "libtest shows it with the failed test")]

mod adaptors;
#[cfg(feature = "backend-native")]
mod blocks;
mod borrows;
mod call_counter;
mod captures;
mod conf;
mod contents;
mod contexts;
mod counters;
#[cfg(feature = "backend-native")]
mod current;
mod default;
mod devices;
mod environment;
mod exit;
mod failing_calls;
mod failing_drops;
mod faults;
mod features;
mod fixture;
mod flight;
mod futures;
mod growable;
mod held;
mod integrated;
mod kinds;
mod largest;
mod leaks;
mod limits;
mod names;
mod objects;
mod out_of_memory;
#[cfg(feature = "backend-caching")]
mod part;
mod peers;
mod points;
mod private;
#[cfg(feature = "backend-caching")]
mod profiles;
mod reclaim;
mod refused_calls;
mod reports;
mod reservations;
mod room;
mod scopes;
#[cfg(feature = "backend-caching")]
mod segments;
mod service;
mod shortage;
mod situations;
#[cfg(feature = "backend-caching")]
mod sleep;
#[cfg(all(feature = "status-socket", target_os = "linux"))]
mod status_socket;
mod streams;
mod thread_ends;
mod threads;
mod trace;
#[cfg(feature = "tracing")]
mod tracing;
mod verdicts;
