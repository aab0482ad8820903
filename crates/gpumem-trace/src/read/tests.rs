//! Tests of valid and invalid files.

use crate::error::TraceError;
use crate::trace::{Event, Peaks, Trace};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use std::io::Write as _;

const HEADER: &str = "#{\"format\":1,\"name\":\"small\",\"run_seconds\":0.5,\"events\":7,\"peak_live_bytes\":30,\
    \"peak_live_bytes_incl_deferred\":50,\"peak_reserved_bytes\":{\"pytorch_native\":100,\"other\":60},\"unheard_of\":[1]}";

fn read(text: &[u8]) -> Result<Trace, TraceError> {
    Trace::read_from(text, "folder/small.csv.gz")
}

fn events(text: &str) -> Result<Trace, TraceError> {
    read(format!("{HEADER}\n{text}").as_bytes())
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// `a`, then its free with and without a `c` line, an id that is used again, and a block that is never freed.
const SMALL: &str = "a,7,20,0\na,9,10,3\nf,7,0\na,8,20,3\nc,7\nf,9,3\na,9,5,3\n";

#[test]
fn a_trace_is_read_as_text_and_compressed() {
    let text = format!("{HEADER}\n{SMALL}");
    for bytes in [text.clone().into_bytes(), gzip(&text), text.replace('\n', "\r\n").into_bytes()] {
        let trace = read(&bytes).unwrap();
        let expected = [
            Event::Alloc { slot: 0, stream: 0, size_bytes: 20 },
            Event::Alloc { slot: 1, stream: 1, size_bytes: 10 },
            Event::FreeUsed { slot: 0 },
            Event::Alloc { slot: 2, stream: 1, size_bytes: 20 },
            Event::Complete { slot: 0 },
            Event::Free { slot: 1 },
            Event::Alloc { slot: 1, stream: 1, size_bytes: 5 },
        ];
        assert_eq!(trace.events(), expected);
        assert_eq!((trace.name(), trace.slot_count(), trace.stream_count()), ("small", 3, 2));
        assert_eq!(trace.peaks(), Peaks { live_bytes: 30, live_incl_deferred_bytes: 50 });
        assert_eq!(trace.operation_count(), 6);
        assert_eq!(trace.header().run_seconds, Some(0.5));
        let peers: Vec<_> =
            trace.header().peers().map(|peer| (peer.name, peer.peak_reserved_bytes)).collect();
        assert_eq!(peers, [("other".to_string(), 60), ("PyTorch".to_string(), 100)]);
        assert_eq!(trace.disagreements(), Vec::<String>::new());
    }
}

#[test]
fn a_file_that_ends_early_is_told_from_its_header() {
    let trace = events("a,7,20,0\na,9,10,3\n").unwrap();
    let disagreements = trace.disagreements();
    assert_eq!(disagreements.len(), 2, "{disagreements:?}");
    assert_eq!(disagreements[0], "the header says events 7, the events make it 2");
}

#[test]
fn a_prefix_keeps_what_it_needs() {
    let trace = events(SMALL).unwrap().prefix(4);
    assert_eq!(trace.events().len(), 4);
    assert_eq!(trace.peaks(), Peaks { live_bytes: 30, live_incl_deferred_bytes: 50 });
    assert_eq!(events(SMALL).unwrap().prefix(1).peaks().live_incl_deferred_bytes, 20);
}

#[test]
fn every_error_names_its_line() {
    for (text, line, part) in [
        ("a,7,20,0\nx,1\n", 3, "invalid event \"x,1\""),
        ("a,7,20\n", 2, "invalid event"),
        ("a,7,20,0,1\n", 2, "invalid event"),
        ("f,7\n", 2, "invalid event"),
        ("\n", 2, "invalid event \"\""),
        ("#{}\n", 2, "invalid event"),
        ("a,-7,20,0\n", 2, "invalid number \"-7\""),
        ("a,+7,20,0\n", 2, "invalid number \"+7\""),
        ("a,7, 20,0\n", 2, "invalid number"),
        ("a,7,18446744073709551616,0\n", 2, "below 2^64"),
        ("a,7,18446744073709551615,0\na,8,1,0\n", 3, "more than 2^64 bytes are live"),
        ("f,7,0\n", 2, "block 7 was never allocated"),
        ("c,7\n", 2, "block 7 was never allocated"),
        ("a,7,20,0\na,7,20,0\n", 3, "block 7 is allocated again"),
        ("a,7,20,0\nf,7,0\nf,7,0\n", 4, "block 7 is freed twice"),
        ("a,7,20,0\nf,7,1\n", 3, "is of stream 0, and is freed on stream 1"),
        ("a,7,20,0\nc,7\n", 3, "block 7 has no free"),
        ("a,7,20,0\nf,7,0\nc,7\nc,7\n", 5, "block 7 has no free"),
    ] {
        let error = events(text).unwrap_err();
        assert_eq!(error.line, line, "{text:?}: {error}");
        assert!(error.to_string().contains(part), "{text:?}: {error}");
        assert!(error.to_string().starts_with(&format!("folder/small.csv.gz:{line}: ")), "{error}");
    }
    let long = "9".repeat(1000);
    assert!(events(&format!("a,7,{long},0\n")).unwrap_err().to_string().contains("longer than 256"));
    let streams: String = (0..1025).map(|stream| format!("a,{stream},1,{stream}\n")).collect();
    assert!(events(&streams).unwrap_err().to_string().contains("more than 1024 streams"));
}

/// Text of a file or of a path cannot control a terminal, in `Debug` neither.
#[test]
fn text_from_outside_is_escaped() {
    let hostile = "\u{1b}[31m\u{202e}";
    let texts = [
        format!("{HEADER}\n{hostile}\n"),
        format!("{HEADER}\na,{hostile},1,0\n"),
        format!("#{{\"format\":\"{hostile}\"}}\n"),
        format!("Thread,Time,Action,Pointer,Size,Stream\n7,now,{hostile},0x1,64,0\n"),
    ];
    for text in texts {
        let error = Trace::read_from(text.as_bytes(), hostile).unwrap_err();
        let (shown, debug) = (error.to_string(), format!("{error:?}"));
        assert!(!shown.contains(['\u{1b}', '\u{202e}']) && shown == debug, "{shown:?}");
    }
}

#[test]
fn a_header_has_to_be_there_and_of_format_1() {
    for (text, part) in [
        ("", "no header"),
        ("a,7,20,0\n", "no header"),
        ("#\n", "cannot be read"),
        ("#{\"name\":\"x\"}\n", "format"),
        ("#{\"format\":\"one\"}\n", "cannot be read"),
        ("#{\"format\":2}\n", "unknown format 2"),
        ("#{\"format\":1,\"peak_live_bytes\":-1}\n", "cannot be read"),
        ("\u{0}\u{1}\u{2}", "no header"),
    ] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(error.line == 1 && error.to_string().contains(part), "{text:?}: {error}");
    }
    assert_eq!(read(b"#{\"format\":1}").unwrap().name(), "small");
    let missing = Trace::read("no/such/file").unwrap_err();
    assert!(missing.to_string().starts_with("no/such/file: "), "{missing}");
}

