//! Named options: parsing, and the texts of errors.

use super::*;
use crate::config::ignored::ignored_options;
use crate::config::{BackendKind, Config, Limit, MemoryKind, Profile, Tuning};
use core::time::Duration;

fn applied(text: &str) -> Result<Config, ConfigError> {
    Config::new(&Options::parse(text)?)
}

fn mistake(text: &str) -> String {
    applied(text).unwrap_err().to_string()
}

#[test]
fn values_arrive_whatever_their_order_and_case() {
    let options =
        applied(" Growth_Slack: 7 , PROFILE:tight,handle_bytes_max:8MiB,backend:cudaMallocAsync, ").unwrap();
    let mut tuning = Tuning::from(Profile::Tight);
    (tuning.heap.growth_slack_per_mille, tuning.heap.handle_max_pages) = (7, 4);
    assert_eq!(options.tuning, tuning);
    assert_eq!(options.backend, Some(BackendKind::Native));
    let options = applied("no_caching:True,per_process_memory_fraction:0.5,wait_deadline_ms:20").unwrap();
    assert_eq!((options.backend, options.hard_limit), (Some(BackendKind::None), Some(Limit::Percent(50.0))));
    assert_eq!(options.tuning.wait_deadline, Duration::from_millis(20));
    assert_eq!(applied("").unwrap().tuning, Tuning::default());
    let options = applied("kind:UNIFIED,roundup_power2_divisions:2,no_caching:true").unwrap();
    assert_eq!((options.kind, options.backend), (MemoryKind::Unified, Some(BackendKind::None)));
    assert_eq!(options.tuning.size_divisor, 2);
}

/// PyTorch's `native`, its own cache over plain memory, is `caching` here.
#[test]
fn backends_go_by_both_projects_names() {
    for (name, backend) in [
        ("cudaMallocAsync", BackendKind::Native),
        ("native", BackendKind::Native),
        ("caching", BackendKind::Caching),
        ("none", BackendKind::None),
    ] {
        assert_eq!(applied(&format!("backend:{name}")).unwrap().backend, Some(backend));
    }
}

/// Each option accepts one of the examples; an invalid word is refused with the valid forms.
#[test]
fn every_option_takes_its_forms_and_says_them() {
    for key in KEYS {
        let examples = ["0.5", "8", "32", "64MiB", "true", "none", "fast", "host", "on", "off"];
        let outcome = examples.iter().any(|value| applied(&format!("{}:{value}", key.name)).is_ok());
        assert!(outcome, "{}", key.name);
        let said = mistake(&format!("{}:perhaps", key.name));
        assert!(said.contains(key.expected) && said.contains("perhaps"), "{said}");
        assert!(applied(&format!("{}:", key.name)).is_err(), "{}", key.name);
    }
}

#[test]
fn mistakes_are_told_with_what_would_be_right() {
    assert!(mistake("growth_slak:3").contains("did you mean growth_slack?"));
    for (short, whole) in [
        ("max_split_mb", "max_split_size_mb"),
        ("garbage_collection", "garbage_collection_threshold"),
        ("memory_fraction", "per_process_memory_fraction"),
    ] {
        let said = mistake(&format!("{short}:1"));
        assert!(said.contains(&format!("did you mean {whole}?")), "{said}");
    }
    assert!(!mistake("something_else_entirely:3").contains("did you mean"));
    assert!(mistake("growth_slack").contains("key:value"));
    assert_eq!(
        mistake("growth_slack:1,growth_slack:2"),
        "growth_slack is given twice; keep one of the values"
    );
    assert!(mistake("hard_limit:1GiB,per_process_memory_fraction:0.1").contains("contradicts hard_limit"));
    assert!(mistake("backend:native,no_caching:true").contains("contradicts backend"));
    for text in [
        "garbage_collection_threshold:1.5",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:128",
        "growth_slack:-1",
        "max_split_size_mb:8",
        "handle_bytes_max:5%",
    ] {
        assert!(mistake(text).contains("expected"), "{text}");
    }
}

#[test]
fn what_has_no_effect_is_told_for_each_backend() {
    let options =
        applied("max_split_size_mb:64,soft_limit:5%,mapping_allowance:4,profile:fast,backend:none").unwrap();
    let ignored = |backend, can_map| {
        let ignored = ignored_options(&options, backend, can_map, false);
        ignored.iter().map(|notice| notice.option).collect::<Vec<_>>()
    };
    assert_eq!(ignored(BackendKind::Caching, true), ["max_split_size_mb"]);
    assert_eq!(ignored(BackendKind::Caching, false), ["mapping_allowance"]);
    assert_eq!(ignored(BackendKind::Native, false), ["profile", "mapping_allowance", "max_split_size_mb"]);
    assert_eq!(
        ignored(BackendKind::None, false),
        ["profile", "soft_limit", "mapping_allowance", "max_split_size_mb"]
    );
}

#[test]
fn the_options_of_a_profile_are_what_it_sets() {
    let presets = |key: &&Key| key.marks.contains(&"preset");
    assert!(KEYS.iter().filter(presets).all(|key| key.default.starts_with("by ")));
    for profile in Profile::ALL {
        let text = profile.options();
        assert_eq!(text.split(',').count(), KEYS.iter().filter(presets).count());
        assert_eq!(applied(&text).unwrap().tuning, (*profile).into(), "{text}");
    }
}

/// A documented default value is the real default.
#[test]
fn options_have_the_defaults_that_the_table_lists() {
    let shown = |mut config: Config| {
        config.given = Options::default();
        format!("{config:?}")
    };
    let plain = shown(Config::default());
    // The others are descriptions, such as `by profile`.
    let is_value = |text: &str| text.ends_with(['`', '0']);
    for key in KEYS.iter().filter(|key| is_value(key.default)) {
        let config = applied(&format!("{}:{}", key.name, key.default.trim_matches('`'))).unwrap();
        assert_eq!(shown(config), plain, "{}", key.name);
    }
}

#[test]
fn values_are_kept_to_what_works() {
    let tuning = |text: &str| applied(text).unwrap().tuning;
    let endless = tuning("wait_deadline_ms:18446744073709551615").wait_deadline;
    assert!(std::time::Instant::now().checked_add(endless).is_some());
    let pages = |text| tuning(text).heap.handle_max_pages;
    assert_eq!((pages("handle_bytes_max:16EB"), pages("handle_bytes_max:0")), (64, 1));
    let split_bytes = |text| tuning(text).heap.split_bytes_max;
    assert_eq!(
        (split_bytes("max_split_size_mb:20"), split_bytes("max_split_size_mb:65")),
        (20 << 20, 66 << 20)
    );
    assert!(applied("max_split_size_mb:19").is_err());
    assert_eq!(split_bytes("max_split_size_mb:4294967295"), 1 << 52);
}
