//! Pages, pictures and events of generated traces. What a page holds is read again, number by number.

use super::data::Map;
use super::{page, page_beside, perfetto, svg};
use flate2::read::DeflateDecoder;
use gpumem_trace::pool::trace::Trace as Recorder;
use gpumem_trace::pool::{Device, Pool, Stream};
use gpumem_trace::{Event, Trace};
use serde_json::Value;
use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

pub(super) const HOSTILE: &str =
    "</script><script>window.harmed=1</script><img src=x onerror=window.harmed=2>{{js}}&\u{202e}\u{7}'\"";

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gpumem-view-{}-{name}", std::process::id()))
}

fn page_of(trace: &Trace) -> String {
    let mut bytes = Vec::new();
    page::write(trace, Path::new("some/<b>run.trace"), &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn text(events: &str) -> Trace {
    Trace::read_from(format!("#{{\"format\":1,\"name\":\"small\"}}\n{events}").as_bytes(), "small.csv")
        .unwrap()
}

/// A program with tags, of which one has a hostile name; two streams; a deferred free; a refused request.
pub(super) fn recorded(name: &str, steps: u64) -> Trace {
    let path = scratch(name);
    let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(), 0).unwrap();
    let builder = Pool::builder(&device).hard_limit(256 << 20);
    let pool = builder.adaptor(Recorder::create(&path).unwrap()).build().unwrap();
    let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let weights = pool.scope("weights");
    let mut kept: Vec<_> = (0..8).map(|_| pool.alloc(4 << 20, &home).unwrap()).collect();
    drop(weights);
    for step in 0..steps {
        let _scope = pool.scope(if step % 2 == 0 { "forward" } else { HOSTILE });
        let used = pool.alloc(1000 * (1 + step % 50), &home).unwrap();
        if step % 3 == 0 {
            other.wait_for(&home).unwrap();
            used.record_use(&other);
        }
        drop(used);
        if step % 10 == 0 {
            kept.push(pool.alloc(200_000, &other).unwrap());
        }
    }
    {
        let _scope = pool.scope(HOSTILE);
        assert!(pool.alloc(300 << 20, &home).is_err());
    }
    drop((kept, pool));
    let trace = Trace::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    trace
}

/// The text of an element by its id.
fn element<'a>(page: &'a str, id: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("id=\"{id}\">")).unwrap();
    rest.split_once("</script>").unwrap().0
}

fn meta(page: &str) -> Value {
    serde_json::from_str(element(page, "meta")).unwrap()
}

/// Reads the columns of a page.
fn columns(page: &str) -> HashMap<String, Vec<u64>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut packed = Vec::new();
    for chunk in element(page, "data").as_bytes().chunks(4) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 6 | u32::from(digit(*byte)));
        let count = 3 - chunk.iter().filter(|byte| **byte == b'=').count();
        packed.extend(&bits.to_be_bytes()[1..=count]);
    }
    let mut bytes = Vec::new();
    DeflateDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    let mut bytes = bytes.into_iter();
    let mut number = || {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = bytes.next().unwrap();
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    let meta = meta(page);
    let index = meta["columns"].as_array().unwrap().iter();
    let columns = index.map(|entry| {
        let name = entry[0].as_str().unwrap();
        let mut last = 0_i64;
        let numbers = (0..entry[1].as_u64().unwrap()).map(|_| {
            let value = number();
            if ["times", "addresses", "reservedSince"].contains(&name) {
                last += (value >> 1) as i64 ^ -((value & 1) as i64);
                return last as u64;
            }
            value
        });
        (name.to_string(), numbers.collect())
    });
    let columns = columns.collect();
    assert_eq!(bytes.next(), None);
    columns
}

#[test]
fn a_page_has_all_events_and_blocks() {
    let trace = recorded("all", 300);
    let page = page_of(&trace);
    let (columns, meta) = (columns(&page), meta(&page));
    let map = Map::of(&trace);
    let mut frees = columns["ago"].iter();
    let (mut block, mut of_slots) = (0, HashMap::new());
    for (index, event) in trace.events().iter().enumerate() {
        assert_eq!(columns["times"][index], trace.time_ns(index).unwrap());
        let kind = columns["kinds"][index];
        match *event {
            Event::Alloc { stream, size_bytes, .. } | Event::Refused { stream, size_bytes } => {
                assert_eq!(kind, if matches!(event, Event::Alloc { .. }) { 0 } else { 4 });
                assert_eq!(
                    (columns["sizes"][block], columns["streams"][block]),
                    (size_bytes, u64::from(stream))
                );
                let address = trace.origin(index).address;
                let base = u64::from_str_radix(meta["base"].as_str().unwrap(), 16).unwrap();
                assert_eq!(columns["addresses"][block], if address == 0 { 0 } else { address - base + 1 });
                let holder = meta["holders"][columns["holders"][block] as usize].as_str().unwrap();
                let tag = trace.tags()[trace.origin(index).tag.unwrap() as usize].tag.as_deref().unwrap();
                assert_eq!(
                    holder.chars().take(5).collect::<String>(),
                    tag.chars().take(5).collect::<String>()
                );
                if let Event::Alloc { slot, .. } = event {
                    of_slots.insert(*slot, block);
                }
                block += 1;
            }
            Event::Free { slot } | Event::FreeUsed { slot } | Event::Complete { slot } => {
                assert_eq!(block - 1 - *frees.next().unwrap() as usize, of_slots[&slot]);
            }
        }
    }
    assert!(columns["kinds"].contains(&2) && columns["kinds"].contains(&3), "deferred frees are there");
    let reserved: Vec<_> =
        columns["reservedSince"].iter().copied().zip(columns["reserved"].iter().copied()).collect();
    assert!(
        !reserved.is_empty()
            && reserved.iter().map(|(_, bytes)| *bytes).max() == trace.real_run().peak_reserved_bytes
    );
    assert_eq!((meta["limit"].as_u64(), meta["byTag"].as_bool()), (Some(256 << 20), Some(true)));
    let places = columns["addresses"].iter().zip(&columns["sizes"]).filter(|(place, _)| **place > 0);
    for (place, size_bytes) in places {
        let is_inside = |region: &&(u64, u64)| region.0 < *place && place - 1 + size_bytes <= region.1;
        assert!(map.regions.iter().any(|region| is_inside(&region)), "every block is in a region");
    }
}