#[test]
fn what_was_freed_and_not_completed_may_be_as_large_as_it_likes() {
    let half = 1_u64 << 63;
    let text: String = (0..4).map(|id| format!("a,{id},{half},0\nf,{id},0\n")).collect();
    let text = (0..4).fold(text, |text, id| format!("{text}c,{id}\n"));
    let peaks = events(&text).unwrap().peaks();
    assert_eq!(peaks, Peaks { live_bytes: half, live_incl_deferred_bytes: u64::MAX });
}

#[test]
fn damaged_gzip_is_an_error_wherever_it_is_cut() {
    let events: String = (0..2000).map(|id| format!("a,{id},{},0\n", id * 7919 % 100_003)).collect();
    let whole = gzip(&format!("{HEADER}\n{events}"));
    for length in (2..whole.len()).step_by(97).chain([whole.len() - 1]) {
        let error = read(&whole[..length]).unwrap_err();
        assert!(error.to_string().contains("cut short or damaged"), "{length}: {error}");
    }
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x55;
    assert!(read(&flipped).is_err());
    let mut twice = gzip(HEADER);
    twice.extend(gzip("\na,1,1,0\n"));
    assert_eq!(read(&twice).unwrap().events().len(), 1);
}

proptest! {
    /// Reading never panics, whatever the bytes.
    #[test]
    fn nothing_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
        let mut after_header = format!("{HEADER}\n").into_bytes();
        after_header.extend(bytes);
        let _ = read(&after_header);
    }

    #[test]
    fn lines_that_are_nearly_right_never_break_the_slots(lines in prop::collection::vec(
        prop_oneof![
            (0..6_u64, 0..3_u64).prop_map(|(id, stream)| format!("a,{id},{},{stream}", id * 100)),
            (0..6_u64, 0..3_u64).prop_map(|(id, stream)| format!("f,{id},{stream}")),
            (0..6_u64).prop_map(|id| format!("c,{id}")),
        ], 0..60)) {
        // Refused lines are left out, so that long programs are accepted.
        let mut accepted = String::new();
        for line in lines {
            let longer = format!("{accepted}{line}\n");
            if events(&longer).is_ok() {
                accepted = longer;
            }
        }
        let trace = events(&accepted).unwrap();
        let mut is_taken = vec![false; trace.slot_count() as usize];
        for event in trace.events() {
            match *event {
                Event::Alloc { slot, .. } => prop_assert!(!std::mem::replace(&mut is_taken[slot as usize], true)),
                Event::Free { slot } | Event::Complete { slot } => {
                    prop_assert!(std::mem::replace(&mut is_taken[slot as usize], false));
                }
                Event::FreeUsed { slot } => prop_assert!(is_taken[slot as usize]),
                Event::Refused { .. } => {}
            }
        }
    }
}
