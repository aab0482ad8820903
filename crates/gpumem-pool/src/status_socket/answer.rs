//! The answers to requests.

use super::request::{Ask, REQUESTS};
use crate::config::{Limit, PoolId};
use crate::error::PoolError;
use crate::pool::listing::Listing;
use crate::stats::{Status, prometheus_text};
use crate::trace::{Flight, Tap};
use gpumem_device::{Device, MemoryInfo};
use gpumem_sys::text::Shown;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The answer to a line, with its end.
pub(super) fn to_line(line: &str) -> String {
    match Ask::parse(line).and_then(answer) {
        Ok(Answer::Json(value)) => format!("{value}\n"),
        // A line, or lines without an empty one.
        Ok(Answer::Text(text)) => text + "\n",
        Err(problem) => error(&problem),
    }
}

/// The answer to a request of HTTP, of which `line` is the first line.
pub(super) fn to_http(line: &str) -> String {
    let path = line.split(' ').nth(1).unwrap_or_default();
    let (code, kind, body) = match path.split('?').next() {
        _ if !line.starts_with("GET ") => {
            ("405 Method Not Allowed", "text/plain", "there is GET only\n".into())
        }
        Some("/metrics") => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics()),
        Some("/status" | "/") => ("200 OK", "application/json", format!("{}\n", status())),
        _ => ("404 Not Found", "text/plain", "there are /metrics and /status\n".into()),
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// An answer that states a problem.
pub(super) fn error(problem: &str) -> String {
    format!("{}\n", json!({ "error": problem }))
}

enum Answer {
    Json(Value),
    Text(String),
}

fn answer(ask: Ask) -> Result<Answer, String> {
    Ok(Answer::Json(match ask {
        Ask::Status => return Ok(Answer::Text(status())),
        Ask::Prometheus => return Ok(Answer::Text(metrics())),
        Ask::Record(path) => {
            let started = Tap::shared().start(&path).map_err(|error| error.to_string())?;
            json!({
                "ok": true,
                "path": started.path,
                "pools": started.pool_count,
                "live_blocks": started.live_count,
            })
        }
        Ask::Stop => {
            let stopped = Tap::shared().stop().map_err(|error| error.to_string())?;
            json!({
                "ok": true,
                "path": stopped.path,
                "dropped_events": stopped.dropped_count,
                "is_whole": stopped.is_whole,
            })
        }
        Ask::Flight => flight()?,
        Ask::Limit { pool, is_hard, limit } => set_limit(&pool, is_hard, &limit)?,
        Ask::Help => json!({ "ok": true, "requests": REQUESTS }),
    }))
}

/// What `status` is answered.
#[derive(Serialize)]
struct ProcessStatus {
    ok: bool,
    pid: u32,
    program: &'static str,
    version: &'static str,
    uptime_seconds: f64,
    recording: Option<PathBuf>,
    flight_recorders: usize,
    pools: Vec<PoolStatus>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PoolStatus {
    Known(Box<Status>),
    /// What prevents it, as on a lost device.
    Unknown {
        id: PoolId,
        name: String,
        error: String,
    },
}

fn status() -> String {
    let status = ProcessStatus {
        ok: true,
        pid: std::process::id(),
        program: program(),
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: started().elapsed().as_secs_f64(),
        recording: Tap::shared().path(),
        flight_recorders: Flight::count(),
        pools: pool_statuses(),
    };
    serde_json::to_string(&status).unwrap_or_else(|error| json!({ "error": error.to_string() }).to_string())
}

/// The status of each pool. Each device is asked for its memory once.
fn pool_statuses() -> Vec<PoolStatus> {
    let pools = Listing::of_process().live();
    let mut devices: Vec<(&Device, Result<MemoryInfo, PoolError>)> = Vec::new();
    let status = |pool: &Listing, info: Result<MemoryInfo, PoolError>| match info
        .and_then(|info| pool.status_on(info))
    {
        Ok(status) => PoolStatus::Known(Box::new(status)),
        Err(error) => {
            PoolStatus::Unknown { id: pool.id(), name: pool.name().into(), error: error.to_string() }
        }
    };
    let mut statuses = Vec::with_capacity(pools.len());
    for pool in &pools {
        let known = devices.iter().find(|(device, _)| *device == pool.device());
        let info = match known {
            Some((_, info)) => info.clone(),
            None => {
                let info = pool.device().memory_info().map_err(PoolError::from);
                devices.push((pool.device(), info.clone()));
                info
            }
        };
        statuses.push(status(pool, info));
    }
    statuses
}

/// Pools that cannot be asked have no lines.
fn metrics() -> String {
    let known = |status| match status {
        PoolStatus::Known(status) => Some(*status),
        PoolStatus::Unknown { .. } => None,
    };
    let statuses: Vec<Status> = pool_statuses().into_iter().filter_map(known).collect();
    prometheus_text(&statuses)
}

fn flight() -> Result<Value, String> {
    let written = Flight::write_all();
    if written.is_empty() {
        return Err("no pool of this process has a flight recorder; start it with GPUMEM_FLIGHT_RECORDER=on, or record from now with `record PATH`".into());
    }
    let paths = written.into_iter().collect::<Result<Vec<_>, _>>();
    paths.map(|paths| json!({ "ok": true, "paths": paths })).map_err(|problem| {
        format!("the flight record cannot be written ({problem}); make room there, or set GPUMEM_FLIGHT_RECORDER to another path")
    })
}

fn set_limit(pool: &str, is_hard: bool, limit: &str) -> Result<Value, String> {
    let pool = find(pool)?;
    let said = |error: PoolError| error.to_string();
    let limit: Limit = limit.parse().map_err(|error: crate::config::ConfigError| error.to_string())?;
    let limit_bytes = pool.resolve(limit, is_hard).map_err(said)?;
    let set = match is_hard {
        true => pool.set_hard_limit(limit_bytes, || ()),
        false => pool.set_soft_limit(limit_bytes),
    };
    set.map_err(said)?;
    let kind = if is_hard { "hard" } else { "soft" };
    Ok(json!({ "ok": true, "pool": pool.name(), "id": pool.id(), "kind": kind, "limit_bytes": limit_bytes }))
}

/// The pool with a number or a name.
fn find(pool: &str) -> Result<Arc<Listing>, String> {
    let pools = Listing::of_process().live();
    let (number, shown) = (pool.parse().ok(), Shown::name(pool));
    let mut found = pools.iter().filter(|one| number == Some(one.id().number()));
    if let Some(found) = found.next() {
        return Ok(Arc::clone(found));
    }
    let mut named = pools.iter().filter(|one| one.name() == pool);
    match (named.next(), named.next()) {
        (Some(found), None) => Ok(Arc::clone(found)),
        (Some(_), Some(_)) => {
            Err(format!("several pools are named {shown}; give the number of one, its \"id\" in `status`"))
        }
        (None, _) => Err(format!("there is no pool {shown}; `status` lists the pools")),
    }
}

/// The name of the program, as the system states it.
fn program() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let path = std::env::current_exe().ok();
        let name = path.as_deref().and_then(|path| path.file_name());
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    })
}

/// The moment when the socket was first asked for.
pub(super) fn started() -> Instant {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    *STARTED.get_or_init(Instant::now)
}