#[test]
fn no_text_of_the_record_is_html() {
    let trace = recorded("hostile", 40);
    let page = page_of(&trace);
    assert_eq!(page.matches("<script").count(), 3, "meta, data, script");
    assert_eq!(page.matches("</script>").count(), 3);
    assert!(!page.contains("<img") && page.contains("&lt;b&gt;") == page.contains("&lt;b&gt;run"));
    let names = meta(&page)["holders"].to_string();
    assert!(names.contains("</script>"), "the name is data: {names}");
    let picture = svg::picture(&trace);
    assert!(!picture.contains("<script") && !picture.contains("<img") && picture.contains("&lt;/script&gt;"));
    assert_eq!(page::escaped("a<b>\u{7}\n\"'&"), "a&lt;b&gt;\u{fffd} &quot;&#39;&amp;");
}

#[test]
fn small_empty_and_cut_records_have_pages() {
    for (events, count) in [("", 0), ("a,1,300,0\n", 1), ("a,1,300,0\nf,1,0\n", 2), ("a,1,0,0\n", 1)] {
        let trace = text(events);
        let page = page_of(&trace);
        let columns = columns(&page);
        assert_eq!((columns["kinds"].len(), columns["times"].len()), (count, 0));
        assert!(!columns.contains_key("addresses") && page.trim_end().ends_with("</html>"));
        let picture = svg::picture(&trace);
        assert!(
            picture.starts_with("<svg") && picture.ends_with("</svg>\n") && !picture.contains("NaN"),
            "{picture}"
        );
        let mut bytes = Vec::new();
        perfetto::write(&trace, &mut bytes).unwrap();
        assert!(serde_json::from_slice::<Value>(&bytes).unwrap()["traceEvents"].is_array());
    }
    let sizes = text("a,1,18446744073709551615,0\nf,1,0\n");
    assert_eq!(columns(&page_of(&sizes))["sizes"], [(1 << 53) - 1], "what JavaScript can hold");
    assert!(!svg::picture(&sizes).contains("NaN"));
}

/// Each counter ends with what is live, and its highest value is its peak.
#[test]
fn counters_and_refusals_are_events_of_perfetto() {
    let trace = recorded("perfetto", 200);
    let mut bytes = Vec::new();
    perfetto::write(&trace, &mut bytes).unwrap();
    let all: Value = serde_json::from_slice(&bytes).unwrap();
    let events = all["traceEvents"].as_array().unwrap();
    let highest = |name: &str| {
        let own = events.iter().filter(|event| event["name"] == name && event["ph"] == "C");
        own.map(|event| event["args"]["bytes"].as_u64().unwrap()).max()
    };
    assert_eq!(highest("live"), Some(trace.peaks().live_bytes));
    assert_eq!(highest("weights"), Some(32 << 20));
    assert_eq!(
        (highest("reserved"), highest("limit")),
        (trace.real_run().peak_reserved_bytes, Some(256 << 20))
    );
    let refused: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!((refused.len(), refused[0]["args"]["bytes"].as_u64()), (1, Some(300 << 20)));
    let times =
        events.iter().filter(|event| event["name"] == "live").map(|event| event["ts"].as_f64().unwrap());
    assert!(times.is_sorted());
}

#[test]
fn a_page_is_written_beside_its_record() {
    for (file, page) in [
        ("a/run.trace.gz", "a/run.html"),
        ("run", "run.html"),
        ("run.html", "run.view.html"),
        (".x", "x.html"),
    ] {
        assert_eq!(page_beside(Path::new(file)), Path::new(page));
    }
}

/// Pages in a headless Chromium, if there is one.
#[test]
fn a_browser_can_use_the_pages() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/view.py");
    let traces = [
        ("recorded", recorded("browser", 2000)),
        ("empty", text("")),
        ("one", text("a,1,300,0\n")),
        ("untagged", text("a,1,300,0\na,2,50,1\nf,1,0\na,3,800,1\n")),
    ];
    let pages = traces.map(|(name, trace)| {
        let path = scratch(&format!("{name}.html"));
        std::fs::write(&path, page_of(&trace)).unwrap();
        path
    });
    let output = std::process::Command::new("python3").arg(script).args(&pages).output();
    let skip = |reason: &str| _ = crate::output::print(&format!("skipped: {reason}\n"));
    match output {
        Err(error) => skip(&format!("python3 cannot be started: {error}")),
        Ok(output) if output.status.code() == Some(77) => skip("no Chromium is installed"),
        Ok(output) => {
            let text =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            assert!(output.status.success(), "{text:?}");
        }
    }
    pages.iter().for_each(|page| std::fs::remove_file(page).unwrap());
}
